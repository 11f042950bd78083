"""What all processes of a rank were doing, in one file, when something goes wrong; and who looks at a running job."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from torchdata_ais import AISSourceLister, StoreOptions, ais_loader
from torchdata_ais.cli import app
from torchdata_ais.errors import StallError, UsageError
from torchdata_ais.loaders import observing
from torchdata_ais.local import LocalCluster
from torchdata_ais.local.server.faults import Delay
from torchdata_ais.observe.diagnosis import run_folder
from torchdata_ais.observe.diagnosis.flight_record import Flight, explain_flight, read_flight
from torchdata_ais.observe.diagnosis.rank_summary import RankSummary
from torchdata_ais.observe.diagnosis.rank_table import readiness_of
from torchdata_ais.observe.diagnosis.run_folder import read_run
from torchdata_ais.testing import example_shards, shard_bytes


def stand_still(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"] == "00003":
        time.sleep(60)
    return sample


def fail(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"] == "00003":
        raise ValueError("a bad sample")
    return sample


def loader_of(folder: Path, edit: Any = None, **how: Any) -> Any:
    shards = example_shards(folder, (6, 6))
    pipe: Any = AISSourceLister(shards).load_tar().group_samples()
    pipe = pipe if edit is None else pipe.map_sample(edit)
    return ais_loader(pipe.decode().to_tuple("cls").batched(2), run_dir=folder / "run", **how)


def the_flight(folder: Path) -> Flight:
    (path,) = (folder / "run").glob("flight-*.json")
    return read_flight(path)


@pytest.mark.ci
def test_a_stall_puts_the_stacks_of_all_processes_on_record(tmp_path: Path) -> None:
    with (
        loader_of(tmp_path, stand_still, num_workers=2, stall_after=1.2) as loader,
        pytest.raises(StallError),
    ):
        list(loader)
    flight = the_flight(tmp_path)
    assert flight.why.startswith("StallError")
    assert [part.name for part in flight.processes] == [
        "main process",
        "worker process 0",
        "worker process 1",
    ]
    assert all(part.stacks and not part.trouble for part in flight.processes)
    assert "stand_still" in flight.processes[1].stacks
    sentences = explain_flight(flight)
    assert not any("\n" in line or "not waiting" in line for line in sentences)
    assert sentences[-1].startswith("no request is late")
    assert any("worker process 0" in line for line in sentences)
    assert any("stand_still" in line and "test_flight_record.py" in line for line in sentences)


@pytest.mark.parametrize("how", [{}, {"num_workers": 1}], ids=str)
def test_an_error_is_put_on_record_and_the_command_explains_it(tmp_path: Path, how: dict[str, Any]) -> None:
    with loader_of(tmp_path, fail, **how) as loader, pytest.raises(ValueError, match="a bad sample"):
        list(loader)
    (path,) = (tmp_path / "run").glob("flight-*.json")
    said = CliRunner().invoke(app, ["doctor", str(path)])
    assert said.exit_code == 0, said.output
    assert "why: ValueError" in said.output
    assert "rank 0 of 1" in said.output
    assert ("worker process 0 (pid" in said.output) == bool(how)
    (summary,), notes = read_run(tmp_path / "run")
    assert summary.ended.startswith("failed: ValueError")
    assert any("failed: ValueError" in note for note in notes)


@pytest.mark.ci
def test_a_request_without_an_answer_is_named_with_its_host(tmp_path: Path) -> None:
    with LocalCluster(targets=1) as cluster:
        bucket = cluster.client().bucket("b").create()
        bucket.object("s.tar").get_writer().put_content(shard_bytes({"a.cls": b"1", "b.cls": b"2"}))
        cluster.faults.add(Delay(20), object="s.tar", at_proxy=False)
        pipe = AISSourceLister(["ais://b/s.tar"], cluster=StoreOptions(cluster.endpoint))
        pipe = pipe.load_tar().group_samples().decode().to_tuple("cls").batched(1)
        with ais_loader(pipe, num_workers=1, stall_after=2, run_dir=tmp_path / "run") as loader:
            with pytest.raises(StallError):
                list(loader)
        host = cluster.target_urls[0].removeprefix("http://")
        flight = the_flight(tmp_path)
    (request,) = flight.processes[1].under_way
    assert (request.name, request.host, request.first_byte_s) == ("ais://b/s.tar", host, None)
    assert request.took_s is not None
    assert request.took_s > 1.5
    assert explain_flight(flight)[-1].startswith(f"look at {host} first: worker process 0 has waited")


@pytest.mark.ci
def test_a_stopped_worker_is_told_of_as_the_system_sees_it(tmp_path: Path) -> None:
    with loader_of(tmp_path, num_workers=1, prefetch=0, stall_after=1.0) as loader:
        given = iter(loader)
        next(given)
        (_, pid) = worker_of(tmp_path, loader)
        assert pid > 1
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StallError):
                list(given)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    flight = the_flight(tmp_path)
    assert "stopped by a signal" in flight.processes[1].trouble
    assert explain_flight(flight)[-1].startswith("look at worker process 0 (pid")


def worker_of(folder: Path, loader: Any) -> tuple[int, int]:
    """Return number and pid of the worker, as the report has them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for worker in loader.report().ranks[0].workers:
            if worker.pid:
                return worker.worker, worker.pid
        time.sleep(0.05)
    raise AssertionError("no worker has told")


