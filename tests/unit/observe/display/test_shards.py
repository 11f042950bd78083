"""Looking at shards and loaders takes nothing from either."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from torchdata_ais import AISSourceLister, MultiProcessingReadingService, ais_loader, as_dataset
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.examples.pets import make_pets, make_shards
from torchdata_ais.local import LocalCluster
from torchdata_ais.observe.display import contact_sheet, display_loader_images, display_shard_images
from torchdata_ais.testing import shard_bytes
from torchdata_ais.urls import expand_object_urls, object_url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pets")
    for number, shard in enumerate(make_shards([5, 5])):
        (path / f"s-{number}.tar").write_bytes(shard)
    return str(path)


def chain(folder: str) -> Any:
    pipe = AISSourceLister(f"{folder}/s-{{0..1}}.tar").shuffle().load_tar().group_samples()
    return pipe.decode("torchrgb8", size=32).to_tuple("image.jpg", "cls").batched(4)


def loaders(folder: str) -> dict[str, Any]:
    return {
        "pipe": chain(folder),
        "DataLoader2": DataLoader2(chain(folder), reading_service=MultiProcessingReadingService(1)),
        "ais_loader": ais_loader(chain(folder), num_workers=1),
        "DataLoader": DataLoader(chain(folder), batch_size=None),
        "DataLoader of a data set": DataLoader(as_dataset(chain(folder)), batch_size=None),
        "WebLoader": wds.WebLoader(chain(folder), batch_size=None, num_workers=0),
        "list": [(torch.zeros(4, 3, 8, 8), torch.arange(4))] * 3,
    }


NAMES = ["pipe", "DataLoader2", "ais_loader", "DataLoader", "DataLoader of a data set", "WebLoader", "list"]


@pytest.mark.parametrize("name", NAMES)
def test_a_look_takes_nothing_from_an_epoch_under_way(name: str, folder: str) -> None:
    loader = loaders(folder)[name]
    try:
        items = iter(loader)
        seen = len(next(items)[0])
        sheet = display_loader_images(loader, objects=3, size=32)
        assert sheet.width == 3 * 38 + 6
        seen += sum(len(batch[0]) for batch in items)
        assert seen == (12 if name == "list" else 10)
    finally:
        for close in ("shutdown", "close"):
            getattr(loader, close, lambda: None)()


def noisy(batch: Any) -> Any:
    """Draw from every global generator, as careless augmentation does."""
    return batch[0], batch[1] + random.random() + np.random.rand() + torch.rand(1)  # noqa: NPY002


def test_a_look_changes_neither_the_order_nor_the_global_generators(folder: str) -> None:
    def orders(look: bool) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        loader = DataLoader(chain(folder).map(noisy), batch_size=None)
        if look:
            display_loader_images(loader)
        batches = [batch[1].tolist() for batch in loader]
        return [batches, torch.rand(1).item(), random.random(), np.random.rand()]  # noqa: NPY002

    assert orders(look=True) == orders(look=False)


def test_tiles_are_filled_from_several_batches(folder: str) -> None:
    assert display_loader_images(chain(folder), objects=7, size=32).width == 7 * 38 + 6
    assert display_loader_images(chain(folder), objects=30, size=32, columns=10).width == 10 * 38 + 6


def test_a_batched_map_style_loader_is_shown() -> None:
    data = [(torch.zeros(3, 8, 8), n) for n in range(5)]
    assert display_loader_images(DataLoader(data, batch_size=2), objects=4, size=32).width == 4 * 38 + 6  # type: ignore[arg-type]


def test_a_one_shot_iterator_is_refused_and_left_alone() -> None:
    items = iter([(torch.zeros(1, 3, 8, 8), torch.tensor([1]))] * 3)
    with pytest.raises(UsageError, match=r"contact_sheet\(next\(iterator\)\)"):
        display_loader_images(items)
    assert len(list(items)) == 3


def test_a_pipe_that_cannot_be_copied_is_refused() -> None:
    class OneShot(IterableDataset[Any]):
        def __init__(self) -> None:
            self.items = (n for n in range(3))

        def __iter__(self) -> Iterator[Any]:
            return self.items

    with pytest.raises(UsageError, match="cannot be copied"):
        display_loader_images(OneShot())


def test_an_empty_loader_says_so() -> None:
    with pytest.raises(UsageError, match="nothing to show"):
        display_loader_images([])


# -- shards


def test_the_first_samples_of_a_shard_are_shown_and_no_more_is_read(
    ais_cluster: Any, ais_client: Any, ais_bucket: Any
) -> None:
    pets = list(make_pets(30))
    members = [
        (f"{pet['__key__']}.{name}", value) for pet in pets for name, value in pet.items() if name[0] != "_"
    ]
    members += [(f"tail_{n}.bin", random.Random(n).randbytes(1 << 20)) for n in range(100)]
    ais_bucket.object("big.tar").get_writer().put_content(shard_bytes(members))
    if isinstance(ais_cluster, LocalCluster):
        ais_cluster.reset_stats()
    sheet = display_shard_images(ais_client, f"ais://{ais_bucket.name}", "big.tar", objects=3, size=32)
    assert sheet.tobytes() == contact_sheet(pets[:3], size=32).tobytes()
    if isinstance(ais_cluster, LocalCluster):
        assert ais_cluster.stats().bytes_sent < 60 << 20  # what may be fetched ahead, and the sockets
    by_url = display_shard_images(ais_cluster.endpoint, ais_bucket, "big.tar", objects=3, size=32)
    assert isinstance(by_url, Image.Image)


def test_a_shard_without_samples_and_a_missing_one_are_errors(ais_client: Any, ais_bucket: Any) -> None:
    ais_bucket.object("empty.tar").get_writer().put_content(shard_bytes({}))
    with pytest.raises(NotFoundError, match="holds no sample"):
        display_shard_images(ais_client, ais_bucket.name, "empty.tar")
    with pytest.raises(NotFoundError):
        display_shard_images(ais_client, ais_bucket.name, "none.tar")


# -- the URLs the old SDK made


def test_urls_of_clients_addresses_and_the_environment_are_the_same(
    ais_cluster: Any, ais_client: Any, ais_bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = f"{ais_cluster.endpoint}/v1/objects/{ais_bucket.name}/a%20b.tar?provider=ais"
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint + "/")
    for cluster in (ais_client, ais_cluster.endpoint, ais_cluster.endpoint + "/", None):
        for bucket in (ais_bucket, ais_bucket.name, f"ais://{ais_bucket.name}"):
            assert object_url(cluster, bucket, "a b.tar") == expected
    monkeypatch.delenv("AIS_ENDPOINT")
    with pytest.raises(UsageError, match="No cluster is named"):
        object_url(None, "b", "o")
    with pytest.raises(UsageError, match="is no bucket"):
        object_url("http://h:1", "file:///b", "o")


def test_templates_become_urls_in_order() -> None:
    urls = expand_object_urls(
        "http://h:1", "gcp://imagenet", "imagenet-val-{000000..000005}.tar", etl_name="val-crop"
    )
    assert len(urls) == 6
    assert urls[5] == "http://h:1/v1/objects/imagenet/imagenet-val-000005.tar?provider=gcp&etl_name=val-crop"
    (one,) = expand_object_urls("http://h:1", "b", "s.tar", "crop", etl_args={"size": 8})
    assert one.endswith("etl_name=crop&etl_args=%7B%22size%22%3A8%7D")
