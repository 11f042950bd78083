"""Pictures of pipes, and what is told before a run."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais import (
    AISObjectLoader,
    AISSourceLister,
    RandomMix,
    SampleDecoder,
    StoreOptions,
    ais_loader,
    draw,
    explain,
    mermaid,
    pipes,
)
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.reading.runs import KeySet
from torchdata_ais.testing import example_shards
from torchdata_ais.urls import ObjectURL


def chain() -> Any:
    return (
        AISSourceLister(example_shards()).shuffle().load_tar().group_samples()
        .shuffled(50).decode(threads=2).to_tuple("cls").batched(4)
    )  # fmt: skip


def test_a_drawing_has_a_line_a_stage_with_marks_and_bounds() -> None:
    lines = draw(chain()).splitlines()
    assert [line.partition("(")[0].split()[0] for line in lines] == [
        "list_ais", "shuffle", "sharding_filter", "load_tar", "group_samples", "shuffled", "decode", "to_tuple",
        "batched",
    ]  # fmt: skip
    assert lines[2].endswith("splits over ranks and workers")
    assert "position saved" in lines[3]
    assert "32 MiB + 1 x" in lines[3]
    assert "places saved" in lines[5]
    assert lines[5].endswith("50 items")
    assert lines[6].endswith("32 samples")


def test_promise_7_decode_threads_hold_no_more_samples_than_drawn() -> None:
    taken = 0

    def samples() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield {"__key__": str(number), "cls": b"1"}

    decoder = SampleDecoder(samples(), threads=2)
    held = [taken - given for given, _ in enumerate(decoder)]
    assert draw(decoder).endswith(f"{max(held)} samples")


def test_branches_are_indented_above_the_stage_that_joins_them() -> None:
    first, second = (AISSourceLister(example_shards()[:1]).load_tar().group_samples() for _ in range(2))
    lines = draw(RandomMix(first, second)).splitlines()
    assert [line[:3] for line in lines] == ["|- ", "|  ", "|  ", "|  "] * 2 + ["mix"]
    assert "no checkpoint" in lines[-1]


def test_a_token_is_in_no_picture() -> None:
    options = StoreOptions("http://h:1", "s3cret")
    pipe = AISSourceLister("ais://b/", cluster=options).load_tar(cluster=options)
    for text in (draw(pipe), mermaid(pipe), pipe._repr_html_(), repr(pipe)):
        assert "s3cret" not in text


def test_mermaid_quotes_what_would_end_a_label() -> None:
    text = mermaid(AISSourceLister('a"b<c>.tar').load_tar())
    assert text.count('"') == 2 * len([line for line in text.splitlines() if "[" in line])
    assert "s0 --> s1" in text


def test_a_notebook_gets_a_table_without_markup_of_the_data() -> None:
    html = AISSourceLister("<script>.tar").load_tar()._repr_html_()
    assert "<script>" not in html
    assert html.count("<tr>") == 4


def test_explain_counts_shards_workers_and_memory() -> None:
    run = explain(chain(), num_workers=2, world=2)
    assert (run.shards, run.requests, run.instances, run.shards_each, run.idle_workers) == (
        3,
        3,
        4,
        (0, 1),
        1,
    )
    assert run.memory_bytes == 2 * ((32 << 20) + 2 * (1 << 20))
    assert "1 of 4 workers get no shard" in str(run)
    assert "checkpoints: can be taken" in str(run)


def test_explain_reads_nothing_and_costs_no_epoch() -> None:
    pipe = chain()
    first = [batch[0].tolist() for batch in chain()]
    explain(pipe)
    explain(pipe)
    assert [batch[0].tolist() for batch in pipe] == first


def test_explain_says_what_does_not_mix_and_cannot_be_resumed() -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples()
    assert "order: the same in every epoch" in str(explain(pipe))
    mixed = RandomMix(pipe, AISSourceLister(example_shards()).load_tar().group_samples())
    assert "checkpoints: none can be taken: .mix_random() reads 2 pipes" in str(explain(mixed))
    assert explain(mixed).shards == 6


def test_explain_says_so_where_a_shuffle_stands_too_late_for_checkpoints() -> None:
    samples = AISSourceLister(example_shards()).load_tar().group_samples()
    late = str(explain(samples.to_tuple("cls").shuffled(5)))
    assert "checkpoints: none can be taken: shuffled(5) holds items of to_tuple('cls')" in late
    assert "checkpoints: can be taken" in str(explain(samples.shuffled(5).to_tuple("cls")))


@pytest.mark.parametrize(("largest", "noted"), [(299, False), (300, True)])
def test_explain_notes_a_shard_of_twice_the_average_size(largest: int, noted: bool) -> None:
    urls = [
        ObjectURL(f"http://h:1/v1/objects/b/{number}.tar?provider=ais", size=size)
        for number, size in enumerate((100, 100, 100, largest))
    ]
    run = explain(IterableWrapper(urls).load_tar().group_samples())
    assert run.bytes == 300 + largest
    assert ("2.0 times the average" in str(run)) == noted


@pytest.mark.parametrize(("num_workers", "advised"), [(1, True), (3, False)])
def test_explain_advises_to_mix_shards_where_a_worker_reads_several(num_workers: int, advised: bool) -> None:
    assert ("load_tar(open_shards=4)" in str(explain(chain(), num_workers=num_workers))) == advised


def test_explain_refuses_a_pipe_that_reads_nothing() -> None:
    with pytest.raises(UsageError, match="reads anything"):
        explain(AISSourceLister(example_shards()))
    wrong: Any = [1]
    with pytest.raises(UsageError, match="this is a list"):
        explain(wrong)
    with pytest.raises(UsageError, match="num_workers=-1"):
        explain(chain(), num_workers=-1)


@pytest.mark.parametrize("use", [ais_loader, draw, explain])
def test_what_is_no_pipe_is_refused_in_words(use: Any) -> None:
    with pytest.raises(UsageError, match="pipe"):
        use([1, 2])


@pytest.mark.parametrize("name", pipes.__all__)
def test_promise_7_a_bound_is_stated_in_the_docstring_as_the_stage_says_it(name: str) -> None:
    kind = getattr(pipes, name)
    memory = (kind.__doc__ or "").partition("Memory:")[2].partition("\n\n    Raises:")[0]
    stages = [base for base in kind.__mro__ if base.__module__.startswith(pipes.__name__)]
    says_more = any("memory_bound" in vars(base) for base in stages if base not in (Pipe, Stage))
    assert ("memory_bound().text" in memory) == says_more  # and the doctest runs it
    if not says_more and issubclass(kind, Pipe):
        assert memory.split()[0] in ("One", "What"), (
            "a stage that holds more than an item overrides memory_bound"
        )


@pytest.mark.ci
def test_promise_7_what_is_fetched_ahead_is_within_the_bound_of_the_stage(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.bin" for number in range(8)]
    for file in files:
        file.write_bytes(bytes(1 << 18))
    options = StoreOptions(block_bytes=1 << 14, prefetch_bytes=1 << 16)
    loader = AISObjectLoader([str(file) for file in files], open_objects=8, cluster=options)
    program = (
        "import sys; from torchdata_ais import *; from torchdata_ais.store import held_now\n"
        "options = StoreOptions(block_bytes=1 << 14, prefetch_bytes=1 << 16)\n"
        "loader = AISObjectLoader(sys.argv[1:], open_objects=8, cluster=options)\n"
        "assert sum(len(data) for _, data in loader) == 8 << 18\n"
        "print(held_now()[1])"
    )
    command = [sys.executable, "-c", program, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 0 < int(done.stdout) <= loader.memory_bound().ahead == (1 << 16) + 8 * (1 << 14)


@pytest.mark.ci
def test_promise_7_a_key_is_remembered_in_22_bytes() -> None:
    tracemalloc.start()
    try:
        keys = KeySet()
        for number in range(50_000):
            keys.add(f"train/{number:08d}")
        assert tracemalloc.get_traced_memory()[1] < (2 << 20) + 22 * 50_000
    finally:
        tracemalloc.stop()
    assert "22 bytes a sample" in AISSourceLister("ais://b").load_tar().group_samples().memory_bound().text


def test_a_buffer_behind_batched_mixes_batches(tmp_path):
    pipe = AISSourceLister(example_shards(tmp_path, [3, 2])).load_tar().group_samples()
    wrong = str(explain(pipe.batched(2).shuffled(10)))
    assert "batches mixed in a buffer" in wrong
    assert ".shuffled(n) before .batched()" in wrong
    for right in (pipe.shuffled(10).batched(2), pipe.batched(2).unbatched().shuffled(10)):
        assert "samples mixed in a buffer" in str(explain(right))
