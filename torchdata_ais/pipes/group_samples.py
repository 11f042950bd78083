"""``.group_samples()``: members to samples by WebDataset's naming rule."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from torchdata_ais._util.arguments import check_text
from torchdata_ais.errors import DuplicateFieldError, MissingFieldError, NonAdjacentKeyError, UsageError
from torchdata_ais.errors.text import Remedy, in_programs
from torchdata_ais.pipes.base.contract import MemoryBound
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy, OnError
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.reading.runs import KeySet, Run, RunMember, sample_of
from torchdata_ais.samples import Sample, shown_fields, split_name
from torchdata_ais.urls import MemberPath

_OPEN_SHARDS = 64  # what is taken where no load_tar stands above
_Seen = OrderedDict[tuple[str, int], KeySet]


@stage("group_samples")
class TarSampleGrouper(Pipe[Sample]):
    """Group the members of each key into one sample (``.group_samples()``).

    The key of a member is its path up to the first dot of its last component, the field is the rest in lower
    case. Members of different shards never meet in one sample, whatever their names.

    Args:
        source: Pipe of ``(path, bytes)``, path a `MemberPath` or a plain string ``<url>/<member>``; stages that keep
            order and names may stand in between.
        require: Fields every sample must have (alternatives by ``;``: ``"jpg;png"``); a sample without one is a
            `MissingFieldError`.
        adjacent: A key that comes back later in its shard is an error (``"error"``), or a separate sample
            (``"split"``, as webdataset does in silence).
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole sample is skipped.
        max_errors: How many samples to give up: a count, or a share of all.

    Yields:
        `Sample`: a dict ``{"__key__": str, "__url__": str, field: bytes, ...}``, fields in the shard's order, its
        place in the data set as attributes. Members without a key are left out.

    Order:
        That of the members.

    Memory:
        One sample, and to notice keys that come back 2 MB or 22 bytes a sample, for at most ``2 * open_shards`` of
        the shards: those that are open, and those that broke off last. With ``adjacent="split"`` one sample.

        >>> TarSampleGrouper(AISFileLoader(["s.tar"], open_shards=4)).memory_bound().text
        '1 sample + 8 x (2 MB or 22 bytes a sample)'

    Raises:
        DuplicateFieldError: Two members have the same key and field (``a.jpg``, ``a.JPG``).
        NonAdjacentKeyError: A key came back after other keys.
        MissingFieldError: A field of `require` is not there.

    Example:
        >>> members = [("s.tar/a.jpg", b"..."), ("s.tar/a.cls", b"3"), ("s.tar/b.cls", b"4")]
        >>> for sample in TarSampleGrouper(members):
        ...     print(sample)
        sample 'a', s.tar
          jpg  b'...'
          cls  b'3'
        sample 'b', s.tar
          cls  b'4'
    """

    resumable = True
    gives = "fewer"

    def __init__(
        self,
        source: object,
        *,
        require: str | Sequence[str] = (),
        adjacent: Literal["error", "split"] = "error",
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source)
        check_text(require if isinstance(require, (list, tuple)) else [require], "group_samples(require=)")
        self._require = tuple(require.split()) if isinstance(require, str) else tuple(require)
        self._adjacent = adjacent
        self._policy = ErrorPolicy(on_error, max_errors)

    def arguments(self) -> str:
        adjacent = "" if self._adjacent == "error" else f"adjacent={self._adjacent!r}"
        return ", ".join(filter(None, [self.identity(), adjacent, *self._policy.shown()]))

    def memory_bound(self) -> MemoryBound:
        keys = f" + {self._most_seen()} x (2 MB or 22 bytes a sample)" if self._adjacent == "error" else ""
        return MemoryBound(f"1 sample{keys}")

    def identity(self) -> str:
        return f"require={self._require!r}" if self._require else ""

    def _items(self) -> Iterator[Sample]:
        # Straight from load_tar whole runs come at once: a third of the cost of member after member.
        runs = self._source.whole_runs() if type(self._source) is AISFileLoader else regroup(self._source)
        seen: _Seen = OrderedDict()
        shard: tuple[str, int] | None = None  # the one of the last sample, and its keys
        keys = KeySet()
        stats = self.stats
        checked = self._adjacent == "error"
        for url, run in runs:
            if run.key is not None:
                stats.items += 1
                if checked and shard != (url, run.shard):
                    shard = url, run.shard  # a shard may be listed twice
                    keys = self._keys_of(shard, seen)
                try:
                    if checked and not keys.add(run.key):
                        raise _not_adjacent(url, run)
                    sample = sample_of(run, url)
                    if self._require:
                        self._check(sample, url, run)
                except (DuplicateFieldError, NonAdjacentKeyError, MissingFieldError) as error:
                    if not self._policy.goes_on(error, stats, "group_samples"):
                        return
                else:
                    self._busy = sample
                    yield sample
            if run.last:
                seen.pop((url, run.shard), None)
                shard = None
        self._policy.at_end(stats, "group_samples")

    def _most_seen(self) -> int:
        """Return the number of shards whose keys are kept.

        That is twice as many as may be under way at the same time.
        """
        return 2 * (sum(stage_of(pipe).reads for pipe in upstream(self)) or _OPEN_SHARDS)

    def _check(self, sample: Sample, url: str, run: Run) -> None:
        for wanted in self._require:
            if wanted not in sample and not any(name in sample for name in wanted.split(";")):
                lower = wanted.lower()
                is_other_case = lower != wanted and any(name in sample for name in lower.split(";"))
                mend = f"fields are lower case: did you mean {lower}?" if is_other_case else "mend the shard"
                raise MissingFieldError.at(
                    f"the sample {run.key!r} has no field {wanted!r}, only {shown_fields(sample)}",
                    todo=Remedy(mend, in_programs("skip such samples with group_samples(on_error='skip')")),
                    url=url, offset=run.offset, key=run.key, field=wanted,
                )  # fmt: skip

    def _keys_of(self, shard: tuple[str, int], seen: _Seen) -> KeySet:
        """Return the keys met in a shard so far."""
        keys = seen.get(shard)
        if keys is None:
            keys = seen[shard] = KeySet()
            if len(seen) > self._most_seen():
                seen.popitem(last=False)  # the one met longest ago: it has broken off
        seen.move_to_end(shard)
        return keys


def _not_adjacent(url: str, run: Run) -> NonAdjacentKeyError:
    return NonAdjacentKeyError.at(
        f"the key {run.key!r} was met before in this shard: the members of a sample must stand together",
        todo=Remedy(
            "sort the shard (tar --sort=name)",
            in_programs("take such runs as samples of their own with group_samples(adjacent='split')"),
        ),
        url=url, offset=run.offset, key=run.key,
    )  # fmt: skip


def regroup(members: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Run]]:
    """Yield ``(url, run)`` for consecutive members of one key of one shard.

    A run ends where `MemberPath.ends` says so, or, where that member was left out and for plain paths, where key
    or shard changes.
    """
    url, run, has_begun = "", Run(None, [], -1, -1), False
    for item in members:
        try:
            item_path, data = item
        except (TypeError, ValueError):
            raise _no_member(item) from None
        if isinstance(item_path, MemberPath):
            path = item_path
        elif isinstance(item_path, str) and not isinstance(item, (str, dict)):
            path = MemberPath(item_path)
        else:
            raise _no_member(item)
        parts = split_name(path.member)
        other_shard = path.url != url or path.shard != run.shard
        other_key = parts is not None and run.key not in (None, parts[0])
        if has_begun and (other_shard or other_key):
            yield url, run
            run, has_begun = Run(None, [], -1, -1), False
        if not has_begun:
            run.offset, run.shard, has_begun = path.offset, path.shard, True
        url = path.url
        if parts is not None:  # members without a key belong to no sample: nothing of them is kept
            run.key = parts[0]
            run.members.append(RunMember(path.member, data, path.offset, parts[1]))
        if path.ends:
            run.last = path.ends == "shard"
            yield url, run
            run, has_begun = Run(None, [], -1, -1), False
    if has_begun:
        yield url, run


def _no_member(item: object) -> UsageError:
    return UsageError.at(
        f"group_samples() was given an item of type {type(item).__name__}, not a pair (path, bytes)",
        todo="put .load_tar() before .group_samples(), with nothing between that makes samples, tuples or batches",
    )
