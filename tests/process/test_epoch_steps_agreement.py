"""``epoch_steps="shortest"`` and ``"pad"`` make no process group: what ranks ask the store, and who is missed."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import free_port, run_forked

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ais_loader
from torchdata_ais.errors import UsageError
from torchdata_ais.ranks import heartbeat
from torchdata_ais.ranks import steps as steps_of_ranks
from torchdata_ais.ranks.start_heartbeat import interval_of
from torchdata_ais.testing import example_shards

pytestmark = pytest.mark.kills

COUNTS = (24, 40, 32, 28)


class Counting(dist.Store):
    """A store of torch.distributed that counts what is asked of it, by the thread that asks.

    Args:
        inner: The real one.
        asked: What was counted so far, if this is one more connection to it.
    """

    def __init__(self, inner: Any, asked: list[tuple[str, str, str]] | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.asked = [] if asked is None else asked

    def _note(self, call: str, key: str) -> None:
        self.asked.append((threading.current_thread().name, call, key))

    def add(self, key: str, value: int) -> int:
        self._note("add", key)
        return self.inner.add(key, value)

    def set(self, key: str, value: Any) -> None:
        self._note("set", key)
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        self._note("get", key)
        return self.inner.get(key)

    def check(self, keys: list[str]) -> bool:
        self._note("check", keys[0])
        return self.inner.check(keys)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        self._note("compare_set", key)
        return self.inner.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        self._note("delete_key", key)
        return self.inner.delete_key(key)

    def set_timeout(self, timeout: Any) -> None:
        self.inner.set_timeout(timeout)

    def clone(self) -> Counting:
        return Counting(self.inner.clone(), self.asked)


def pipe_of(shards: list[str]) -> Any:
    return AISSourceLister(shards).load_tar().group_samples().decode().to_tuple("cls").batched(2)


@contextlib.contextmanager
def joined(rank: int, job: dict[str, Any]) -> Any:
    """Join the other ranks by gloo over a TCPStore, as launchers do, and yield the store."""
    store = dist.TCPStore("127.0.0.1", job["port"], job["ranks"], is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job["ranks"])
    try:
        yield store
    finally:
        dist.barrier()
        dist.destroy_process_group()


def counted(rank: int, job: dict[str, Any]) -> dict[str, Any]:
    with joined(rank, job) as group_store:
        groups: list[Any] = []
        real, dist.new_group = dist.new_group, lambda *given, **named: groups.append((given, named))
        store = Counting(dist.PrefixStore("counted", group_store))
        try:
            with ais_loader(pipe_of(job["shards"]), epoch_steps=job["steps"], store=store) as loader:
                epochs = []
                for _ in range(2):
                    batches = iter(loader)
                    given = [next(batches)]
                    asked_before = len(store.asked)
                    given += list(batches)
                    epochs.append(len(given))
                asked = store.asked[asked_before:]
        finally:
            dist.new_group = real
        return {"rank": rank, "epochs": epochs, "asked": asked, "groups": groups}


@pytest.mark.skipif(
    not hasattr(dist.TCPStore, "clone"), reason="this torch has one connection, which is polled"
)
@pytest.mark.quick(1)
@pytest.mark.parametrize(("steps", "most"), [("shortest", 12), ("pad", 20)])
def test_a_step_costs_a_rank_two_requests_and_none_in_the_path_of_the_batch(
    steps: str, most: int, tmp_path: Path
) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(
        counted, 4, tmp_path / "job", group=False, port=free_port(), shards=shards, steps=steps
    )
    for answer in answers:
        assert answer["value"]["epochs"] == [most, most], answer
        assert answer["value"]["groups"] == []
        by_thread: dict[str, list[Any]] = {}
        for thread, call, key in answer["value"]["asked"]:
            by_thread.setdefault(thread, []).append((call, key))
        # The last to ask tells the others and forgets the step before: three.
        assert len(by_thread.pop("rank-steps")) <= 3 * most, by_thread
        # The thread that trains: that it begins, has ended, and where it stands.
        own = by_thread.pop("rank-asks for MainThread")
        assert [key.split("/")[-2:] for _, key in own] == [["alive", str(answer["value"]["rank"])]], own
        # Signs of life, and the request that every rank makes now and then.
        assert sum(map(len, by_thread.values())) <= 4, by_thread
    asked = sum(thread == "rank-steps" for answer in answers for thread, _, _ in answer["value"]["asked"])
    assert asked <= 2 * 4 * most + 2 * most


def counted_while_training(rank: int, job: dict[str, Any]) -> dict[str, Any]:
    """Share the data of rank 0 or 1 with another process, and compare every batch."""
    with joined(rank, job) as group_store:
        groups = [dist.new_group(members) for members in ([0, 2], [1, 3])]
        store = Counting(dist.PrefixStore("counted", group_store))
        pipe: Any = AISSampleReader(SampleIndex.build(job["shards"])).to_tuple("cls").batched(1)
        with ais_loader(pipe, store=store, group=groups[rank % 2], replica_check=1) as loader:
            batches = iter(loader)
            next(batches)
            begun, first = time.monotonic(), len(store.asked)
            for _ in batches:
                time.sleep(0.05)
                took_s, last = time.monotonic() - begun, len(store.asked)
        return {"asked": store.asked[first:last], "at_end": store.asked[last:], "seconds": took_s}


@pytest.mark.ci
def test_while_training_a_rank_makes_one_request_now_and_then_beside_the_batches(tmp_path: Path) -> None:
    answers = run_forked(
        counted_while_training, 4, tmp_path / "job", group=False, port=free_port(),
        shards=example_shards(tmp_path, (70, 50)),
    )  # fmt: skip
    for rank, answer in enumerate(answers):
        value = answer["value"]
        assert {thread for thread, _, _ in value["asked"]} == {"rank-asks for rank-counts"}
        assert 2 <= len(value["asked"]) <= 1 + value["seconds"] / interval_of(rank, 4), value
        assert {call for _, call, _ in value["asked"]} == {"add", "compare_set"}
        assert len(value["at_end"]) <= 4, (
            value
        )  # what is left of the counts and the digests; and rank 0 closes


def by_hand(rank: int, shards: list[str], store: Any, given: dict[int, Any]) -> None:
    with ais_loader(
        pipe_of(shards), epoch_steps="pad", rank=rank, world_size=2, store=store, seed=1
    ) as loader:
        given[rank] = [len(list(loader)) for _ in range(2)], loader.repeated


def test_ranks_that_are_told_by_hand_step_together_over_any_store(tmp_path: Path) -> None:
    shards, given = example_shards(tmp_path, (3, 11)), {}
    store = dist.HashStore()
    threads = [threading.Thread(target=by_hand, args=(rank, shards, store, given)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {rank: steps for rank, (steps, _) in given.items()} == {0: [6, 6], 1: [6, 6]}
    assert sorted(repeated for _, repeated in given.values()) == [0, 4]


def test_ranks_that_cannot_ask_each_other_are_refused(tmp_path: Path) -> None:
    pipe = pipe_of(example_shards(tmp_path, (3,)))
    with ais_loader(pipe, epoch_steps="shortest", rank=0, world_size=2) as loader:
        with pytest.raises(UsageError, match="rank= without store= cannot"):
            next(iter(loader))


def train(rank: int, job: dict[str, Any]) -> int:
    """Train; rank 1 does something else after its third batch."""
    folder = Path(job["folder"])
    with ais_loader(pipe_of(job["shards"]), num_workers=job.get("workers", 0), epoch_steps="pad") as loader:
        steps = 0
        for _ in loader:
            steps += 1
            if rank != 1 or steps != 3:
                continue
            if job["what"] == "leave":
                break
            (folder / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP if job["what"] == "freeze" else signal.SIGKILL)
    return steps


@pytest.mark.ci
def test_a_rank_that_is_killed_ends_the_others_with_its_name(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(train, 3, tmp_path / "job", shards=shards, what="die")
    assert answers[1] == {"died": -signal.SIGKILL}
    for answer in answers[::2]:
        assert answer["kind"] == "LoaderError", answer
        assert "ank 1 (pid" in answer["error"]
        assert "has ended while the others waited for its next step" in answer["error"]
        assert answer["seconds"] < 60


@pytest.mark.ci
def test_a_rank_that_leaves_an_epoch_ends_the_others_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_of_ranks, "_EXPLAINED_S", 0.3)
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(train, 3, tmp_path / "job", shards=shards, what="leave")
    assert answers[1]["value"] == 3
    for answer in answers[::2]:
        assert answer["kind"] == "LoaderError", answer
        assert re.search("ank 1 has left the epoch before step [34],", answer["error"])


def go_on_when_it_is_said(folder: Path) -> None:
    """Let the stopped rank go on when this one's log names it."""
    said = threading.Event()

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "no sign of life" in record.getMessage():
                said.set()

    def resume() -> None:
        said.wait(60)
        pid = int((folder / "pid").read_text())
        if pid > 1:
            os.kill(pid, signal.SIGCONT)

    logging.getLogger("torchdata_ais").addHandler(Log())
    threading.Thread(target=resume, daemon=True).start()


