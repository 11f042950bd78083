"""The records of batches, in the loader and as a Chrome trace."""

from __future__ import annotations

import json
import math
import resource
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ais_loader
from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.observe.diagnosis.chrome_trace import _thread
from torchdata_ais.observe.diagnosis.rank_summary import ERROR, Sketch
from torchdata_ais.testing import example_shards

COUNTS = (6, 4, 7)


def batches(shards: list[str]) -> Any:
    return AISSourceLister(shards).load_tar().group_samples().decode().to_tuple("__key__", "cls").batched(2)


def by_index(shards: list[str]) -> Any:
    index = SampleIndex.build(shards)
    return AISSampleReader(index, shuffle="samples").decode().to_tuple("__key__", "cls").batched(2)


def traced(pipe: Any, path: Path, **how: Any) -> list[dict[str, Any]]:
    with ais_loader(pipe, trace=True, **how) as loader:
        for _ in range(2):
            assert len(list(loader)) >= 8
        loader.trace(path)
    told = json.loads(path.read_bytes())
    assert set(told) == {"traceEvents", "displayTimeUnit", "otherData"}
    return list(told["traceEvents"])


def test_the_training_loop_is_the_main_thread_of_its_rank() -> None:
    """To viewers that is the thread with the number of the process; all tracks of a rank have numbers of their own."""
    for rank in (0, 1, 2, 101, 1000):
        threads = [_thread(rank, track) for track in range(4 * 100)]
        assert threads[0] == 1 + rank
        assert len(set(threads)) == len(threads)
        assert min(threads) > 0


def check_format(events: list[dict[str, Any]]) -> None:
    """Assert what the trace-event format asks of complete and metadata events; and that slices of a track nest."""
    slices = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str)
        for number in (event["pid"], event["tid"]):
            assert isinstance(number, int)
            assert number > 0  # 0 is the idle processor to Perfetto
        assert set(event) <= {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name", "process_sort_index"}
            assert event["args"]
        else:
            assert event["ph"] == "X"
            assert isinstance(event["ts"], int)
            assert isinstance(event["dur"], int)
            assert 0 < event["ts"] * 1000 < 1 << 63  # nanoseconds, to Perfetto
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(slices) <= named
    for track in slices.values():
        track.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(track)), track


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_workers": 2},
        pytest.param({"num_workers": 2, "multiprocessing_context": "spawn"}, marks=pytest.mark.ci),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [batches, by_index])
def test_a_trace_has_every_batch_once_with_who_made_it(
    make: Any, how: dict[str, Any], tmp_path: Path
) -> None:
    events = traced(make(example_shards(tmp_path, COUNTS)), tmp_path / "trace.json", **how)
    check_format(events)
    steps = [event["args"]["step"] for event in events if event["name"] == "wait for data"]
    made = [event["args"] for event in events if event["name"].startswith("batch of step")]
    assert sorted(steps) == list(range(len(steps)))
    assert sorted(one["step"] for one in made) == steps
    assert all(one["queued_ms"] >= 0 for one in made)
    assert sum(one["bytes"] for one in made) > 0
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert [name for name in named if name.endswith("batches")] == [
        f"worker {worker}: batches" for worker in range(max(1, how.get("num_workers", 0)))
    ]


def test_requests_are_slices_with_shard_host_and_bytes(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, COUNTS)
    events = traced(batches(shards), tmp_path / "trace.json")
    asked = [event for event in events if "object" in event.get("args", {})]
    assert sorted(event["args"]["object"] for event in asked) == sorted(shards * 2)
    assert {event["args"]["host"] for event in asked} == {"file"}
    assert [event["args"]["bytes"] for event in asked] == [
        Path(event["args"]["object"]).stat().st_size for event in asked
    ]


def test_the_keys_of_a_batch_have_a_digest_that_another_run_of_the_same_order_has(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, COUNTS)
    runs = []
    for workers in (0, 2):
        events = traced(by_index(shards), tmp_path / "trace.json", num_workers=workers, seed=3)
        made = (event["args"] for event in events if event["name"].startswith("batch of step"))
        runs.append({one["step"]: one["keys"] for one in made if one["step"] < 9})  # of one epoch
    assert runs[0] == runs[1]
    assert len(set(runs[0].values())) == 9


def test_the_ring_keeps_the_last_batches(tmp_path: Path) -> None:
    with ais_loader(batches(example_shards(tmp_path, COUNTS)), trace=3) as loader:
        assert len(list(loader)) == 9
        loader.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    assert [event["args"]["step"] for event in events if event["name"] == "wait for data"] == [6, 7, 8]


@pytest.mark.ci
def test_the_profiler_of_torch_has_spans(tmp_path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        ais_loader(batches(example_shards(tmp_path, COUNTS)), trace=True) as loader,
        torch.profiler.profile(activities=activities) as profile,
    ):
        list(loader)
    spans = [event for event in profile.events() if event.name == "torchdata_ais.next_batch"]
    assert len(spans) == 10  # the ninth, and the end


def test_without_trace_nothing_is_kept(tmp_path: Path) -> None:
    with ais_loader(batches(example_shards(tmp_path, COUNTS))) as loader:
        list(loader)
        with pytest.raises(UsageError, match="keeps no records"):
            loader.trace(tmp_path / "trace.json")
        with pytest.raises(UsageError, match="keeps no records"):
            loader.report()


def test_a_disk_that_takes_no_more_is_said_and_leaves_no_half_file(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    shards = example_shards(tmp_path / "shards", COUNTS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ais_loader(batches(shards), trace=True) as loader:
        given = iter(loader)
        next(given)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        try:
            with pytest.raises(LoaderError, match="File too large"):
                loader.trace(tmp_path / "trace.json")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(list(given)) == 8  # the training goes on
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_dev_full_is_a_full_disk(tmp_path: Path) -> None:
    with ais_loader(batches(example_shards(tmp_path, COUNTS)), trace=True) as loader:
        list(loader)
        with pytest.raises(LoaderError, match="cannot be written"):
            loader.trace("/proc/trace.json")


@given(st.lists(st.floats(1.01e-6, 1e5), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_of_a_sketch_is_within_its_error(values: list[float], share: float) -> None:
    whole, parts = Sketch(), [Sketch(), Sketch()]
    for number, value in enumerate(values):
        whole.add(value)
        parts[number % 2].add(value)
    exact = sorted(values)[math.floor(share * (len(values) - 1))]
    assert whole.quantile(share) == pytest.approx(exact, rel=ERROR * 1.01)
    assert parts[0].merge(parts[1]).counts == whole.counts
    assert len(whole.counts) <= 640
