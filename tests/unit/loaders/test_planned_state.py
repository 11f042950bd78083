"""The state of a run by index: small, equal on all ranks, good for any topology; what it does not fit is refused."""

from __future__ import annotations

import copy
import inspect
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from helpers.planned_runs import mixture, numbers, of_world, pipe_over, some, source_shard

from torchdata_ais import AISSourceLister, SampleIndex, ais_loader, as_dataset, merge_states
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.loaders import state as loader_states
from torchdata_ais.local import LocalCluster
from torchdata_ais.pipes import AISSampleReader
from torchdata_ais.state import content_of, sealed
from torchdata_ais.testing import shard_bytes

SIZES = (13, 40, 21, 9)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[SampleIndex]:
    folder = tmp_path_factory.mktemp("state")
    return [SampleIndex.build(source_shard(folder, number, size)) for number, size in enumerate(SIZES)]


def test_promise_5_any_step_from_any_rank_on_any_ranks_the_same_global_batches(
    sources: list[SampleIndex],
) -> None:
    def make() -> Any:
        return pipe_over(mixture(sources, 1, 4, 2, 1))

    whole, _ = of_world(make, 1, None, 26, global_batch=12)
    got: list[set[int]] = []
    state = None
    for ranks, steps in ((2, 1), (3, 6), (1, 2), (6, 5), (4, 3), (2, 9)):
        batches, state = of_world(make, ranks, json.loads(json.dumps(state)), steps, global_batch=12)
        got += batches
        assert len(json.dumps(state)) < 1000
    assert got == whole


def test_promise_5_a_state_at_every_step_of_an_epoch(sources: list[SampleIndex]) -> None:
    with ais_loader(pipe_over(sources[1], 7)) as loader:
        whole = some(loader, 13)
    for step in range(13):
        with ais_loader(pipe_over(sources[1], 7)) as loader:
            some(loader, step)
            state = loader.state_dict()
        with ais_loader(pipe_over(sources[1], 7)) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert some(loader, 13 - step) == whole[step:]


def test_a_state_taken_before_the_first_batch_and_after_the_last(sources: list[SampleIndex]) -> None:
    with ais_loader(pipe_over(sources[0])) as loader:
        first = loader.state_dict()
        epoch = [numbers(batch) for batch in loader]
        after = loader.state_dict()
        following = [numbers(batch) for batch in loader]
    for state, expected, number in ((first, epoch, 0), (after, following, 1)):
        with ais_loader(pipe_over(sources[0])) as loader:
            loader.load_state_dict(state)
            assert [numbers(batch) for batch in loader] == expected
            assert loader.epoch == number


# What may change