def train_with_a_frozen_rank(rank: int, job: dict[str, Any]) -> int:
    if rank == 0:
        go_on_when_it_is_said(Path(job["folder"]))
    return train(rank, job)


@pytest.mark.ci
def test_a_rank_that_is_frozen_is_named_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_SILENT_S", 1.0)
    shards = example_shards(tmp_path, COUNTS)
    answers = run_forked(train_with_a_frozen_rank, 3, tmp_path / "job", shards=shards, what="freeze")
    assert [answer.get("value") for answer in answers] == [26] * 3, answers
    assert any("ank 1 (pid" in text and "It is waited for" in text for text in answers[0]["log"])


@pytest.mark.ci
def test_a_rank_that_is_frozen_for_too_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_SILENT_S", 1.0)
    monkeypatch.setattr(heartbeat, "_GONE_S", 5.0)

    def run(rank: int, job: dict[str, Any]) -> int:
        try:
            return train(rank, job)
        finally:
            if rank == 0:
                os.kill(int((Path(job["folder"]) / "pid").read_text()), signal.SIGCONT)

    answers = run_forked(run, 3, tmp_path / "job", shards=example_shards(tmp_path, COUNTS), what="freeze")
    for answer in answers:
        assert answer["kind"] == "LoaderError", answer
        assert "has given no sign of life for" in answer["error"]


def train_without_the_store(rank: int, job: dict[str, Any]) -> int:
    store = dist.TCPStore("127.0.0.1", job["port"], job["ranks"], is_master=rank == 0)
    with ais_loader(
        pipe_of(job["shards"]), epoch_steps="pad", rank=rank, world_size=job["ranks"], store=store
    ) as loader:
        for step, _ in enumerate(loader):
            if rank == 0 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
    return step


def test_a_store_that_is_gone_is_said(tmp_path: Path) -> None:
    answers = run_forked(
        train_without_the_store, 3, tmp_path / "job", group=False, port=free_port(),
        shards=example_shards(tmp_path, COUNTS),
    )  # fmt: skip
    assert answers[0] == {"died": -signal.SIGKILL}
    for answer in answers[1:]:
        assert answer["kind"] == "LoaderError", answer
        assert "store of torch.distributed is gone" in answer["error"]
