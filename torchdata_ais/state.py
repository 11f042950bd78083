"""Checkpoint states: typed, with a version and a checksum.

Users have a state as plain values (`to_plain`), for ``torch.save(weights_only=True)`` and for JSON. States are
stored, copied and merged by hand. A state that lost an entry would silently lose or double samples. So a state is
used only after a complete check of its types, its constraints and its checksum (`from_plain`). The checksum detects
accidents, and is not a signature. A forged state runs no code, takes no memory beyond its own size, and has no
positions outside of the data. Values that need the data are compared in `pipes.checkpoint`.

There are four kinds. `StreamState` has the positions of the workers of one rank, `MergedState` those of several
ranks. `PlanState` has the position of reading by index, the same for all ranks. `WorkerPlanState` has the position of
one worker of torch's loaders. A new field needs a new `VERSION`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Any, ClassVar

import msgspec
import xxhash
from msgspec import Meta, Struct

from torchdata_ais.errors import StateError

FORMAT = "torchdata_ais.loader"
VERSION = 1

_MOST_BITS = 4096
_MOST_NESTED = 64
"""Most resumes in a row, each on another topology and without an item, in a state."""

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError)


# Plain data without cycles: the collector of garbage, which would look at all of 10,000 states again and again, need
# not know of them (`gc=False`).


class _Row(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Small things of which there are many: lists, not dicts."""


class OpenPosition(_Row):
    """A shard that is being read, and the offset of its next sample."""

    position: _Count
    offset: _Count
    version: str | None = None
    checksum: str | None = None


class ShardVersion(_Row):
    """Version and checksum of a shard."""

    position: _Count
    version: str | None = None
    checksum: str | None = None


class SeenShard(_Row):
    """A shard that was started, and a hash of its name."""

    position: _Count
    name_hash: _Count


class GeneratorState(_Row):
    """State of a `random.Random`: its words, four bytes each."""

    version: _Count
    words: bytes


class StageState(_Row):
    """Number of items that a stage held, and the state of its generator."""

    held: _Count
    generator: GeneratorState | None = None


class SeedState(_Row):
    """Number of epochs that a stage has started, and the last seed."""

    epochs: _Count
    seed: Annotated[int, Meta(ge=0)]


class ReaderState(Struct, forbid_unknown_fields=True, gc=False):
    """Position of the stage that reads shards.

    Attributes:
        instances: Instances in the epoch: ranks times workers.
        instance: The number of this one.
        begun: How many shards of its share it had started.
        left: Bitmap of the positions to start, instead of `begun`, after a resume on another topology.
        open: The shards under way.
        seen: The shards started last: they show whether the listing has changed.
        held: Packed places of the samples in the reader and the downstream stages, 8 bytes each.
        versions: The shards those samples came from.
    """

    instances: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    instance: _Count
    begun: _Count = 0
    left: bytes | None = None
    open: list[OpenPosition] = []
    seen: list[SeenShard] = []
    held: bytes = b""
    versions: list[ShardVersion] = []

    def __post_init__(self) -> None:
        _require(self.instance < self.instances, "it does not say which instance it is of")
        _require(len(self.held) % 8 == 0, "its list of held samples is cut")

    def places(self) -> list[int]:
        """Return the places of the samples held."""
        return array("Q", self.held).tolist()


class _Part(Struct, tag_field="kind", forbid_unknown_fields=True, gc=False):
    """The report of an instance."""


class InstanceState(_Part, tag="instance"):
    """State of an instance; with `stages` None it had not started.

    Attributes:
        reader: Its position in the shards.
        stages: The contents of the stages downstream of the reader, the last first.
        seeds: Of the stages that draw.
    """

    reader: ReaderState
    stages: list[StageState] | None = None
    seeds: list[SeedState] = []

    def __post_init__(self) -> None:
        held = sum(stage.held for stage in self.stages or ())
        _require(8 * held <= len(self.reader.held), "its stages hold more samples than are named")

    def leaves(self) -> Iterator[InstanceState]:
        """Yield the states of started instances in this one: itself."""
        yield self


