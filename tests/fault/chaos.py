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

import gzip
import random
import re
import tarfile
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torchdata_ais import AISSourceLister, MultiProcessingReadingService, Retry, StoreOptions, stats
from torchdata_ais.errors import AISError
from torchdata_ais.loaders import Stats
from torchdata_ais.loaders._torchdata import DataLoader2
from torchdata_ais.local import (
    Bandwidth,
    Cut,
    DeadRedirect,
    Delay,
    Fault,
    FlipBit,
    LocalCluster,
    NewVersion,
    Reset,
    Stall,
    Status,
    WrongChecksum,
)
from torchdata_ais.testing import shard_bytes
from torchdata_ais.urls import parse_url

BUCKET = "chaos"
COUNTS = (6, 1, 9, 4)
NAMES = [f"s-{number}.tar" for number in range(len(COUNTS))]
STALL_S = 0.3
FIRST_BYTE_S = 1.0

Fields = dict[str, bytes]
PASSING = {408, 409, 429, 500, 502, 503, 504}
DAMAGE = {
    "ChecksumError", "BadHeaderError", "TruncatedShardError", "NotATarError", "ShardError",
    "DuplicateFieldError", "NonAdjacentKeyError",
}  # fmt: skip
SAID = {
    "ChecksumError": r"checksum|damaged",
    "ObjectChangedError": r"the object changed",
    "StallError": r"no byte came|sent no answer|deadline|now and then",
    "ConnectError": r"no connection to 127\.0\.0\.1",
    "NotFoundError": r"answered 4(04|10)",
    "AuthError": r"answered 40[13]",
    "ReadError": r"answered \d\d\d|broke off|broke before an answer|for the rest of the object",
}


def make_dataset() -> tuple[dict[str, bytes], dict[tuple[str, str], Fields]]:
    """Return the shards by name, and every sample by (shard, key). Each byte says where it belongs."""
    rng = random.Random(20)
    shards, samples = {}, {}
    for name, count in zip(NAMES, COUNTS, strict=True):
        members: list[tuple[str, bytes]] = [("README", b"not a sample")] if count > 1 else []
        for number in range(count):
            key = f"{'deep/' * 30 * (count == 9)}{number:06d}"  # one shard has its names in PAX headers
            fields = {
                "jpg": rng.randbytes(rng.randrange(6000)),
                "cls": f"{name} {key}".encode(),
                "json": b"{}",
            }
            samples[name, key] = fields
            members += [(f"{key}.{field}", data) for field, data in fields.items()]
            if number % 3 == 2:
                members.append(("__meta__/note", bytes(700)))
        body = shard_bytes(members, format=tarfile.PAX_FORMAT if count == 9 else tarfile.USTAR_FORMAT)
        shards[name] = gzip.compress(body, 1, mtime=0) if count == 4 else body
    return shards, samples


SHARDS, SAMPLES = make_dataset()


@dataclass(frozen=True)
class Schedule:
    """What a seed stands for."""

    seed: int
    faults: tuple[tuple[str, Fault], ...]  # with the name of the shard, "" for the listing
    source: str
    between: str
    open_shards: int
    on_error: str
    attempts: int
    block_bytes: int
    prefetch_bytes: int
    pin: bool
    shuffle: bool


def draw(seed: int) -> Schedule:
    rng = random.Random(seed)
    faults = [_draw_fault(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4]))]
    if rng.random() < 0.4:
        faults += _draw_break(rng)
    return Schedule(
        seed,
        tuple(faults),
        source=rng.choice(["uri", "uri", "bucket", "template", "urls"]),
        between=rng.choice(["", "", "map", "filter", "plain"]),
        open_shards=rng.randint(1, 4),
        on_error=rng.choice(["raise", "raise", "skip", "warn"]),
        attempts=rng.randint(2, 4),
        block_bytes=rng.choice([512, 4096, 10_000, 1 << 20]),
        prefetch_bytes=rng.choice([1, 20_000, 1 << 20]),
        pin=rng.random() < 0.8,
        shuffle=rng.random() < 0.3,
    )


