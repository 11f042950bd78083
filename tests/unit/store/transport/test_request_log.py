"""The list of this process's requests, where processes fork and names are odd."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.store import journal
from torchdata_ais.testing import example_shards, shard_bytes


def test_a_process_forked_while_another_thread_holds_the_lock_ends_its_parents_requests() -> None:
    request = journal().asking("a", "http://t1")
    request.__enter__()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with journal()._lock:
            held.set()
            over.wait(30)

    def child() -> None:
        request.__exit__(None, None, None)  # as when an iterator that it inherited is let go
        with journal().asking("b", "http://t1"):
            pass
        assert [one.name for one in journal().since(0)[0]] == ["b"]

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
        try:
            assert process.exitcode == 0
        finally:
            if process.is_alive():
                process.kill()
                process.join(60)
            process.close()
    finally:
        over.set()
        thread.join(60)
        request.__exit__(None, None, None)
    assert journal().since(0)[0][-1].name == "a"


@pytest.mark.parametrize("workers", [0, 1])
def test_keys_that_are_no_utf_8_have_a_digest(tmp_path: Path, workers: int) -> None:
    (tmp_path / "s.tar").write_bytes(shard_bytes({"a\udce9.cls": b"1", "b.cls": b"2"}))
    pipe: Any = AISSourceLister([str(tmp_path / "s.tar")]).load_tar().group_samples().decode()
    with ais_loader(pipe, num_workers=workers, trace=True) as loader:
        assert len(list(loader)) == 2
        loader.trace(tmp_path / "trace.json")


def test_a_name_that_is_no_utf_8_is_told_as_text() -> None:
    with journal().asking("caf\udce9.tar", "file") as record:
        assert msgspec.json.decode(msgspec.json.encode(record))[0] == r"caf\udce9.tar"


def test_a_plain_sample_has_a_record_though_not_each_has_counts(tmp_path: Path) -> None:
    pipe = AISSourceLister(example_shards(tmp_path, (300,))).load_tar().group_samples()
    with ais_loader(pipe, trace=True) as loader:
        assert len(list(loader)) == 300
        summary = loader.report().ranks[0]
        made = [batch for _, batch in loader._observed().recorder.made]
    assert [batch.number for batch in made] == list(range(300))
    counted = [batch for batch in made if batch.own_s]
    assert made[0] is counted[0]
    assert made[-1] is counted[-1]
    fast_s = sum(batch.made_s for batch in made)
    assert len(counted) <= 2 + fast_s / 2e-3
    assert sum(batch.bytes for batch in made) == (tmp_path / "shard-000.tar").stat().st_size
    assert summary.workers[0].batches == 299
