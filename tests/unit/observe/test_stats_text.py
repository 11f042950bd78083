"""The sentence under `stats`: the right bottleneck, and a knob that can be turned."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, stats
from torchdata_ais.observe.stats import StageReport, Stats, merge_reports
from torchdata_ais.observe.stats_text import advice, table
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.testing import example_shards


def stage(name: str, own_s: float = 0.0, **values: Any) -> StageReport:
    return StageReport(name, values.pop("text", f"{name}()"), [], True, own_s=own_s, **values)


def sentence(*stages: StageReport, busy_s: float = 10.0) -> str:
    return advice(stages, busy_s, 0.0, in_workers=True)


def test_a_run_of_less_than_a_second_is_called_too_short() -> None:
    assert "only 0.5 s were measured" in sentence(stage("decode", 0.4), busy_s=0.5)
    assert "measured" not in sentence(stage("decode", 4.0))


def test_threads_are_not_advised_where_they_are_used() -> None:
    assert "decode(threads=2)" in sentence(stage("decode", 9.0))
    assert "threads" not in sentence(stage("decode", 9.0, text="decode(threads=4)"))


def test_shuffling_is_moved_before_decode_only_if_it_stands_behind_it() -> None:
    assert "before decode" in sentence(stage("decode"), stage("shuffled", 9.0))
    assert "before decode" not in sentence(stage("shuffled", 9.0), stage("decode"))


def test_a_function_of_torchs_map_is_named_with_the_stage_that_can_be_timed() -> None:
    said = sentence(stage("shuffled", 9.0, unmetered_above=["map"]))
    assert said.startswith("map+shuffled-bound: 90% of worker time, map included (.map_sample(f) is timed")


@pytest.mark.parametrize(("first_byte_ms", "says"), [(400.0, "first byte of each object"), (2.0, "bench")])
def test_slow_first_bytes_are_told_from_a_slow_network(first_byte_ms: float, says: str) -> None:
    said = sentence(stage("load_tar", network_s=9.0, opened=20, first_byte_ms=first_byte_ms))
    assert said.startswith("network-bound: 90% of worker time waiting for bytes")
    assert says in said


def test_retries_are_pointed_out_before_more_workers_are() -> None:
    assert "4 requests were made again" in sentence(stage("load_tar", network_s=9.0, retries=4))


def test_workers_without_a_shard_are_counted_over_any_number_of_merges() -> None:
    busy = AISSourceLister(example_shards()).load_tar().group_samples()
    assert len(list(busy)) == 6
    idle = AISSourceLister(example_shards()).load_tar().group_samples()
    reports = [{**stats(pipe).to_dict(), "in_workers": True} for pipe in (busy, idle, idle)]
    report = Stats(merge_reports([merge_reports(reports), merge_reports(reports[:1])]))
    assert (report.idle, report.processes) == (2, 4)
    assert "2 of 4 workers got no shard" in report.advice
    assert Stats(merge_reports(reports[:1])).idle == 0


def test_one_process_has_no_each() -> None:
    assert "1 process, 2.0 s; so it is" in table([stage("decode")], 1, 2.0, "so it is")
    assert "2 processes, 2.0 s each; so" in table([stage("decode")], 2, 2.0, "so it is")


STAGES = sorted(name for name in IterDataPipe.functions if name not in ("batch", "unbatch"))


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("in_workers", [True, False])
def test_advice_names_options_and_functions_that_the_stage_has(name: str, in_workers: bool) -> None:
    maker = IterDataPipe.functions[name]
    options = set(inspect.signature(maker).parameters)
    for own_s, network_s in ((9.0, 0.0), (0.0, 9.0)):
        for opened, first_ms in ((0, None), (9, 900.0), (9, 1.0)):
            stage = StageReport(
                name,
                f"{name}()",
                [],
                True,
                own_s=own_s,
                network_s=network_s,
                opened=opened,
                first_byte_ms=first_ms,
            )
            text = advice([stage], 10.0, 0.0, in_workers=in_workers)
            for called, option in re.findall(r"(\w+)\((\w+)=", text):
                assert option in inspect.signature(IterDataPipe.functions[called]).parameters, text
            if "its function" in text:
                assert options & {"f", "fn", "fs", "predicate", "associator", "filter_fn", "function"}, text


@pytest.mark.parametrize("shuffle", ["samples", "runs"])
def test_the_advice_for_reading_by_index_can_be_followed(shuffle: str) -> None:
    stage = StageReport(
        "read_samples", "read_samples()", [], True, network_s=9.0, opened=9, first_byte_ms=1.0
    )
    text = advice([stage], 10.0, 0.0, in_workers=True)
    (argument,) = re.findall(r"read_samples\((prefetch_bytes=\d+ << \d+)\)", text)
    value = int(eval(argument.partition("=")[2], {}))
    index = SampleIndex.build(example_shards())
    assert len(list(AISSampleReader(index, shuffle=shuffle, prefetch_bytes=value))) == len(index)  # type: ignore[arg-type]
