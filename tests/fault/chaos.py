"""Random schedules of faults over a small data set, and the ledger that says what each run may end with.

A run reads four uneven shards with the same keys through the whole chain, under some faults and some settings, all
drawn from one seed. What is asserted of every run:

- each sample comes at most once, byte for byte as it was stored;
- without an error all of them come; an error, or a counted skip, names a shard that a fault has met, and its class
  and its text are what that fault gives;
- of a shard that was given up the samples come that stand before the break, none that is half;
- a shard that met fewer passing faults than the request is tried must be read to its end.

The one exception is stated as such: a flipped bit is certain only at the end of its shard. A sample passed on
before may hold it, and then the run must end with an error, or a skip, of that shard.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

from chaos_schedule import BUCKET, NAMES, SAMPLES, SHARDS, Fields, Schedule, allowed, draw, make_pipe, passes
from msgspec.structs import replace

from torchdata_ais import MultiProcessingReadingService, stats
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import AISError
from torchdata_ais.loaders import Stats
from torchdata_ais.local import Fault, FlipBit, LocalCluster, NewVersion
from torchdata_ais.urls import parse_url

SAID = {
    "ChecksumError": r"checksum|damaged",
    "ObjectChangedError": r"the object changed",
    "StallError": r"no byte came|sent no answer|deadline|now and then",
    "ConnectError": r"no connection to 127\.0\.0\.1",
    "NotFoundError": r"answered 4(04|10)",
    "AuthError": r"answered 40[13]",
    "ReadError": r"answered \d\d\d|broke off|broke before an answer|for the rest of the object",
}


def shard_of(url: str) -> str:
    """Return which of `NAMES` an object URL means."""
    return parse_url(url).name.rpartition("/")[2]


class BrokenPromiseError(AssertionError):
    """A promise that did not hold, with the schedule that shows it."""


class BusyMachineError(BrokenPromiseError):
    """A time-out that no fault explains: the machine was busy, or something hangs. Another run tells."""


class Ledger:
    """What one run has given, and the judgement of it."""

    def __init__(self, schedule: Schedule, fired: list[tuple[str, Fault, int]]) -> None:
        self.schedule = schedule
        self.fired = fired
        self.got: dict[str, list[tuple[str, Fields]]] = {name: [] for name in NAMES}

    def add(self, sample: Any) -> None:
        fields = {name: value for name, value in sample.items() if name not in ("__key__", "__url__")}
        self.got[shard_of(sample["__url__"])].append((sample["__key__"], fields))

    def check(self, ok: Any, what: str, broken: type[BrokenPromiseError] = BrokenPromiseError) -> None:
        if not ok:
            counts = {name: len(items) for name, items in self.got.items()}
            raise broken(f"{what}\n{self.schedule}\nfired: {self.fired}\ngot: {counts}")

    def met(self, name: str) -> list[Fault]:
        return [fault for shard, fault, times in self.fired if shard == name and times]

    def judge_error(self, text: str, kind: str) -> str:
        """Check that an error names its cause; return the shard it names, or "" for the listing."""
        found = re.search(r'"url": "([^"]*)"', text)
        self.check(found, f"an error without place: {kind}: {text}")
        assert found is not None
        name = shard_of(found[1]) if ".tar" in found[1] else ""
        may = set().union(*(allowed(fault, self.schedule) for fault in self.met(name)))
        broken = BusyMachineError if kind == "StallError" else BrokenPromiseError
        self.check(
            kind in may, f"{kind} of {name or 'the listing'}, where only {may} may come: {text}", broken
        )
        self.check(re.search(SAID.get(kind, "."), text), f"{kind} does not say what happened: {text}")
        return name

    def judge(self, error: BaseException | None, skipped: list[str]) -> str:
        given_up = {}
        for text in skipped:
            kind = text.partition(":")[0]
            given_up[self.judge_error(text, kind)] = (kind, text)
        self.check("" not in given_up, "the listing was skipped")
        failed = None
        if error is not None:
            self.check(isinstance(error, AISError), f"a foreign error: {error!r}")
            failed = self.judge_error(str(error), type(error).__name__)
            given_up[failed] = (type(error).__name__, str(error))
        for name in NAMES:
            self._judge_shard(name, given_up.get(name), ended=error is None)
        for name, (kind, text) in given_up.items():
            tries = sum(times for shard, fault, times in self.fired if shard == name)
            recoverable = all(map(passes, self.met(name))) and tries < self.schedule.attempts
            if kind != "StallError":  # a busy machine may stall by itself
                what = f"{name} was given up after {tries} faults that pass: {text}"
                self.check(not recoverable, what, BusyMachineError)  # one of the tries may have timed out
        if error is not None:
            return f"{type(error).__name__}"
        return "skipped " + "+".join(sorted(kind for kind, _ in given_up.values())) if given_up else "whole"

    def _judge_shard(self, name: str, given_up: tuple[str, str] | None, ended: bool) -> None:
        got = self.got[name]
        stored = [(key, fields) for (shard, key), fields in SAMPLES.items() if shard == name]
        flipped = any(isinstance(fault.action, FlipBit) for fault in self.met(name))
        if flipped and got != stored[: len(got)]:
            # It may not stay unnoticed; what else was under way may have ended the run before.
            self.check(given_up or not ended, f"a flipped bit of {name} was passed on in silence")
            if given_up and given_up[0] == "ChecksumError":
                self._judge_count(name, given_up[1], ended)
            return
        self.check(len({key for key, _ in got}) == len(got), f"{name}: a sample came twice")
        for (key, fields), (stored_key, stored_fields) in zip(got, stored, strict=False):
            self.check(key == stored_key, f"{name}: {key} came where {stored_key} stands")
            self.check(fields == stored_fields, f"{name}: {key} is not what was stored")
        self.check(len(got) <= len(stored), f"{name}: more samples than stored")
        if ended and given_up is None:
            self.check(len(got) == len(stored), f"{name}: {len(stored) - len(got)} samples lost in silence")
        if given_up is not None and not flipped:
            self._judge_count(name, given_up[1], ended)

    def _judge_count(self, name: str, text: str, ended: bool) -> None:
        """Check how many samples an error says were passed on."""
        said = re.search(r"(\d+) of its samples had been passed on by load_tar", text)
        count = len(self.got[name])
        # As a plain string, the path of a member does not say where its sample ends: an error overtakes one.
        waits = self.schedule.between == "plain" and not ended
        self.check((int(said[1]) if said else 0) in {count, count + waits}, f"{name}: {text}")


class Chaos:
    """Runs schedules on a cluster of its own data."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.outcomes: Counter[str] = Counter()
        self.again: list[str] = []
        self.bucket = cluster.client().bucket(BUCKET).create(exist_ok=True)
        self.store("")

    def store(self, folder: str) -> None:
        for name in NAMES:
            self.bucket.object(folder + name).get_writer().put_content(SHARDS[name])

    def run(self, seed: int, workers: int = 0) -> str:
        """Run one schedule and return what it ended with; up to three times if nothing but time was short.

        Args:
            seed: Which.
            workers: Worker processes; 0 for none.
        """
        for _ in range(2):
            try:
                return self.run_once(seed, workers)
            except BusyMachineError as error:
                self.again.append(str(error))
        return self.run_once(seed, workers)

    def run_once(self, seed: int, workers: int = 0) -> str:
        schedule = draw(seed)
        folder = ""
        if any(isinstance(fault.action, NewVersion) for _, fault in schedule.faults):
            # An answer that is late, for nobody any more, may change an object long after the run.
            folder = f"{seed}-{len(self.again)}/"
            self.store(folder)
        numbers = [
            (name, fault, self.cluster.faults.add(replace(fault, object=f"{folder}{name}" if name else "*")))
            for name, fault in schedule.faults
        ]
        pipe = make_pipe(schedule, self.cluster, folder)
        begin = time.monotonic()
        samples, error, report = read(pipe) if not workers else read_with_workers(pipe, workers)
        seconds = time.monotonic() - begin
        fired = [(name, fault, self.cluster.faults.fired(number)) for name, fault, number in numbers]
        self.cluster.faults.clear()
        ledger = Ledger(schedule, fired)
        for sample in samples:
            ledger.add(sample)
        ledger.check(seconds < 30, f"the run took {seconds:.1f} s")
        skipped = report["load_tar"].skipped
        examples = report["load_tar"].examples
        ledger.check(sum(skipped.values()) == len(examples), f"skips that are not named: {skipped}")
        outcome = ledger.judge(error, examples)
        self.outcomes[outcome] += 1
        return outcome


def read(pipe: Any) -> tuple[list[Any], Exception | None, Stats]:
    """Return the samples, the error that ended them, and the counts."""
    samples, error = until_error(pipe)
    return samples, error, stats(pipe)


def read_with_workers(pipe: Any, workers: int) -> tuple[list[Any], Exception | None, Stats]:
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers)) as loader:
        samples, error = until_error(loader)
        return samples, error, stats(loader)


def until_error(items: Any) -> tuple[list[Any], Exception | None]:
    got: list[Any] = []
    iterator = iter(items)
    try:
        while True:
            got.append(next(iterator))
    except StopIteration:
        return got, None
    except Exception as error:
        return got, error