class SharedState(_Part, tag="shared"):
    """Part of the remaining data of other instances, for one instance.

    Attributes:
        of: The others.
        share: Which part of the rest.
        shares: Of how many.
    """

    of: list[InstanceState | SharedState]
    share: _Count
    shares: _Count

    def __post_init__(self) -> None:
        _require(self.share < self.shares, "its share of other states is none")
        _require(self.depth() <= _MOST_NESTED, f"it tells of more than {_MOST_NESTED} resumes in a row")

    def depth(self) -> int:
        """Return the number of successive resumes in it."""
        return 1 + max((part.depth() for part in self.of if isinstance(part, SharedState)), default=0)

    def leaves(self) -> Iterator[InstanceState]:
        """Yield the states of instances that it is a share of."""
        for part in self.of:
            yield from part.leaves()


class Refused(_Part, tag="refused"):
    """Reason why an instance has no state; raised when it is requested."""

    what: str
    todo: str
    place: dict[str, Any]


Part = InstanceState | SharedState
_packed = msgspec.msgpack.Decoder(InstanceState | SharedState | Refused)


def pack(part: Part | Refused) -> bytes:
    """Return `part` as it travels between processes."""
    return msgspec.msgpack.encode(part)


def unpack(packed: bytes) -> Part:
    """Return the unpacked report, or raise `StateError` for one with an error."""
    try:
        part: Part | Refused = _packed.decode(packed)
    except _UNREADABLE as error:
        raise damaged(cut(str(error))) from None
    if isinstance(part, Refused):
        raise StateError(part.what, todo=part.todo, place=part.place)
    return part


class _Kind(Struct, tag_field="kind", forbid_unknown_fields=True, gc=False):
    """Argument of `to_plain`."""


class StreamState(_Kind, tag="stream", kw_only=True):
    """State of one rank.

    Attributes:
        stages: Names of the stages, last first.
        seed: The loader's seed.
        epoch: The epoch of the data; it decides the order of the shards.
        user_epoch: The epoch as the user counts; differs from `epoch` with a fixed number of steps.
        step: Batches of it that were returned.
        rank: This rank.
        ranks: Ranks there are.
        workers: Workers of this rank (1 for none).
        turn: The worker that yields next.
        shards: The digest of the listed shards; empty without a listing.
        instances: The state of each worker; None means that the epoch has not started.
    """

    stages: list[str]
    seed: int = 0
    epoch: int = 0
    user_epoch: int = 0
    step: _Count = 0
    rank: _Count = 0
    ranks: _Count = 1
    workers: _Count = 1
    turn: _Count = 0
    shards: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    instances: list[InstanceState | SharedState] | None = None

    ALIKE: ClassVar[tuple[str, ...]] = (
        "epoch",
        "user_epoch",
        "seed",
        "step",
        "ranks",
        "workers",
        "stages",
        "shards",
    )
    """The fields in which the ranks of a loader agree."""

    def __post_init__(self) -> None:
        numbers = (self.seed, self.epoch, self.user_epoch)
        _require(max(map(int.bit_length, numbers)) <= _MOST_BITS, "a number in it is too large")
        _require(
            self.rank < self.ranks and self.turn < self.workers, "it names a rank or worker there is none of"
        )
        if self.instances is not None:
            there = len(self.instances)
            _require(there == self.workers, f"it has {there} of {self.workers} workers")

    @property
    def parts(self) -> list[StreamState]:
        """The ranks' states in it."""
        return [self]

    def difference(self, other: StreamState) -> tuple[str, Any, Any] | None:
        """Return a field that must not differ between ranks, and both values."""
        ours, theirs = _alike(self), _alike(other)
        if ours != theirs:
            pairs = zip(self.ALIKE, ours, theirs, strict=True)
            return next(pair for pair in pairs if pair[1] != pair[2])
        if (self.instances is None) != (other.instances is None):
            return "instances", self.instances, other.instances
        return None


