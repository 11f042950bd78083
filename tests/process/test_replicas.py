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


@pytest.mark.ci
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


def in_groups_that_compare(rank: int, job: dict[str, Any]) -> tuple[int, list[Any]]:
    groups = [dist.new_group(members) for members in ([0, 2], [1, 3])]
    group = groups[rank % 2]
    return dist.get_rank(group), batches(job, group=group, replica_check=1)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("where", "others"),
    [pytest.param(in_mesh, (2, 3), marks=pytest.mark.ci), (in_groups_that_compare, (2, 3))],
    ids=["mesh", "group"],
)
def test_promise_3_a_replica_with_other_data_is_named_with_the_one_it_differs_from(
    where: Any, others: tuple[int, int], tmp_path: Path
) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(
        where, 4, tmp_path / "job", shape=(2, 2), names=("dp", "tp"), shards=shards, edit=with_another_label
    )
    failed = [answer for answer in answers if answer.get("kind") == "LoaderError"]
    assert failed  # one that was ahead may have ended its epoch before the other noticed
    texts = "\n".join(answer["error"] for answer in failed)
    assert "share the data of rank 1, and were given different batches in step" in texts
    one, other = others
    assert f"The processes {one} and {other}" in texts or f"The processes {other} and {one}" in texts


def disagree(rank: int, job: dict[str, Any]) -> Any:
    """Be a rank of two data-parallel groups; process 3 was given something else."""
    other = rank == 3
    shards = job["shards"][: 1 if other and job["what"] == "index" else 2]
    index = SampleIndex.build(shards)
    size = 3 + (other and job["what"] == "batch")
    pipe = AISSampleReader(index, shuffle="samples").to_tuple("cls").batched(size)
    if job["by"] == "mesh":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        place = {"mesh": mesh["dp"]}
    else:
        groups = [dist.new_group(members) for members in ([0, 2], [1, 3])]
        place = {"group": groups[rank % 2]}
    seed = 6 if other and job["what"] == "seed" else 5
    with ais_loader(pipe, seed=seed, rank_timeout_s=60, **place) as loader:
        return len(list(loader))


@pytest.mark.parametrize("by", [pytest.param("mesh", marks=pytest.mark.ci), "group"])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("seed", ("seed=5", "seed=6")),
        pytest.param("batch", ("global_batch=6", "global_batch=8"), marks=pytest.mark.ci),
        pytest.param("index", ("21 samples", "13 samples"), marks=pytest.mark.ci),
    ],
)
def test_a_process_that_was_given_other_things_ends_all_of_all_groups(
    by: str, what: str, says: tuple[str, str], tmp_path: Path
) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(disagree, 4, tmp_path / "job", shards=shards, by=by, what=what)
    for answer in answers:
        assert answer.get("kind") == "UsageError", answer
        assert "rank 3 differs from rank 0" in answer["error"]
        for text in says:
            assert text in answer["error"]


def only_some(rank: int, job: dict[str, Any]) -> Any:
    groups = [dist.new_group(members) for members in ([0, 2], [1, 3])]
    if rank % 2:
        dist.barrier(groups[1])  # a rank that has ended cannot be connected to
        return None
    return [len(keys) for keys, _ in batches(job, group=groups[0], replica_check=None)]


def test_a_loader_of_one_group_alone_waits_for_nobody_else(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(only_some, 4, tmp_path / "job", shards=shards, edit=unchanged)
    given = [answer["value"] for answer in answers]
    assert given[1::2] == [None, None]
    assert [len(one) for one in given[::2]] == [4, 4]
    assert sum(map(sum, given[::2])) == sum(COUNTS)


def test_a_mesh_needs_torch_distributed_and_says_one_thing(tmp_path: Path) -> None:
    index = SampleIndex.build(example_shards(tmp_path, (3,)))
    pipe = AISSampleReader(index).to_tuple("cls").batched(1)
    with pytest.raises(UsageError, match="say the same thing"):
        ais_loader(pipe, rank=0, world_size=1, group=object())
    with (
        pytest.raises(UsageError, match=r"what torch\.distributed\.new_group\(\) returned"),
        ais_loader(pipe, group=object()) as loader,
    ):
        list(loader)
