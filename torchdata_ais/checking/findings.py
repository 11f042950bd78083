"""What `lint_shards` found: problems, each with its place, shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torchdata_ais.error_text import Sentences
from torchdata_ais.errors import AISError
from torchdata_ais.indexing import SampleIndex
from torchdata_ais.urls import parse_url, redact

KEPT_PROBLEMS = 20  # of one shard; more are counted


def shown(url: str) -> str:
    """Return a URL as people write it: ``ais://bucket/name`` for an object, without secrets."""
    place = parse_url(url)
    return place.uri if place.kind == "object" else redact(url)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: The class of the error that training would raise, or a word of the linter's own: ``FieldsDiffer``,
            ``NoSamples``, ``NoSuchField``, ``RareField``, ``KeysRepeated``, ``UnevenShards``.
        text: What is wrong, and what to do.
        severity: ``"error"`` stops training or loses samples; ``"note"`` is worth knowing.
        url: The shard.
        member: The archive member.
        key: The sample.
        field: The field of the sample.
        offset: The byte in the (decompressed) shard.
    """

    kind: str
    text: str
    severity: Literal["error", "note"] = "error"
    url: str | None = None
    member: str | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None

    @classmethod
    def of(cls, error: Exception, url: str) -> Problem:
        """Return the problem that an error tells of."""
        place = error.place if isinstance(error, AISError) else {}
        what, todo = (error.what, error.todo) if isinstance(error, AISError) else (str(error), "")
        text = Sentences(" ".join(what.splitlines()).strip(), todo)
        at = {name: place.get(name) for name in ("member", "key", "field", "offset")}
        return cls(type(error).__name__, text, "error", shown(url), **at)

    def __str__(self) -> str:
        """One line: severity, place, text, kind."""
        place = [self.url] if self.url else []
        place += [f"member {self.member!r}"] if self.member is not None else []
        place += [f"key {self.key!r}"] if self.key is not None else []
        place += [f"byte {self.offset}"] if self.offset is not None else []
        return f"{self.severity}: {', '.join([*place, '']) if place else ''}{self.kind}: {self.text}"


@dataclass
class ShardReport:
    """One shard.

    Attributes:
        url: The shard, as people write it.
        source: The shard, as it is read.
        samples: Samples that could be grouped.
        bytes: Bytes of their fields.
        good: Samples without a problem of their own.
        whole: Whether the shard could be read to a sound end.
        errors: How many problems there are.
        problems: The first 20 of them.
        scattered: Keys whose members do not stand together.
        shapes: For each set of fields: how many samples have it, and key and offset of the first.
    """

    url: str
    source: str = field(repr=False)
    samples: int = 0
    bytes: int = 0
    good: int = 0
    whole: bool = True
    errors: int = 0
    problems: list[Problem] = field(default_factory=list)
    scattered: set[str] = field(default_factory=set)
    shapes: dict[tuple[str, ...], tuple[int, str, int]] = field(default_factory=dict)

    def add(self, problem: Problem) -> None:
        """Note a problem."""
        self.errors += 1
        if len(self.problems) < KEPT_PROBLEMS:
            self.problems.append(problem)


@dataclass
class LintReport:
    """A set of shards.

    Attributes:
        shards: Each of them, in the order of the listing.
        across: What shows only when shards are compared: fields, keys, sizes.
        required: The fields each sample must have, as alternatives (``("jpg;png", "cls")``).
        seconds: How long it took.
        index: The sample index of the shards, if it was asked for and there is no error.
    """

    shards: list[ShardReport]
    across: list[Problem] = field(default_factory=list)
    required: tuple[str, ...] = ()
    seconds: float = 0.0
    index: SampleIndex | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether there is no error. Notes do not count."""
        return next(self.errors(), None) is None

    def errors(self) -> Iterator[Problem]:
        """Yield the problems of severity ``"error"``: those kept of each shard, then those of the comparison."""
        for problem in self.problems():
            if problem.severity == "error":
                yield problem

    def problems(self) -> Iterator[Problem]:
        """Yield all problems kept: those of each shard, then those of the comparison."""
        for shard in self.shards:
            yield from shard.problems
        yield from self.across

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "ok": self.ok,
            "shards": [
                {
                    "url": shard.url,
                    "whole": shard.whole,
                    "samples": shard.samples,
                    "good": shard.good,
                    "bytes": shard.bytes,
                    "errors": shard.errors,
                    "problems": [asdict(problem) for problem in shard.problems],
                }
                for shard in self.shards
            ],
            "across": [asdict(problem) for problem in self.across],
            "required": list(self.required),
            "seconds": round(self.seconds, 3),
        }