CHANGES: dict[str, tuple[tuple[int, ...], int, set[str]]] = {
    "weights": ((4, 1, 1, 2), 5, {"weights"}),
    "a source removed": ((1, 4, 2, 0), 5, {"sources"}),
    "a source removed and another batch": ((1, 0, 2, 1), 7, {"sources", "batch"}),
    "batch": ((1, 4, 2, 1), 9, {"batch"}),
    "weights and batch": ((1, 1, 1, 1), 3, {"weights", "batch"}),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("stop", ["first", "never"])
def test_promise_5_what_is_allowed_to_change_loses_and_repeats_nothing(
    sources: list[SampleIndex], name: str, stop: Any
) -> None:
    weights, batch, allow = CHANGES[name]
    how = {"epoch_steps": 6} if stop == "never" else {}
    with ais_loader(pipe_over(mixture(sources, 1, 4, 2, 1, stop=stop), 5, **how)) as loader:
        got = some(loader, 4)
        state = loader.state_dict()
    changed = pipe_over(mixture(sources, *weights, stop=stop), batch, **how)
    with ais_loader(changed) as loader:
        for missing in allow:
            with pytest.raises(StateError, match=rf"(?i)allow=\{{'{missing}'\}}"):
                loader.load_state_dict(state, allow=allow - {missing})
        loader.load_state_dict(state, allow=allow)
        got += some(loader, 30)
        again = loader.state_dict()
    assert len(json.dumps(again)) < 1000 + 64 * 4
    with ais_loader(pipe_over(mixture(sources, *weights, stop=stop), batch, **how)) as loader:
        loader.load_state_dict(again)  # the change is in the state now
        got += some(loader, 11)
    seen = Counter(number for one in got for number in one)
    assert sum(seen.values()) == 45 * 5 - 41 * 5 + sum(map(len, got[4:]))
    for source, size in enumerate(SIZES):
        counts = [seen[1000 * source + number] for number in range(size)]
        assert max(counts) - min(counts) <= 1  # all of a source before any again: none lost, none twice


def test_promise_5_sources_come_and_go_and_come_back(sources: list[SampleIndex]) -> None:
    state, got = None, []
    for weights in ((3, 1, 0, 0), (3, 1, 2, 0), (3, 0, 2, 1), (3, 1, 2, 1)):
        pipe = pipe_over(mixture(sources, *weights, stop="never"), 5, epoch_steps=9)
        with ais_loader(pipe) as loader:
            if state is not None:
                loader.load_state_dict(state, allow="sources")
            got += some(loader, 7)
            state = loader.state_dict()
    seen = Counter(number for one in got for number in one)
    assert sum(seen.values()) == 4 * 7 * 5
    for source, size in enumerate(SIZES):
        counts = [seen[1000 * source + number] for number in range(size)]
        assert max(counts) - min(counts) <= 1


# What is refused


def test_promise_5_a_state_of_something_else_is_refused_and_named(
    sources: list[SampleIndex], tmp_path: Path
) -> None:
    with ais_loader(pipe_over(mixture(sources, 1, 1), 4)) as loader:
        some(loader, 3)
        state = loader.state_dict()
    shard = source_shard(tmp_path, 7, 20)
    stream: Any = AISSourceLister(shard).load_tar().group_samples().decode().to_tuple("cls").batched(4)
    with ais_loader(stream) as loader:
        next(iter(loader))
        of_stream = loader.state_dict()
        with pytest.raises(StateError, match="of reading by index, not of streams"):
            loader.load_state_dict(state)
    both = mixture(sources, 1, 1)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (pipe_over(both), {"seed": 1}, "the seed was 0 .* and is 1"),
        (pipe_over(both, shuffle="runs"), {}, "the order was"),
        (pipe_over(both, shuffle=None), {}, "the order was"),
        (pipe_over(both, tail="drop"), {}, "the order was"),
        (pipe_over(both, epoch_steps=5), {}, "the order was"),
        (pipe_over(mixture(sources, 1, 1, stop="all")), {}, "the order was"),
        (pipe_over(SampleIndex.build(shard)), {}, "2 sources.* 2 of them are gone, 1 are new"),
        (pipe_over(sources[0]), {}, "2 sources"),
        (pipe_over(mixture(sources, 1, 2)), {}, "weights"),
        (pipe_over(both, 5), {}, "a global batch of 4, and this loader 5"),
    ]
    for pipe, how, says in cases:
        with ais_loader(pipe, **how) as loader:
            before = loader.state_dict()
            with pytest.raises(StateError, match=f"(?i){says}"):
                loader.load_state_dict(state)
            assert loader.state_dict() == before  # as it was
    with ais_loader(pipe_over(both)) as loader:
        for wrong in (None, [], "x", 3, {}, of_stream, {**state, "step": 2}, {**state, "plan": 1}):
            with pytest.raises(StateError):
                loader.load_state_dict(wrong)  # type: ignore[arg-type]
        for name in state:
            with pytest.raises(StateError):
                loader.load_state_dict({key: value for key, value in state.items() if key != name})
        with pytest.raises(UsageError, match="allow="):
            loader.load_state_dict(state, allow={"seed"})


# Who takes it


