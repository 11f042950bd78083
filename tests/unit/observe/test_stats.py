"""What stages count and measure in one process, and what `stats` makes of it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from torchdata_ais import AISFileLoader, AISSourceLister, as_dataset, explain, stats
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders import Stats, ais_loader, merge_reports, with_stats
from torchdata_ais.observe.collect import report_of
from torchdata_ais.pipes.base.meter import Meter, iterate, meter_of, metered
from torchdata_ais.testing import example_shards, write_shard


def chain() -> Any:
    return AISSourceLister(example_shards()).shuffle().load_tar().group_samples().decode()


def slow(sample: Any) -> Any:
    time.sleep(0.05)  # much more than the other stages take, on a busy machine too
    return sample


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 500, 3000])
def test_metering_changes_no_item(length: int) -> None:
    assert list(metered(iter(range(length)), Meter())) == list(range(length))


def test_a_metered_iterator_takes_no_item_ahead() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(2000):
            taken.append(number)
            yield number

    for number in metered(numbers(), Meter()):
        assert taken[-1] == number


def test_closing_a_metered_iterator_closes_what_it_reads() -> None:
    closed = []

    def numbers() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.append(True)

    items: Any = metered(numbers(), Meter())
    for _ in range(100):  # into a block that is not timed
        next(items)
    items.close()
    assert closed
    assert list(items) == []


def test_an_error_passes_and_ends_the_items() -> None:
    def numbers() -> Iterator[int]:
        yield from range(100)
        raise KeyError("x")

    items = metered(numbers(), Meter())
    with pytest.raises(KeyError):
        list(items)
    assert list(items) == []


def test_items_are_exact_over_epochs_whatever_is_timed() -> None:
    pipe = chain().shuffled(100).batched(4)
    for epochs in (1, 2, 3):
        list(pipe)
        report = stats(pipe)
        assert [report[name].items for name in ("list_ais", "load_tar", "decode", "batched")] == [
            3 * epochs, 6 * epochs, 6 * epochs, 2 * epochs,
        ]  # fmt: skip


def test_bytes_and_first_bytes_are_of_the_shards_read() -> None:
    pipe = chain()
    list(pipe)
    loader = stats(pipe)["load_tar"]
    assert loader.bytes == sum(Path(shard).stat().st_size for shard in example_shards())
    assert loader.first_byte_ms is not None
    assert loader.held == 0
    assert loader.held_max > 0


def test_open_shards_are_counted_before_they_close() -> None:
    pipe = chain()
    items = iter(pipe)
    next(items)
    assert stats(pipe)["load_tar"].bytes > 0
    del items


def test_time_adds_up_and_the_slow_stage_is_named() -> None:
    pipe = chain().map_sample(slow).to_tuple("cls")
    list(pipe)
    report = stats(pipe)
    assert report["map_sample"].own_s >= 0.3
    for stage in report.stages:
        assert stage.own_s + stage.wait_s == pytest.approx(stage.seconds)
        assert min(stage.own_s, stage.wait_s, stage.blocked_s, stage.network_s) >= 0
    assert report.advice.startswith("map_sample-bound: ")
    assert str(report).endswith(report.advice)


def test_torchs_own_map_counts_with_the_stage_behind_it() -> None:
    pipe = chain().map(slow).to_tuple("cls")
    list(pipe)
    assert stats(pipe).advice.startswith("map+to_tuple-bound: ")
    assert not stats(pipe)["map"].metered


def test_a_slow_loop_is_named_as_the_bottleneck() -> None:
    pipe = chain()
    for sample in pipe:
        slow(sample)
        slow(sample)
    assert stats(pipe).advice.startswith("loop-bound: ")


def test_skips_are_counted_by_class_with_named_examples(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.cls": b"1", "b.cls": b"no number", "c.cls": b"3"})
    pipe = AISFileLoader([shard]).group_samples().decode(on_error="skip")
    assert len(list(pipe)) == 2
    report = stats(pipe)
    assert report["decode"].skipped == report.skipped == {"DecodeError": 1}
    assert "'b'" in report["decode"].examples[0]
    assert "skipped by decode: DecodeError" in str(report)
    assert 'error="DecodeError"} 1' in report.to_prometheus()


def test_a_copy_of_a_stage_has_counted_nothing() -> None:
    pipe = chain()
    list(pipe)
    copy = pickle.loads(pickle.dumps(pipe))
    assert stats(copy)["decode"].items == 0
    assert str(stats(copy)).endswith("nothing was read yet")


def test_reports_of_ranks_add_up() -> None:
    first, second = chain(), chain()
    list(first)
    list(second)
    report = Stats(merge_reports([stats(first).to_dict(), stats(second).to_dict()]))
    assert report.processes == 2
    assert report["decode"].items == 12
    with pytest.raises(UsageError, match="different pipes"):
        merge_reports([report_of(first), report_of(first.to_tuple("cls"))])
    with pytest.raises(UsageError, match="Iterate the loader first"):
        merge_reports([])


def test_prometheus_lines_are_well_formed() -> None:
    pipe = chain()
    list(pipe)
    lines = stats(pipe).to_prometheus(rank='a"b').splitlines()
    assert 'torchdata_ais_items_total{rank="a\\"b",stage="decode",number="5"} 6' in lines
    for line in lines:
        if not line.startswith("#"):
            float(line.rpartition(" ")[2])


def test_the_pipe_under_torchs_loader_is_found_in_this_process() -> None:
    pipe = chain()
    loader = DataLoader(as_dataset(pipe), batch_size=None)
    assert len(list(loader)) == 6
    assert stats(loader)["decode"].items == 6


def test_torchs_workers_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"ais_loader\(pipe, num_workers=N\)"):
        stats(DataLoader(chain(), batch_size=None, num_workers=2))
    with pytest.raises(UsageError, match="neither a loader nor a pipe"):
        stats(3)


def test_a_callback_gets_stats_between_batches_and_at_the_end() -> None:
    seen: list[int] = []
    with ais_loader(
        chain().batched(2), on_stats=lambda r: seen.append(r["decode"].items), stats_every=1e-9
    ) as loader:
        for _ in loader:
            pass
    assert seen == [2, 4, 6, 6]
    assert list(with_stats([1, 2], chain(), lambda _: None)) == [1, 2]


def test_an_in_process_loader_keeps_its_counts_after_close() -> None:
    with ais_loader(chain().batch(2)) as loader:
        list(loader)
    report = loader.stats()
    assert (report["batch"].items, report["decode"].items) == (3, 6)


def test_looking_at_a_pipe_writes_nothing_into_it_and_a_copy_has_measured_nothing() -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples().map(dict)
    before = set(vars(pipe))
    stats(pipe)
    assert set(vars(pipe)) == before
    assert len(list(iterate(pipe))) == 6
    assert meter_of(pipe).begun
    assert not meter_of(pickle.loads(pickle.dumps(pipe))).begun


def test_a_stage_that_has_ended_holds_no_item() -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode()
    running = iter(pipe)
    next(running)
    assert pipe.busy_with()["key"]
    running.close()
    assert pipe.busy_with() == {}
    assert len(list(pipe)) == 6
    assert pipe.busy_with() == {}


def one_in_three(sample: Any) -> bool:
    return bool(sample["cls"] == 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_stats_show_what_each_stage_took_and_returned(workers: int) -> None:
    pipe = (
        AISSourceLister(example_shards(counts=(6, 3)))
        .load_tar()
        .group_samples()
        .decode()
        .select(one_in_three)
    )
    with ais_loader(pipe.to_tuple("cls").batched(2), num_workers=workers) as loader:
        for epoch in (1, 2):
            batches = list(loader)
            report = loader.stats()
            assert report["select"].taken == 9 * epoch
            chosen = sum(len(batch) for (batch,) in batches)
            assert report["select"].items == chosen * epoch
            assert report["batched"].taken == chosen * epoch
        row = next(line.split() for line in str(report).splitlines() if line.startswith("select"))
        assert row[1:3] == ["18", str(2 * chosen)]


def test_explain_shows_what_a_pipe_has_read_so_far() -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode().select(one_in_three)
    assert "counts so far" not in str(explain(pipe))
    chosen = len(list(pipe))
    said = str(explain(pipe))
    assert f"select(one_in_three) took 6, returned {chosen}" in said


def test_stats_name_the_ranks_they_cover() -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples().batched(2)
    with ais_loader(pipe, rank=1, world_size=3) as loader, torch.no_grad():
        list(loader)
        mine = loader.stats()
    assert "These are the counts of rank 1 of 3" in str(mine)
    others = [{**mine.to_dict(), "ranks": [rank]} for rank in (0, 2)]
    assert "of ranks 0, 1 of 3" in str(Stats(merge_reports([mine.to_dict(), others[0]])))
    assert "These are" not in str(Stats(merge_reports([mine.to_dict(), *others])))
    assert "These are" not in str(stats(pipe))
