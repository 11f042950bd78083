"""The four workflows of the AIStore articles, as library calls; A and B also on the real cluster of AIS_ENDPOINT."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from aistore.sdk.etl import ETLConfig
from PIL import Image
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais import AISSourceLister, ShardWriter, ais_loader, convert
from torchdata_ais.examples.pets import CLASSES, make_pets
from torchdata_ais.examples.train import SmallCNN
from torchdata_ais.jobs.dsort import run_dsort
from torchdata_ais.jobs.etl import ensure_etl, shard_etl, transform_bucket
from torchdata_ais.local import LocalCluster
from torchdata_ais.observe.display import display_loader_images
from torchdata_ais.urls import expand_object_urls

pytestmark = pytest.mark.timeout(170)

PETS = 76


def url_dict(source_url: str) -> dict[str, str]:
    return {"url": source_url}


def pets() -> Iterator[dict[str, Any]]:
    """Samples as in the article: a class as text, an image, a mask."""
    for index, pet in enumerate(make_pets(PETS)):
        yield {**pet, "__key__": f"sample_{index:04d}", "cls": pet["cls"].decode()}


@pytest.fixture(scope="module")
def etl_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2, etl=True) as running:
        yield running


# -- A. files to shards


@pytest.mark.ci
def test_a_samples_become_shards_which_the_cluster_shuffles(
    ais_client: Any, ais_bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = ais_bucket
    monkeypatch.chdir(tmp_path)

    def upload_shard(filename: str) -> None:
        bucket.object(filename).get_writer().put_file(filename)
        Path(filename).unlink()

    with ShardWriter("samples-%02d.tar", maxcount=4, post=upload_shard) as writer:
        for sample in pets():
            writer.write(sample)
    assert list(tmp_path.iterdir()) == []
    straight = f"ais://{bucket.name}/straight-%02d.tar"
    with ShardWriter(straight, maxcount=4, cluster=ais_client) as writer:
        for sample in pets():
            writer.write(sample)
    names = [entry.name for entry in bucket.list_all_objects(prefix="samples")]
    assert names == [f"samples-{number:02d}.tar" for number in range(19)]
    for name in names:
        mine, theirs = (
            bucket.object(one).get_reader().read_all() for one in (name, name.replace("samples", "straight"))
        )
        assert mine == theirs

    result = run_dsort(
        ais_client,
        {
            "extension": ".tar",
            "bck": {"name": bucket.name, "provider": "ais"},
            "output_bck": {"name": bucket.name, "provider": "ais"},
            "input_format": "samples-{00..18}",
            "output_format": "shuffled-shard-%d",
            "output_shard_size": "100KB",
            "algorithm": {"kind": "shuffle"},
            "description": "Create new shuffled shards",
        },
        check=True,
    )
    assert (result.samples, result.missing) == (PETS, [])
    listed = [entry.name for entry in bucket.list_all_objects(prefix="shuffled")]
    assert sorted(listed) == sorted(f"shuffled-shard-{number}.tar" for number in range(len(result.shards)))
    samples = list(AISSourceLister([bucket], prefix="shuffled").load_tar().group_samples())
    expected = {pet["__key__"]: pet for pet in pets()}
    assert len(samples) == len({sample["__key__"] for sample in samples}) == PETS
    for sample in samples:
        pet = expected[sample["__key__"]]
        assert (sample["cls"].decode(), sample["image.jpg"], sample["trimap.png"]) == (
            pet["cls"], pet["image.jpg"], pet["trimap.png"],
        )  # fmt: skip


# -- B. training input


def filled(bucket: Any) -> Any:
    with ShardWriter(
        f"ais://{bucket.name}/shuffled-shard-%d.tar", maxcount=10, cluster=bucket.client
    ) as writer:
        for sample in pets():
            writer.write(sample)
    return bucket


def small(sample: dict[str, Any], args: Any) -> dict[str, Any]:
    side = (args or {"side": 32})["side"]
    sample["image.jpg"] = sample["image.jpg"].resize((side, side))
    sample["trimap.png"] = sample["trimap.png"].convert("L").resize((side, side), Image.Resampling.NEAREST)
    return sample


def chain(bucket: Any, *fields: str, **lister: Any) -> Any:
    sources = AISSourceLister(ais_sources=[bucket], **lister).map(url_dict).shuffle()
    samples = sources.load_tar().group_samples().shuffled(1000)
    return samples.decode("torchrgb", size=32).to_tuple(*fields).batched(16)


@pytest.mark.ci
def test_b_small_batches_are_mixed_again_and_train_a_model(ais_bucket: Any) -> None:
    bucket = filled(ais_bucket)
    torch.manual_seed(0)
    model = SmallCNN(len(CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    pipe = chain(bucket, "cls", "image.jpg", "trimap.png", "__key__")
    losses = []
    with ais_loader(pipe, num_workers=2, seed=0) as loader:
        for _ in range(3):
            keys: list[str] = []
            batches = IterableWrapper(loader, deepcopy=False).unbatched().shuffled(1000).batched(64)
            for classes, images, trimaps, some in batches:
                assert images.shape[1:] == trimaps.shape[1:] == (3, 32, 32)
                loss = torch.nn.functional.cross_entropy(model(images * 255), classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                keys += some
            assert sorted(keys) == [pet["__key__"] for pet in pets()]
    assert losses[-1] < losses[0]


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")  # webdataset leaves files open
def test_b_webdataset_reads_what_the_lister_gives(ais_bucket: Any) -> None:
    bucket = filled(ais_bucket)
    dataset = wds.DataPipeline(
        AISSourceLister(ais_sources=[bucket]).map(url_dict),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(1000),
        wds.decode("torchrgb"),
        wds.to_tuple("cls", "image.jpg", "trimap.png"),
        wds.batched(16),
    )
    loader = wds.WebLoader(dataset, num_workers=2, batch_size=None).unbatched().shuffle(1000).batched(64)
    batches = list(loader)
    assert batches[0][1].shape == (64, 3, 375, 500)
    assert sum(len(classes) for classes, *_ in batches) == PETS


@pytest.mark.ci
def test_b_a_transform_in_the_listing_is_applied_by_the_cluster(etl_cluster: LocalCluster) -> None:
    bucket = filled(etl_cluster.client().bucket("pets").create())
    ensure_etl(etl_cluster.client(), "pets-small", shard_etl(decode="pil")(small))
    for lister, side in (
        ({"etl_name": "pets-small"}, 32),
        ({"etl": ETLConfig("pets-small", {"side": 24})}, 24),
    ):
        sources = AISSourceLister(ais_sources=[bucket], **lister)
        samples = list(sources.load_tar().group_samples().decode("pil"))
        assert len(samples) == PETS
        assert {sample["image.jpg"].size for sample in samples} == {(side, side)}
        assert set(np.unique(np.asarray(samples[0]["trimap.png"].convert("L")))) <= {1, 2, 3}
    bucket.delete()


# -- C. transform where?


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    """Resize, crop, flip, normalise: drawn from the key, so that it is the same here and there."""
    rng = random.Random(sample["__key__"])
    left, top = rng.randrange(9), rng.randrange(9)
    picture = (
        sample.pop("jpg").resize((40, 40), Image.Resampling.BILINEAR).crop((left, top, left + 32, top + 32))
    )
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(picture, np.float32) / 255
    sample["npy"] = (pixels - np.float32(0.45)) / np.float32(0.22)
    return sample


@pytest.mark.ci
def test_c_both_sides_make_the_same_samples(etl_cluster: LocalCluster) -> None:
    client = etl_cluster.client()
    bucket = client.bucket("imagenet").create()
    with ShardWriter("ais://imagenet/imagenet-val-%06d.tar", maxcount=6, cluster=client) as writer:
        for number, pet in enumerate(make_pets(36)):
            writer.write({"__key__": f"{number * 7919:07d}", "cls": pet["cls"], "jpg": pet["image.jpg"]})
    template = "imagenet-val-{000000..000005}.tar"
    ensure_etl(client, "imagenet-val", shard_etl(decode="pil")(augment))
    urls = expand_object_urls(client, "ais://imagenet", template)
    etl_urls = expand_object_urls(client, "ais://imagenet", template, etl_name="imagenet-val")
    assert [len(urls), len(etl_urls)] == [6, 6]
    here = AISSourceLister(urls).load_tar().group_samples().decode("pil").map_sample(augment)
    there = AISSourceLister(etl_urls).load_tar().group_samples().decode()
    count = 0
    for mine, theirs in zip(here, there, strict=True):
        assert (mine["__key__"], mine["cls"]) == (theirs["__key__"], theirs["cls"])
        assert mine["npy"].dtype == theirs["npy"].dtype == np.float32
        assert (mine["npy"] == theirs["npy"]).all()
        count += 1
    assert count == 36
    batches = there.to_tuple("npy", "cls").batched(16)
    assert (
        display_loader_images(batches, objects=4, mean=[0.45] * 3, std=[0.22] * 3, size=32).width
        == 4 * 38 + 6
    )
    bucket.delete()


# -- D. offline augmentation


def mirrored(sample: dict[str, Any]) -> dict[str, Any]:
    sample["image.jpg"] = sample["image.jpg"].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    sample["trimap.png"] = sample["trimap.png"].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return sample


@pytest.mark.ci
def test_d_processes_here_and_the_cluster_there_write_the_same_shards(etl_cluster: LocalCluster) -> None:
    client = etl_cluster.client()
    bucket = filled(client.bucket("originals").create())
    for name in ("by-client", "by-cluster"):
        client.bucket(name).create()
    done = convert(
        "ais://originals/", "ais://by-client/shuffled-shard-%d.tar", decode="pil", map=mirrored, processes=2,
        maxcount=10, cluster=client,
    )  # fmt: skip
    assert done.samples == PETS
    ensure_etl(client, "mirrored", shard_etl(decode="pil")(mirrored))
    result = transform_bucket(client, "mirrored", bucket, "ais://by-cluster")
    assert (result.objects, result.errors) == (8, {})
    names = [entry.name for entry in client.bucket("by-cluster").list_all_objects()]
    assert names == [f"shuffled-shard-{number}.tar" for number in range(8)]
    for name in names:
        mine, theirs = (
            client.bucket(which).object(name).get_reader().read_all() for which in ("by-client", "by-cluster")
        )
        assert mine == theirs, name
    for name in ("originals", "by-client", "by-cluster"):
        client.bucket(name).delete()