@pytest.mark.skipif(
    "no_dist" not in inspect.signature(dcp.save).parameters, reason="this torch needs a group"
)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_it_is_a_stateful_of_distributed_checkpoint(sources: list[SampleIndex], tmp_path: Path) -> None:
    with ais_loader(pipe_over(mixture(sources, 1, 2, 1))) as loader:
        whole = some(loader, 9)
    with ais_loader(pipe_over(mixture(sources, 1, 2, 1))) as loader:
        some(loader, 5)
        assert isinstance(loader, dcp.stateful.Stateful)
        dcp.save({"data": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    with ais_loader(pipe_over(mixture(sources, 1, 2, 1))) as loader:
        dcp.load({"data": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        assert some(loader, 4) == whole[5:]


def test_of_ten_thousand_equal_states_one_is_looked_at(
    sources: list[SampleIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, state = of_world(lambda: pipe_over(sources[1]), 2, None, 3, global_batch=8)
    looked_at: list[Any] = []
    real = loader_states.from_plain
    monkeypatch.setattr(loader_states, "from_plain", lambda plain: (looked_at.append(plain), real(plain))[1])
    assert merge_states([copy.deepcopy(state) for _ in range(10_000)]) == state
    assert len(looked_at) == 1


def test_states_of_ranks_may_be_merged_as_those_of_streams(sources: list[SampleIndex]) -> None:
    _, state = of_world(lambda: pipe_over(sources[1]), 2, None, 3, global_batch=8)
    assert merge_states([state, state]) == state


def test_samples_of_a_step_are_those_that_come(sources: list[SampleIndex]) -> None:
    def keyed() -> Any:
        reader = AISSampleReader(mixture(sources, 1, 3), shuffle="samples")
        return reader.to_tuple("__key__").batched(3)

    with ais_loader(keyed(), global_batch=6) as loader:
        said = [[key for key, _ in loader.samples_of(step)] for step in range(12)]
        came = [list(keys) for _ in range(2) for (keys,) in loader]
    assert came[:12] == said
    assert all(shard.endswith(".tar") for _, shard in ais_loader(keyed()).samples_of(10**6))


# What it costs


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        bucket = running.client().bucket("planned").create()
        for number in range(4):
            members = {}
            for n in range(24):
                members[f"{number}-{n:02d}.cls"] = b"%d" % (100 * number + n)
                members[f"{number}-{n:02d}.bin"] = bytes(40_000)  # no two are worth one request
            bucket.object(f"s-{number}.tar").get_writer().put_content(shard_bytes(members))
        yield running


@pytest.mark.parametrize("shuffle", ["samples", None])
def test_restoring_reads_no_byte_of_what_was_delivered(cluster: LocalCluster, shuffle: Any) -> None:
    index = SampleIndex.build("ais://planned/s-{0..3}.tar", cluster=cluster.endpoint)

    def make() -> Any:
        return pipe_over(index, 4, shuffle=shuffle)

    with ais_loader(make()) as loader:
        cluster.reset_stats()
        whole = [numbers(batch) for batch in loader]
        assert sent(cluster) >= 96 * 40_000
    with ais_loader(make()) as loader:
        some(loader, 22)
        state = loader.state_dict()
    cluster.reset_stats()
    with ais_loader(make()) as loader:
        loader.load_state_dict(state)
        assert len(loader) == 24
        assert not data_requests(cluster)  # nothing is asked before the first batch
        assert [numbers(batch) for batch in loader] == whole[22:]
    assert 8 * 40_000 <= sent(cluster) <= 8 * 43_000  # two batches


def data_requests(cluster: LocalCluster) -> list[Any]:
    return [one for one in cluster.requests() if "/v1/objects/" in one.url or "/v1/ml" in one.url]


def sent(cluster: LocalCluster) -> int:
    return sum(one.bytes_sent for one in data_requests(cluster))


def test_promise_5_a_state_of_a_selection_fits_the_selection_that_was_stored(
    sources: list[SampleIndex], tmp_path: Path
) -> None:
    chosen = {
        "selection": sources[1].select(range(0, 40, 3)),
        "part": sources[2][3:],
        "joined": SampleIndex.concat([sources[0].select([0, 5, 7]), sources[3]]),
    }
    for name, index in chosen.items():
        place = index.save(tmp_path / name).files[0].rpartition("/")[0]
        stored = SampleIndex.open(place, shards_from="/")
        for before, after in ((index, stored), (stored, index)):
            with ais_loader(pipe_over(before, 3)) as loader:
                whole = some(loader, 7)
            with ais_loader(pipe_over(before, 3)) as loader:
                some(loader, 2)
                state = loader.state_dict()
            with ais_loader(pipe_over(after, 3)) as loader:
                loader.load_state_dict(state)
                assert some(loader, 5) == whole[2:], name


@pytest.mark.parametrize("step", ["a", 1.5, None, True, -1, 2**70, [1]])
def test_a_step_that_cannot_be_is_an_error_of_ours(sources: list[SampleIndex], step: Any) -> None:
    with (
        ais_loader(pipe_over(sources[1])) as loader,
        pytest.raises(UsageError, match="step="),
    ):
        loader.samples_of(step)


def test_a_step_before_a_change_is_an_error_of_ours(sources: list[SampleIndex]) -> None:
    with ais_loader(pipe_over(sources[1])) as loader:
        some(loader, 3)
        state = loader.state_dict()
    with ais_loader(pipe_over(sources[1]), global_batch=8) as loader:
        loader.load_state_dict(state, allow="batch")
        assert len(loader.samples_of(3)) == 8
        with pytest.raises(UsageError, match="Step 2 lies before step 3"):
            loader.samples_of(2)


@pytest.mark.parametrize(
    ("name", "at", "value"), [("epoch", 1, 1), ("epoch", 2, 4), ("epoch", 0, 1), ("counts", 3, "AAA=")]
)
def test_promise_5_a_state_whose_numbers_are_not_those_of_its_step_is_refused(
    sources: list[SampleIndex], name: str, at: int, value: Any
) -> None:
    with ais_loader(pipe_over(mixture(sources, 1, 1), 4)) as loader:
        some(loader, 3)
        content = content_of(loader.state_dict())
    with ais_loader(pipe_over(mixture(sources, 1, 1), 4)) as loader:
        loader.load_state_dict(sealed(content))
        other = [*content[name][:at], value, *content[name][at + 1 :]]
        with pytest.raises(StateError, match="not those of its step"):
            loader.load_state_dict(sealed({**content, name: other}))


@pytest.mark.parametrize("epoch", ["a", 1.5, None, True, -1])
def test_an_epoch_that_cannot_be_is_an_error_of_ours(sources: list[SampleIndex], epoch: Any) -> None:
    pipe = pipe_over(sources[1])
    for taker in (ais_loader(pipe), as_dataset(pipe), AISSampleReader(sources[1])):
        with pytest.raises(UsageError, match="epoch="):
            taker.set_epoch(epoch)


@pytest.mark.parametrize("epoch_steps", [None, 1000])
@pytest.mark.parametrize(
    "count", [1, 2, 10, *(pytest.param(many, marks=pytest.mark.ci) for many in (50, 200))]
)
def test_a_state_has_400_bytes_and_32_a_source(tmp_path: Path, count: int, epoch_steps: int | None) -> None:
    """At every step, after resumes, and after changes of weights and batch: only the last one adds to it."""
    sources = [SampleIndex.build(source_shard(tmp_path, number, 20)) for number in range(count)]
    state: Any = None
    for change in range(4):
        mixed = mixture(sources, *[1 + change % 2] * count)
        with ais_loader(pipe_over(mixed, 4 + change, epoch_steps=epoch_steps)) as loader:
            if state is not None:
                loader.load_state_dict(state, allow={"weights", "batch"})
            some(loader, 3)
            state = loader.state_dict()
        assert len(json.dumps(state)) <= 400 + 32 * count


def test_a_change_of_weights_that_leaves_nothing_of_an_epoch_goes_on_with_the_next(
    sources: list[SampleIndex],
) -> None:
    """13 of 13 samples came: with ``stop="first"`` and more weight the next draw would be a repeat."""
    with ais_loader(pipe_over(mixture(sources, 1, 2), 8)) as loader:
        assert len(some(loader, 5)) == 5
        state = loader.state_dict()
        assert loader.samples_seen()[0] == SIZES[0]
    with ais_loader(pipe_over(mixture(sources, 5, 1), 12)) as loader:
        loader.load_state_dict(state, allow={"weights", "batch"})
        assert not loader.under_way
        first = [number for batch in loader for number in batch[0].tolist()]
        assert loader.epoch == 1
    assert len(set(first)) == len(first)
