"""Ranks that share a place in the data: equal batches by mesh=, group=, rank=, and an error that names who differs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import run_forked
from torch.distributed.device_mesh import init_device_mesh

from torchdata_ais import AISSampleReader, SampleIndex, ais_loader
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import example_shards

pytestmark = pytest.mark.timeout(180)

COUNTS = (13, 8)


def batches(job: dict[str, Any], **ranks: Any) -> list[Any]:
    index = SampleIndex.build(job["shards"])
    pipe = AISSampleReader(index, shuffle="samples").map_sample(job["edit"]).to_tuple("__key__", "cls")
    with ais_loader(pipe.batched(3), num_workers=job.get("workers", 0), seed=5, **ranks) as loader:
        return [tuple(columns) for columns in loader]


def unchanged(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def check_union(answers: list[dict[str, Any]]) -> None:
    """Assert that the ranks of one place have equal batches, and all places together each sample once."""
    places: dict[int, list[Any]] = {}
    for answer in answers:
        place, given = answer["value"]
        places.setdefault(place, []).append(given)
    for same in places.values():
        assert len(same) == len(answers) // len(places)
        assert all(given == same[0] for given in same)
    keys = [key for same in places.values() for batch in same[0] for key in batch[0]]
    assert len(keys) == len(set(keys)) == sum(COUNTS)


def in_mesh(rank: int, job: dict[str, Any]) -> tuple[int, list[Any]]:
    mesh = init_device_mesh("cpu", job["shape"], mesh_dim_names=job["names"])["dp"]
    return mesh.get_local_rank(), batches(job, mesh=mesh, replica_check=1)


@pytest.mark.parametrize("names", [("tp", "dp"), pytest.param(("dp", "tp"), marks=pytest.mark.ci)])
def test_promise_3_the_ranks_of_one_place_in_a_mesh_get_equal_batches(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(
        in_mesh, 4, tmp_path / "job", shape=(2, 2), names=names, shards=shards, edit=unchanged
    )
    check_union(answers)


@pytest.mark.ci
@pytest.mark.parametrize("names", list(itertools.permutations(("dp", "tp", "pp"))))
def test_promise_3_eight_ranks_in_a_mesh_of_three_dimensions(names: tuple[str, ...], tmp_path: Path) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(
        in_mesh, 8, tmp_path / "job", timeout_s=120, shape=(2, 2, 2), names=names, shards=shards,
        edit=unchanged, workers=1,
    )  # fmt: skip
    check_union(answers)


def in_groups(rank: int, job: dict[str, Any]) -> tuple[int, list[Any]]:
    groups = [dist.new_group(members) for members in ([0, 2], [1, 3])]
    group = groups[rank % 2]
    return dist.get_rank(group), batches(job, group=group)


def test_promise_3_two_groups_share_out_the_same_data_each_for_itself(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, COUNTS)
    check_union(run_forked(in_groups, 4, tmp_path / "job", shards=shards, edit=unchanged))


def with_another_label(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "cls": b"other"} if dist.get_rank() == 3 else sample


def test_promise_3_a_replica_with_other_data_is_named_with_the_one_it_differs_from(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(
        in_mesh, 4, tmp_path / "job", shape=(2, 2), names=("dp", "tp"), shards=shards, edit=with_another_label
    )
    failed = [answer for answer in answers if answer.get("kind") == "LoaderError"]
    assert failed  # one that was ahead may have ended its epoch before the other noticed
    texts = "\n".join(answer["error"] for answer in failed)
    assert "share the data of rank 1, and were given different batches in step" in texts
    assert "The processes 2 and 3" in texts or "The processes 3 and 2" in texts


def test_a_mesh_needs_torch_distributed_and_says_one_thing(tmp_path: Path) -> None:
    index = SampleIndex.build(example_shards(tmp_path, (3,)))
    pipe = AISSampleReader(index).to_tuple("cls").batched(1)
    with pytest.raises(UsageError, match="say the same thing"):
        ais_loader(pipe, rank=0, world_size=1, group=object())
    with (
        pytest.raises(UsageError, match=r"without torch\.distributed"),
        ais_loader(pipe, group=object()) as loader,
    ):
        list(loader)