_alike = attrgetter(*StreamState.ALIKE)


class MergedState(_Kind, tag="merged"):
    """State of several ranks of a loader after the same number of steps."""

    merged: list[StreamState]

    def __post_init__(self) -> None:
        alike = bool(self.merged) and all(self.merged[0].difference(part) is None for part in self.merged)
        _require(alike, "its parts are not of one loader")
        _require(len({part.rank for part in self.merged}) == len(self.merged), "a rank is there twice")

    @property
    def parts(self) -> list[StreamState]:
        """The ranks' states in it."""
        return self.merged


class Segment(_Row):
    """A part of a run by index with one batch, fixed sources and weights.

    Attributes:
        step: The first step of it.
        position: The first position of it, counted over the whole run.
        epoch: The epoch of that position.
        global_batch: Positions a step, over all ranks.
        epoch_step: The first step of that epoch.
        epoch_position: The first position of that epoch.
    """

    step: _Count
    position: _Count
    epoch: _Count
    global_batch: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    epoch_step: _Count = 0
    epoch_position: _Count = 0

    def __post_init__(self) -> None:
        _require(
            self.epoch_step <= self.step and self.epoch_position <= self.position,
            "an epoch of it begins after a step of that epoch",
        )


class EpochBegin(_Row):
    """Number, first step and first position of an epoch of a run by index."""

    number: _Count
    step: _Count
    position: _Count


class SourceCounts(_Row):
    """Numbers of each source of a run by index: results of `packed`.

    Attributes:
        samples: Samples that it has.
        draws: Samples of it before the position.
        begins: Those before its window of the epoch; before the last change where epochs are so many steps.
        left: Samples of that window after the position; empty where epochs are so many steps.
        until: See `torchdata_ais.plan.order.Windows`; empty without a change earlier in the epoch.
        opened: Windows that were interrupted, the oldest first, as ``(begins, ends)``; 0 and 0 for none.
        removed: The numbers of sources that were removed.
    """

    samples: bytes
    draws: bytes
    begins: bytes
    left: bytes = b""
    until: bytes = b""
    opened: list[Annotated[list[bytes], Meta(min_length=2, max_length=2)]] = []
    removed: list[_Count] = []


def packed(numbers: Sequence[int]) -> bytes:
    r"""Return whole numbers as bytes, as many of each as the largest one needs.

    Example:
        >>> packed([1, 2, 300])
        b'\x01\x00\x02\x00,\x01'
        >>> unpacked(packed([1, 2, 300]), 3)
        [1, 2, 300]
    """
    width = max(1, (max(numbers, default=0).bit_length() + 7) // 8)
    return b"".join(number.to_bytes(width, "little") for number in numbers)


def unpacked(data: bytes, count: int) -> list[int]:
    """Return the numbers that `packed` was given, `count` of them below 2^63."""
    width = len(data) // count
    whole = len(data) == width * count and 0 < width <= 8
    numbers = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width or 1)]
    _require(whole and max(numbers) < 1 << 63, "it has not one number for each source")
    return numbers


class EpochShare(_Row):
    """Samples of an epoch that a worker has returned.

    Attributes:
        seed: Of the order.
        sent: The seed that the loader has sent to all stages.
        step: The first step of the epoch, counted over the run.
        global_batch: Positions a step, over all ranks.
        given: Items that it has given.
    """

    seed: int
    sent: int
    step: _Count
    global_batch: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    given: _Count


class _PlanKind(_Kind, kw_only=True):
    """Subject of a planned run."""

    plan: Annotated[int, Meta(ge=1, le=1 << 16)]
    weights: _Digest
    order: Annotated[str, Meta(max_length=300)]


