"""Random schedules of faults over a small data set: what a seed stands for, and what each fault may end in."""

from __future__ import annotations

import gzip
import random
import tarfile
from dataclasses import dataclass
from typing import Any

from torchdata_ais import AISSourceLister, Retry, StoreOptions
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


def make_pipe(schedule: Schedule, cluster: LocalCluster, folder: str) -> Any:
    """Return the chain of a schedule over the shards in a folder of the bucket."""
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
        "uri": f"ais://{BUCKET}/{folder}s-",
        "bucket": None,
        "template": f"ais://{BUCKET}/{folder}s-{{0..3}}.tar",
        "urls": [f"{cluster.endpoint}/v1/objects/{BUCKET}/{folder}{name}?provider=ais" for name in NAMES],
    }[schedule.source]
    prefix = "" if source else f"{folder}s-"
    pipe: Any = AISSourceLister(source or cluster.client().bucket(BUCKET), prefix=prefix, cluster=options)
    if schedule.shuffle:
        pipe = pipe.shuffle()
    pipe = pipe.load_tar(open_shards=schedule.open_shards, on_error=schedule.on_error, cluster=options)
    pipe = {
        "": lambda: pipe,
        "map": lambda: pipe.map(keep),
        "filter": lambda: pipe.filter(always),
        "plain": lambda: pipe.map(forget),
    }[schedule.between]()
    return pipe.group_samples()


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
