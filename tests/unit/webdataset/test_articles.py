"""The programs of AIStore's articles, by the facade, on a cluster."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

import torchdata_ais.webdataset as wds
from torchdata_ais import AISSourceLister

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create", "ignore:Lambda function is not supported"
    ),
]


def pets(number: int) -> dict[str, Any]:
    picture = np.full((6, 8, 3), number, np.uint8)
    return {"__key__": f"sample_{number:04d}", "image.jpg": picture, "cls": number, "trimap.png": picture}


@pytest.fixture
def bucket(ais_bucket: Any, ais_cluster: Any) -> Any:
    """Written as the first article does, but straight into the bucket."""
    pattern = f"ais://{ais_bucket.name}/samples-%02d.tar"
    with wds.ShardWriter(pattern, maxcount=3, cluster=ais_cluster.endpoint) as writer:
        for number in range(12):
            writer.write(pets(number))
    return ais_bucket


def test_the_articles_program_runs_with_lambdas_in_workers(bucket: Any) -> None:
    sources = AISSourceLister(ais_sources=[bucket]).map(lambda source_url: {"url": source_url})
    dataset = wds.WebDataset(sources)
    dataset = (
        dataset.shuffle(size=1000).decode("torchrgb").to_tuple("cls", "image.jpg", "trimap.png").batched(16)
    )
    loader = wds.WebLoader(dataset, num_workers=4, batch_size=None).unbatched().shuffle(1000).batched(5)
    classes, images, trimaps = next(iter(loader))
    assert classes.shape == (5,)
    assert images.shape == trimaps.shape == (5, 3, 6, 8)
    assert images.dtype == torch.float32
    epochs = [[int(n) for batch in loader for n in batch[0]] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0] != epochs[1]


def test_the_programs_of_the_older_articles_run(bucket: Any, ais_cluster: Any) -> None:
    from torchdata_ais.urls import expand_object_urls, object_url

    one = object_url(ais_cluster.endpoint, bucket, "samples-00.tar")
    dataset = (
        wds.WebDataset(one, handler=wds.handlers.warn_and_continue)
        .decode("pil")
        .to_tuple("image.jpg;png;jpeg cls", handler=wds.handlers.warn_and_continue)
        .map_tuple(lambda picture: torch.from_numpy(np.asarray(picture).copy()), lambda x: x)
    )
    (batch,) = list(wds.WebLoader(dataset, batch_size=64, shuffle=False, num_workers=1))
    assert batch[0].shape == (3, 6, 8, 3)
    assert batch[1].tolist() == [0, 1, 2]
    urls = expand_object_urls(ais_cluster.endpoint, bucket, "samples-{00..03}.tar")
    assert len(list(wds.WebDataset(urls).decode("rgb").to_tuple("trimap.png", "cls"))) == 12


def test_a_bucket_is_a_list_of_shards(bucket: Any, ais_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint)
    bucket.object("README.md").get_writer().put_content(b"no shard")
    for urls in (
        f"ais://{bucket.name}",
        f"ais://{bucket.name}/",
        f"ais://{bucket.name}/samples-{{00..03}}.tar",
    ):
        assert len(list(wds.WebDataset(urls))) == 12
    with wds.gopen(f"ais://{bucket.name}/README.md") as stream:
        assert io.BytesIO(stream.read()).getvalue() == b"no shard"
    with wds.gopen(f"ais://{bucket.name}/copy", "wb") as stream:
        stream.write(b"written")
    assert bucket.object("copy").get_reader().read_all() == b"written"