def test_a_signal_puts_it_on_record_and_the_run_goes_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with loader_of(tmp_path, num_workers=1) as loader:
        given = iter(loader)
        next(given)
        signal.raise_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 60
        while not list((tmp_path / "run").glob("flight-*.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(list(given)) == 5
    assert the_flight(tmp_path).why == "it was requested by SIGUSR2"
    assert signal.getsignal(signal.SIGUSR2) is before


def test_the_signal_is_for_all_loaders_and_kept_for_the_last(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with loader_of(tmp_path / "b") as second:
        with loader_of(tmp_path / "a") as first:
            next(iter(first))
            given = iter(second)
            next(given)
        assert signal.getsignal(signal.SIGUSR2) not in (before, signal.SIG_DFL)
        signal.raise_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 60
        while not list((tmp_path / "b" / "run").glob("flight-*.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert the_flight(tmp_path / "b").why == "it was requested by SIGUSR2"
    assert signal.getsignal(signal.SIGUSR2) is before


def test_a_loader_that_is_forgotten_is_not_kept_for_the_signal(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    loader = loader_of(tmp_path)
    try:
        list(loader)
        observing = weakref.ref(loader._observed())
        del loader
        gc.collect()
        assert observing() is None
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_many_open_descriptors_are_no_hindrance(tmp_path: Path) -> None:
    """Every tensor of a batch takes one: workers' sockets then have numbers that select() does not know."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 2000:
        pytest.skip("no more than a thousand descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2000, limits[0]), limits[1]))
    with contextlib.ExitStack() as undo:
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        undo.callback(lambda: [os.close(one) for one in many])
        with loader_of(tmp_path, num_workers=1) as loader:
            assert len(list(loader)) == 6
            assert worker_of(tmp_path, loader)


def test_an_error_is_not_hidden_where_its_record_cannot_be_made(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def fail_without_descriptors(sample: dict[str, Any]) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        raise ValueError("a bad sample")

    with loader_of(tmp_path, fail_without_descriptors) as loader:
        try:
            with pytest.raises(ValueError, match="a bad sample"):
                list(loader)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def fail_with_a_secret(sample: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("no answer from https://user:hush@store.example/o?X-Amz-Signature=hush")


def test_no_secret_of_an_error_is_put_on_record(tmp_path: Path) -> None:
    with loader_of(tmp_path, fail_with_a_secret) as loader, pytest.raises(ValueError, match="no answer"):
        list(loader)
    assert all("hush" not in path.read_text() for path in (tmp_path / "run").iterdir())
    assert "store.example" in the_flight(tmp_path).why


SILENT = """
import threading, time

class Source:
    def records(self):
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            time.sleep(3600)
        return []

    def steps(self):
        self.on_started()
        yield from [(1, 0, None), (2, 0, None)]

asked = threading.Event()
"""

ENDS = """
import sys
sys.path.append(sys.argv[1])
from silent import Source, asked
from torchdata_ais.observe.diagnosis.readiness import RankRecorder

recorder = RankRecorder(8)
recorder.on_look = recorder.collect
source = Source()
given = recorder.watch(source.steps(), source)
next(given)
assert asked.wait(60)
"""


@pytest.mark.ci
def test_a_program_ends_while_workers_are_asked(tmp_path: Path) -> None:
    """At its end the iterator is closed when the thread that asks is no more, and holds its lock."""
    (tmp_path / "silent.py").write_text(SILENT)
    subprocess.run([sys.executable, "-c", ENDS, tmp_path], check=True, timeout=60)


def test_a_handler_of_the_program_stays(tmp_path: Path) -> None:
    heard: list[int] = []

    def hear(number: int, frame: object) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGUSR2, hear)
    try:
        with loader_of(tmp_path) as loader:
            for _ in loader:
                signal.raise_signal(signal.SIGUSR2)
        assert len(heard) == 6
        assert signal.getsignal(signal.SIGUSR2) is hear
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not list((tmp_path / "run").glob("flight-*.json"))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version":1}', b"\xff\xfe"])
def test_what_is_no_flight_record_is_said(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "flight.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="no flight record"):
        read_flight(path)
    assert CliRunner().invoke(app, ["doctor", str(path)]).exit_code == 2
    assert CliRunner().invoke(app, ["doctor", str(tmp_path / "missing")]).exit_code == 2


def tell(folder: Path, rank: int, **more: Any) -> RankSummary:
    summary = RankSummary(rank, 4, f"node{rank}", 100 + rank, told=time.time(), **more)
    for _ in range(20):
        summary.wait.add(0.2 if rank == 2 else 0.001)
        summary.loop.add(0.1)
    run_folder.RunFolder(folder).tell(summary)
    return summary


AGO = pytest.approx(100, abs=30)
"""Seconds since a file that was made 100 s old, on a machine that is busy."""


def seconds_of(before: str, text: str) -> float:
    """Return the seconds that follow `before` in a text."""
    found = re.search(rf"{before} (\d+\.\d) s", text)
    assert found is not None, text
    return float(found[1])


def test_watch_shows_a_row_a_rank_what_is_missing_and_who_is_silent(tmp_path: Path) -> None:
    for rank in (0, 2, 3):
        tell(tmp_path, rank)
    os.utime(tmp_path / "rank-00003.json", (time.time() - 100, time.time() - 100))
    (tmp_path / "rank-00007.json").write_bytes(b"{")
    page = tmp_path / "page.html"
    said = CliRunner().invoke(app, ["watch", str(tmp_path), "--page", str(page)])
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["0", "node0"], ["2", "node2"], ["3", "node3"]]
    assert "nothing is known of rank 1" in said.output
    assert seconds_of(r"rank 3 on node3 \(pid 103\) has been silent for", said.output) == AGO
    assert "rank-00007.json is damaged" in said.output
    assert lines[-1].startswith("rank 3 on node3 holds the job up: nothing was heard of it")
    text = page.read_text()
    assert text.count("<rect") == 2 * 3 * (3 + 1)  # of each rank, and of the legend
    assert "rank 3 on node3 holds the job up" in text
    assert "<script" not in text
    told = json.loads(CliRunner().invoke(app, ["watch", str(tmp_path), "--json"]).output)
    assert (told["cause"], told["rank"], told["missing"]) == ("silent", 3, [1])


def test_clocks_that_differ_are_said_and_change_nothing(tmp_path: Path) -> None:
    for rank in range(4):
        tell(tmp_path, rank)
    data = json.loads((tmp_path / "rank-00001.json").read_bytes())
    data["told"] += 3600
    (tmp_path / "rank-00001.json").write_text(json.dumps(data))
    ranks, notes = read_run(tmp_path)
    assert len(ranks) == 4
    assert [note.partition(":")[0] for note in notes] == [
        "the clock of node1 differs by 3600.0 s from that of this folder"
    ]


def test_clocks_are_compared_with_the_right_files_where_others_are_damaged(tmp_path: Path) -> None:
    for rank in (1, 2, 3):
        tell(tmp_path, rank)
    (tmp_path / "rank-00000.json").write_bytes(b"{")
    os.utime(tmp_path / "rank-00000.json", (time.time() - 5000, time.time() - 5000))
    _, notes = read_run(tmp_path)
    assert [note.partition(" ")[0] for note in notes] == ["rank-00000.json"]


def test_what_is_no_file_of_a_rank_is_left_out_and_said(tmp_path: Path) -> None:
    for rank in range(4):
        tell(tmp_path, rank)
    (tmp_path / "rank-00005.json").mkdir()
    (tmp_path / "rank-00006.json").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "rank-00007.json")
    (tmp_path / "rank-00008.json").write_bytes((tmp_path / "rank-00002.json").read_bytes())
    with (tmp_path / "rank-00009.json").open("wb") as large:
        large.truncate(1 << 40)
    ranks, notes = read_run(tmp_path)
    assert [one.rank for one in ranks] == [0, 1, 2, 3]
    assert [note.partition(" ")[0] for note in notes] == [f"rank-0000{n}.json" for n in (5, 6, 7, 8, 9)]
    assert "is of rank 2, and left out" in notes[3]


def test_files_of_an_earlier_run_with_other_ranks_are_left_out(tmp_path: Path) -> None:
    for rank in range(6):
        summary = RankSummary(rank, 6, "node", 7)
        run_folder.RunFolder(tmp_path).tell(summary)
        os.utime(tmp_path / f"rank-0000{rank}.json", (time.time() - 90_000, time.time() - 90_000))
    for rank in range(4):
        tell(tmp_path, rank)
    ranks, notes = read_run(tmp_path)
    assert [one.rank for one in ranks] == [0, 1, 2, 3]
    (note,) = notes
    assert note.startswith("2 files (rank-00004.json, ...) are of another run, with 6 ranks, and left out")


def test_a_rank_that_tells_nothing_any_more_is_the_one_that_holds_the_job_up(tmp_path: Path) -> None:
    for rank in range(4):
        tell(tmp_path, rank)
    os.utime(tmp_path / "rank-00003.json", (time.time() - 100, time.time() - 100))
    verdict = readiness_of(*read_run(tmp_path)).verdict
    assert (verdict.cause, verdict.rank, verdict.node) == ("silent", 3, "node3")
    assert seconds_of("nothing was heard of it for", verdict.sentence) == AGO
    for rank in range(3):
        os.utime(tmp_path / f"rank-0000{rank}.json", (time.time() - 50, time.time() - 50))
    verdict = readiness_of(*read_run(tmp_path)).verdict
    assert (verdict.cause, verdict.rank) == ("silent", None)
    assert verdict.sentence.startswith("no rank has told anything for ")
    assert seconds_of("no rank has told anything for", verdict.sentence) == pytest.approx(50, abs=30)


def test_a_clock_of_the_watcher_that_is_behind_hides_no_silent_rank(tmp_path: Path) -> None:
    ahead = time.time() + 500
    for rank in range(4):
        tell(tmp_path, rank)
        os.utime(tmp_path / f"rank-0000{rank}.json", (ahead - 60 * (rank == 2), ahead - 60 * (rank == 2)))
    verdict = readiness_of(*read_run(tmp_path)).verdict
    assert (verdict.cause, verdict.rank) == ("silent", 2)


@pytest.mark.ci
@pytest.mark.parametrize("how", [{}, {"num_workers": 2}], ids=str)
def test_a_first_batch_that_never_comes_is_told_of_and_put_on_record(
    tmp_path: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "STALL_S", 3.0)
    monkeypatch.setattr(run_folder, "EVERY_S", 1.0)
    with loader_of(tmp_path, wait_at_first, **how) as loader:
        given = iter(loader)
        thread = threading.Thread(target=next, args=(given,))
        thread.start()
        deadline = time.monotonic() + 60
        while not list((tmp_path / "run").glob("flight-*.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        found = readiness_of(*read_run(tmp_path / "run"))
        (tmp_path / "go on").touch()
        thread.join(60)
        assert len(list(given)) == 5
    flight = the_flight(tmp_path)
    assert flight.why.startswith("no batch came for")
    who = "worker process [01]" if how else "the main process"
    assert re.search(f"no request is late: {who} has been at one batch", explain_flight(flight)[-1])
    assert explain_flight(flight)[-1].endswith("stands in map_sample(wait_at_first)")
    assert found.verdict.cause in ("decode", "unknown")  # it has not waited for long yet


def wait_at_first(sample: dict[str, Any]) -> dict[str, Any]:
    folder = Path(sample["__url__"]).parent
    while not (folder / "go on").exists():
        time.sleep(0.02)
    return sample


def test_a_folder_that_nobody_told_anything_in_is_said(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert said.exit_code == 2
    assert "No rank has told anything" in said.output


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Have writing into the folder fail, for root as well: it is no folder any more."""
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.write_bytes(b"")
    try:
        yield
    finally:
        folder.unlink()
        moved.rename(folder)


def test_a_folder_that_cannot_be_written_to_any_more_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with loader_of(tmp_path) as loader:
        given = iter(loader)
        next(given)
        with unwritable(tmp_path / "run"):
            assert len(list(given)) == 5
            assert len(list(loader)) == 6
    told = [record.message for record in caplog.records if "is not told of any more" in record.message]
    assert len(told) == 1


HOSTILE = {
    "cut": lambda good: good[: len(good) // 2],
    "empty": lambda good: b"",
    "no JSON": lambda good: b"\x7fELF\0\xff",
    "deep": lambda good: b'{"a":' * 100_000,
    "no time of day": lambda good: good.replace(b'"at":', b'"at":1e300,"was":'),
    "before all times": lambda good: good.replace(b'"at":', b'"at":-1e18,"was":'),
    "a wait of ages": lambda good: good.replace(b'"waiting_s":', b'"waiting_s":1e308,"was":'),
    "a bucket there is none of": lambda good: good.replace(
        b'"wait":', b'"wait":[{"99999999":1},1e300],"was":'
    ),
    "a count below nothing": lambda good: good.replace(b'"wait":', b'"wait":[{"5":-3},-1.0],"was":'),
    "a billion ranks": lambda good: good.replace(b'"ranks":', b'"ranks":1000000000,"was":'),
    "a rank below nothing": lambda good: good.replace(b'"rank":0', b'"rank":-5'),
}


def forged(path: Path, name: str) -> Path:
    path.write_bytes(HOSTILE[name](path.read_bytes()))
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_cut_foreign_or_forged_is_told_in_a_sentence(tmp_path: Path, name: str) -> None:
    summary = RankSummary(0, 1, "node", 7)
    summary.wait.add(0.1)
    flight, run = tmp_path / "flight-0.json", tmp_path / "run"
    run.mkdir()
    flight.write_bytes(msgspec.json.encode(Flight(1, "why", time.time(), summary, [], [])))
    told = run / "rank-00000.json"
    told.write_bytes(msgspec.json.encode(summary))
    for words in (["doctor", str(forged(flight, name))], ["watch", str(forged(told, name).parent)]):
        said = CliRunner().invoke(app, words)
        assert isinstance(said.exception, SystemExit | None), said.exception
        assert said.exit_code in (0, 2)
        assert 0 < len(said.output) < 1000