def _draw_fault(rng: random.Random) -> tuple[str, Fault]:
    nth = rng.choice([1, 1, 2, (1, 2), (1, 2, 3, 4, 5)])
    if rng.random() < 0.08:
        action: Any = rng.choice(
            [Status(503), Status(429, retry_after=0), Cut(rng.randrange(300)), Delay(0.02)]
        )
        return "", Fault(action, "LIST", nth=nth)
    name = rng.choice(NAMES)
    size = len(SHARDS[name])
    at = rng.choice(
        [0, 1, 512, size - 513, size - 1, size // 1024 * 512, rng.randrange(size), rng.randrange(size)]
    )
    action = rng.choice(
        [
            Status(rng.choice(sorted(PASSING))),
            Status(rng.choice([429, 503]), retry_after=0),
            Status(rng.choice([400, 401, 403, 404, 410, 501])),
            Delay(rng.choice([0.01, 0.01, 0.01, FIRST_BYTE_S * 1.6])),
            Bandwidth(rng.choice([400_000.0, 3e6])),
            Cut(at), Cut(at), Cut(at),
            Reset(at), Reset(at),
            Stall(at),
            Stall(at, seconds=0.02),
            FlipBit(at, rng.randrange(8)), FlipBit(at, rng.randrange(8)),
            WrongChecksum(),
            NewVersion(same_bytes=rng.random() < 0.5),
            DeadRedirect(),
        ]
    )  # fmt: skip
    at_proxy = True if isinstance(action, Status | Delay) and rng.random() < 0.2 else None
    return name, Fault(action, "GET", name, nth=nth, at_proxy=at_proxy)


def _draw_break(rng: random.Random) -> list[tuple[str, Fault]]:
    """A body that breaks off in the middle, and cannot be continued."""
    name = rng.choice(NAMES)
    first = rng.choice([Cut, Reset])(rng.randrange(len(SHARDS[name])))
    then = rng.choice(
        [Status(503), Status(404), Status(403), Stall(0), DeadRedirect(), Cut(0), WrongChecksum()]
    )
    # A range with another checksum is refused once, and the object read again from its first byte.
    nth = 2 if isinstance(then, WrongChecksum) else tuple(range(2, 8))
    return [(name, Fault(first, "GET", name, nth=1)), (name, Fault(then, "GET", name, nth=nth))]


def keep(item: Any) -> Any:
    return item


def always(item: Any) -> bool:
    return True


def forget(item: Any) -> Any:
    return str(item[0]), item[1]


def make_pipe(schedule: Schedule, cluster: LocalCluster) -> Any:
    options = StoreOptions(
        cluster.endpoint,
        connect_timeout=2.0,
        first_byte_timeout=FIRST_BYTE_S,
        stall_timeout=STALL_S,
        retry=Retry(schedule.attempts, backoff=0.001, max_backoff=0.004, deadline=20.0),
        block_bytes=schedule.block_bytes,
        prefetch_bytes=schedule.prefetch_bytes,
        pin=schedule.pin,
    )
    source: Any = {
        "uri": f"ais://{BUCKET}/s-",
        "bucket": None,
        "template": f"ais://{BUCKET}/s-{{0..3}}.tar",
        "urls": [f"{cluster.endpoint}/v1/objects/{BUCKET}/{name}?provider=ais" for name in NAMES],
    }[schedule.source]
    pipe: Any = AISSourceLister(source or cluster.client().bucket(BUCKET), options=options)
    if schedule.shuffle:
        pipe = pipe.shuffle()
    pipe = pipe.load_tar(open_shards=schedule.open_shards, on_error=schedule.on_error, options=options)
    pipe = {
        "": lambda: pipe,
        "map": lambda: pipe.map(keep),
        "filter": lambda: pipe.filter(always),
        "plain": lambda: pipe.map(forget),
    }[schedule.between]()
    return pipe.group_samples()


class BrokenPromiseError(AssertionError):
    """A promise that did not hold, with the schedule that shows it."""


def allowed(fault: Fault, schedule: Schedule) -> set[str]:
    """The names of the errors that a fault may end in."""
    action = fault.action
    if isinstance(action, Status):
        if action.code in PASSING:
            return {"ReadError"}
        return {404: {"NotFoundError"}, 410: {"NotFoundError"}, 401: {"AuthError"}, 403: {"AuthError"}}.get(
            action.code, {"ReadError"}
        )
    if isinstance(action, Delay):
        return {"StallError"} if action.seconds >= FIRST_BYTE_S else set()
    if isinstance(action, Stall):
        return set() if action.seconds else {"StallError"}
    if isinstance(action, NewVersion):
        # Not pinned to what was listed, the new object is read: its bytes are no tar.
        pinned = schedule.pin and schedule.source in ("uri", "bucket")
        return {"ObjectChangedError"} | (set() if pinned or action.same_bytes else DAMAGE)
    return {
        Bandwidth: set[str](),
        Cut: {"ReadError"},
        Reset: {"ReadError"},
        FlipBit: DAMAGE,
        # Of a range it is not taken for the object's, which is then read from the start: one try more.
        WrongChecksum: {"ChecksumError", "ObjectChangedError", "ReadError"},
        DeadRedirect: {"ConnectError"},
    }[type(action)]


def passes(fault: Fault) -> bool:
    """Whether trying again gets past the fault."""
    action = fault.action
    if isinstance(action, Status):
        return action.code in PASSING
    return not isinstance(action, FlipBit | WrongChecksum | NewVersion)


class Ledger:
    """What one run has given, and the judgement of it."""

    def __init__(self, schedule: Schedule, fired: list[tuple[str, Fault, int]]) -> None:
        self.schedule = schedule
        self.fired = fired
        self.got: dict[str, list[tuple[str, Fields]]] = {name: [] for name in NAMES}

    def add(self, sample: Any) -> None:
        fields = {name: value for name, value in sample.items() if name not in ("__key__", "__url__")}
        self.got[parse_url(sample["__url__"]).name].append((sample["__key__"], fields))

    def check(self, ok: Any, what: str) -> None:
        if not ok:
            counts = {name: len(items) for name, items in self.got.items()}
            raise BrokenPromiseError(f"{what}\n{self.schedule}\nfired: {self.fired}\ngot: {counts}")

    def met(self, name: str) -> list[Fault]:
        return [fault for shard, fault, times in self.fired if shard == name and times]

    def judge_error(self, text: str, kind: str) -> str:
        """Check that an error names its cause; return the shard it names, or "" for the listing."""
        found = re.search(r'"url": "([^"]*)"', text)
        self.check(found, f"an error without place: {kind}: {text}")
        assert found is not None
        name = parse_url(found[1]).name if ".tar" in found[1] else ""
        may = set().union(*(allowed(fault, self.schedule) for fault in self.met(name)))
        self.check(kind in may, f"{kind} of {name or 'the listing'}, where only {may} may come: {text}")
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
                self.check(not recoverable, f"{name} was given up after {tries} faults that pass: {text}")
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
                self.check(
                    f"{len(got)} of its samples had been passed on" in given_up[1], f"{name}: {given_up[1]}"
                )
            return
        self.check(len({key for key, _ in got}) == len(got), f"{name}: a sample came twice")
        for (key, fields), (stored_key, stored_fields) in zip(got, stored, strict=False):
            self.check(key == stored_key, f"{name}: {key} came where {stored_key} stands")
            self.check(fields == stored_fields, f"{name}: {key} is not what was stored")
        self.check(len(got) <= len(stored), f"{name}: more samples than stored")
        if ended and given_up is None:
            self.check(len(got) == len(stored), f"{name}: {len(stored) - len(got)} samples lost in silence")
        if given_up is not None and not flipped:
            said = re.search(r"(\d+) of its samples had been passed on", given_up[1])
            # As a plain string, the path of a member does not say where its sample ends: an error overtakes one.
            waits = self.schedule.between == "plain" and not ended
            self.check(
                (int(said[1]) if said else 0) in {len(got), len(got) + waits}, f"{name}: {given_up[1]}"
            )


class Chaos:
    """Runs schedules on a cluster of its own data."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.outcomes: Counter[str] = Counter()
        self.bucket = cluster.client().bucket(BUCKET).create(exist_ok=True)
        for name in NAMES:
            self.store(name)

    def store(self, name: str) -> None:
        self.bucket.object(name).get_writer().put_content(SHARDS[name])

    def run(self, seed: int, workers: int = 0) -> str:
        """Run one schedule and return what it ended with.

        Args:
            seed: Which.
            workers: Worker processes; 0 for none.
        """
        schedule = draw(seed)
        numbers = [(name, fault, self.cluster.faults.add(fault)) for name, fault in schedule.faults]
        pipe = make_pipe(schedule, self.cluster)
        begin = time.monotonic()
        samples, error, report = read(pipe) if not workers else read_with_workers(pipe, workers)
        seconds = time.monotonic() - begin
        fired = [(name, fault, self.cluster.faults.fired(number)) for name, fault, number in numbers]
        self.cluster.faults.clear()
        for name, fault in schedule.faults:
            if isinstance(
                fault.action, NewVersion
            ):  # also if it did not fire yet: a request may be under way
                self.store(name)
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