class PlanState(_PlanKind, tag="plan", kw_only=True):
    """Position of reading by index, the same for all ranks.

    It holds for any number of ranks.

    Attributes:
        plan: Version of the plan, the function from position to sample.
        sources: The digest of each source, eight bytes, in the order they came; one that was removed stays.
        weights: The digest of the weights of the mixture.
        order: The method of the order, in words.
        seed: The loader's seed.
        schedule: The digest of the schedule that the loader was given; empty without one.
        changes: Text of JSON, empty without changes: the schedule that took its place during the run, from the last
            segment on, or None; the step from which on another one holds, or None; and that one.
        segments: The first starts the run. After a change, the order in force begins with the second; None: with the
            first. A third has another global batch than the second.
        step: Global batches that were returned.
        epoch: The epoch of the next one.
        counts: Numbers of the sources.
    """

    sources: Annotated[bytes, Meta(min_length=8)]
    seed: int
    schedule: Annotated[str, Meta(pattern="^([0-9a-f]{16})?$")] = ""
    changes: str = ""
    segments: Annotated[list[Segment | None], Meta(min_length=1, max_length=3)]
    step: _Count
    epoch: EpochBegin
    counts: SourceCounts

    def __post_init__(self) -> None:
        digests = self.digests
        _require(self.seed.bit_length() <= _MOST_BITS, "a number in it is too large")
        _require(len(self.sources) % 8 == 0, "its sources are not digests of 8 bytes")
        _require(len(set(digests)) == len(digests), "a source is there twice")
        _require(
            all(one < other for one, other in pairwise([-1, *self.counts.removed, len(digests)])),
            "it names a removed source there is none of",
        )
        first, last, epoch = self.segments[0], self.segments[-1], self.epoch
        if first is None or last is None or first.step or first.position:
            raise damaged("its first segment is not the beginning")
        _require(last.step <= self.step, "its last segment begins after its step")
        end = Segment(self.step, self.position, epoch.number, last.global_batch, epoch.step, epoch.position)
        segments = [one for one in self.segments if one is not None]
        for before, after in pairwise([*segments, end]):
            _require(
                before.step <= after.step
                and before.position <= after.position
                and before.epoch <= after.epoch,
                "its segments do not follow each other",
            )
        self._check_counts()

    def _check_counts(self) -> None:
        samples, draws, begins = self.samples, self.draws, self.begins
        _ = self.left, self.until  # these raise unless they fit
        _require(min(samples) > 0, "a source of it has no sample")
        _require(
            all(one <= other for one, other in zip(begins, draws, strict=True)),
            "a source of it was drawn less often later than before",
        )
        origin = self.segments[1] if len(self.segments) > 1 else None
        _require(
            origin is None or origin.position in (0, sum(begins)),
            "the draws before a segment of it are not as many as its positions",
        )
        for count, windows in zip(samples, self.opened, strict=True):
            for begin, end in windows:
                inside = begin < end and begin // count == (end - 1) // count
                _require(inside, "an interrupted window of it is not of a round")

    @property
    def digests(self) -> list[str]:
        """The digests of the sources."""
        return [self.sources[at : at + 8].hex() for at in range(0, len(self.sources), 8)]

    def _numbers(self, data: bytes) -> list[int]:
        return unpacked(data, len(self.sources) // 8)

    @property
    def samples(self) -> list[int]:
        """The number of samples of each source."""
        return self._numbers(self.counts.samples)

    @property
    def draws(self) -> list[int]:
        """The number of samples of each source before the position."""
        return self._numbers(self.counts.draws)

    @property
    def position(self) -> int:
        """The first position of the next global batch."""
        return sum(self.draws)

    @property
    def begins(self) -> list[int]:
        """See `SourceCounts`."""
        return self._numbers(self.counts.begins)

    @property
    def left(self) -> list[int]:
        """See `SourceCounts`; empty where it is."""
        return self._numbers(self.counts.left) if self.counts.left else []

    @property
    def until(self) -> list[int]:
        """See `SourceCounts`; empty where it is."""
        return self._numbers(self.counts.until) if self.counts.until else []

    @property
    def opened(self) -> list[list[tuple[int, int]]]:
        """The windows of each source that were interrupted, the oldest first."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.digests]
        for begins, ends in self.counts.opened:
            pairs = zip(self._numbers(begins), self._numbers(ends), strict=True)
            for windows, window in zip(found, pairs, strict=True):
                if window != (0, 0):
                    windows.append(window)
        return found


class WorkerPlanState(_PlanKind, tag="plan-worker", kw_only=True):
    """Position of one worker of torch's loaders that reads by index.

    It holds for the same ranks and workers only.

    Attributes:
        plan: As for `PlanState`; so are weights and order.
        sources: The digest of each source.
        seeds: Those of the dataset and of the stage that reads.
        runs: How many iterations were started.
        share: Rank, ranks, worker and workers.
        epoch: The epoch under way, or None.
    """

    sources: Annotated[list[_Digest], Meta(min_length=1)]
    seeds: tuple[int, int]
    runs: _Count
    share: tuple[_Count, _Count, _Count, _Count]
    epoch: EpochShare | None

    def __post_init__(self) -> None:
        rank, ranks, worker, workers = self.share
        _require(rank < ranks and worker < workers, "it names a rank or worker there is none of")
        numbers = (*self.seeds, *(() if self.epoch is None else (self.epoch.seed, self.epoch.sent)))
        _require(max(map(int.bit_length, numbers)) <= _MOST_BITS, "a number in it is too large")


State = StreamState | MergedState | PlanState | WorkerPlanState


def to_plain(state: State) -> dict[str, Any]:
    """Return `state` as plain values for JSON; bytes are base64 text."""
    return sealed(msgspec.to_builtins(state))


def merged_plain(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the plain form of a `MergedState` of parts (see `content_of`)."""
    return sealed({"kind": "merged", "merged": parts})


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a state with its version and checksum."""
    return {"format": FORMAT, "version": VERSION, **content, "checksum": _checksum(content)}


def content_of(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a state without the additions of `sealed`."""
    return {name: value for name, value in plain.items() if name not in ("format", "version", "checksum")}


def from_plain(plain: Any) -> State:
    """Return the state of a result of `to_plain`.

    Raises:
        StateError: It is not a state, of another version of the package, or changed after it was saved.
    """
    if not isinstance(plain, dict) or not isinstance(plain.get("format"), str) or plain["format"] != FORMAT:
        raise StateError.at(
            "this is no state of a torchdata_ais loader",
            todo="pass what state_dict() or merge_states() returned",
        )
    _check_version(plain.get("version"))
    content = content_of(plain)
    try:
        state: State = msgspec.convert(content, State)
        whole = plain.get("checksum") == _checksum(content)
    except _UNREADABLE as error:
        raise damaged(cut(str(error))) from None
    _require(whole is True, "its checksum is not that of its content")
    return state


def cut(text: str, most: int = 300) -> str:
    """Return `text`, or its beginning: texts in a state may have any size."""
    return text if len(text) <= most else text[:most] + "..."


def damaged(why: str) -> StateError:
    """Return the error for a state that is not as it was saved."""
    return StateError.at(
        f"the state is damaged: {why}", todo="pass the checkpoint as it was saved, or resume from another one"
    )


def _require(fact: bool, otherwise: str) -> None:
    if not fact:
        raise damaged(otherwise)


def _checksum(content: dict[str, Any]) -> str:
    """Return the XXH64 of everything in a state, the same however it was kept."""
    return xxhash.xxh64_hexdigest(msgspec.json.encode(content, order="sorted"))


def _check_version(version: Any) -> None:
    if type(version) is int and version == VERSION:
        return
    said = version if type(version) is int and abs(version) < 1000 else f"of type {type(version).__name__}"
    raise StateError.at(
        f"the state has version {said}, this package writes and reads {VERSION}",
        todo="resume with the version of the package that took the checkpoint",
    )
