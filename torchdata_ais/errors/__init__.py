"""Errors of this package, each with a fact, a place and advice.

::

    AISError
    |-- TransportError          bytes did not arrive, after retries where these can help
    |   |-- ConnectError        no connection (also a ConnectionError)
    |   |-- ReadError           the server answered with an error, or the body broke off for good
    |   |-- StallError          nothing arrived for too long (also a TimeoutError)
    |   |-- ObjectChangedError  another version of the object than the one listed or started
    |   |-- NotFoundError       no such bucket or object (also a FileNotFoundError)
    |   `-- AuthError           token missing, wrong or without the right (also a PermissionError)
    |-- ShardError              the bytes arrived, but they are not a whole, sound shard (also a tarfile.ReadError)
    |   |-- TruncatedShardError the shard ends before its end (also an EOFError)
    |   |-- BadHeaderError      an invalid tar header
    |   |   |-- UnsupportedMemberError  a sparse member, or a link whose target is not in its sample
    |   |   `-- TrailingDataError  something that is no archive follows a whole archive
    |   |-- ChecksumError       the body is not the one the cluster stored
    |   `-- NotATarError        not a tar archive at all
    |-- SampleError             one sample cannot be used
    |   |-- DuplicateFieldError two members with the same key and field
    |   |-- NonAdjacentKeyError a key that comes again later in its shard
    |   |-- MissingFieldError   a required field is not there
    |   |   `-- webdataset.MissingKeyError         (also a KeyError)
    |   |-- TransformError      a function of an ETL failed, or its result cannot be stored
    |   |-- DecodeError         the bytes of a field do not have the format of its name
    |   |-- EmptyBatchError     no sample of a planned batch is left
    |   `-- EncodeError         a value cannot be written in the format of its field's name
    |-- LoaderError             a loader or one of its processes cannot continue
    |   `-- WorkerDiedError     a worker process ended without an error
    |-- JobError                a job on the cluster failed, was aborted, or had a wrong result (also a RuntimeError)
    |-- SampleIndexError        a sample index that is damaged, or of another form
    |-- StateError              a checkpoint that does not fit the pipeline or the data
    `-- UsageError              the call itself cannot work (also a ValueError)
        |-- ArgumentError       arguments that the call does not take (also a TypeError)
        |-- MissingLibraryError an optional library is not installed (also an ImportError)
        |-- DecodeUsageError    a request to decode that fails for any data (also a DecodeError)
        `-- EncodeUsageError    a request to write that fails for any data (also an EncodeError)

Errors of the call, the program or the machine, rather than of the data, are in `NEVER_SKIPPED`. They pass every
``on_error=``, every handler and every loop over samples.

Every error has `what`, `todo` and `place` as attributes (``error.url``, ``.member``, ``.offset``, ``.key`` are of the
place), and pickles with them. An object of a cluster is named ``ais://bucket/name`` there, whatever its URL.

Its text contains them all, with the place as its last line (``[at] {json}``). torch's loaders rebuild an exception from
its text alone, and only then the text is parsed.

No error shows a secret or a control character: all of them take their text through `redaction.clean`.
"""

from __future__ import annotations

import json
import logging
import tarfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torchdata_ais.errors.redaction import RedactingFilter, clean, redact, shortened
from torchdata_ais.errors.text import Remedy, Sentences, composed, sentence_case, short_name, taken_apart

if TYPE_CHECKING:  # 0.02 s to import
    from typing_extensions import Self

logging.getLogger("torchdata_ais").addFilter(RedactingFilter())

_E = TypeVar("_E", bound="AISError")


class AISError(Exception):
    """Base of every error this package raises.

    Args:
        what: One sentence: the cause, then the fact. No final full stop.
        todo: The next action, as an imperative sentence without full stop; a `Remedy` if a command words it
            differently.
        place: Whatever of ``url member offset key field attempt worker`` is known.

    Attributes:
        what: As given; it begins with a capital letter, unless with a name.
        todo: As given, with a capital letter; or ``""``.
        place: As given, or empty.

    Example:
        >>> error = TruncatedShardError.at("the shard ends inside a member", url="ais://b/s.tar", offset=512)
        >>> error.what, error.offset
        ('The shard ends inside a member', 512)
        >>> print(error)
        The shard ends inside a member
        [at] {"url": "ais://b/s.tar", "offset": 512}
    """

    what: str
    todo: str
    place: dict[str, Any]

    def __init__(self, what: str = "", *, todo: str = "", place: Mapping[str, object] | None = None) -> None:
        notes: list[str] = []
        what = str(what)
        if todo or place is not None:
            # As text and back: plain values, which every process can read.
            known: dict[str, Any] = json.loads(json.dumps(dict(place or {}), default=str))
        else:
            what, todo, known, notes = taken_apart(what)
        self.what = sentence_case(clean(what))
        self.todo = _shown(todo)
        self.place = _shown_value(known)
        if isinstance(self.place.get("url"), str):
            self.place["url"] = short_name(self.place["url"])
        super().__init__(composed(self.what, self.todo, self.place))
        for note in notes:
            noted(self, note)

    def __reduce__(self) -> tuple[object, ...]:
        return _revived, (type(self), self.args, vars(self))

    @classmethod
    def at(cls, what: str, *, todo: str = "", **place: object) -> Self:
        """Return an error with the fact `what`, the advice `todo`, and the place.

        Args:
            what: One sentence: the cause, then the fact. No final full stop.
            todo: The next action, as an imperative sentence without full stop.
            **place: Whatever of ``url member offset key field attempt worker`` is known. None is left out.
        """
        known = {name: value for name, value in place.items() if value is not None}
        if "url" in known:
            known["url"] = redact(shortened(str(known["url"])))  # known to be one URL, whatever it contains
        return cls(what, todo=todo, place=known)

    def noting(self, note: str) -> Self:
        """Return the same error with `note` after its last sentence.

        The note comes before the place. The cause is kept.

        Example:
            >>> print(TruncatedShardError.at("the shard ends early", offset=512).noting("3 samples were passed on"))
            The shard ends early; 3 samples were passed on
            [at] {"offset": 512}
        """
        if not self.todo:
            return self._renewed(f"{self.what}; {note}", "", self.place)
        noted_ways = [way._replace(text=f"; {way.text}") for way in Remedy.of(note).ways]
        return self._renewed(self.what, Remedy(*Remedy.of(self.todo).ways, *noted_ways), self.place)

    def placed(self, place: Mapping[str, object]) -> Self:
        """Return the same error in another `place`; the cause is kept.

        Example:
            >>> print(TruncatedShardError.at("the shard ends early", offset=512).placed({"key": "a"}))
            The shard ends early
            [at] {"key": "a"}
        """
        return self._renewed(self.what, self.todo, place)

    def _renewed(self, what: str, todo: str, place: Mapping[str, object]) -> Self:
        same = type(self)(what, todo=todo, place=place)
        vars(same).update({name: value for name, value in vars(self).items() if name not in vars(same)})
        same.__cause__ = self.__cause__
        return same

    @property
    def sentences(self) -> Sentences:
        """Fact and advice, without the place.

        Example:
            >>> UsageError.at("the folder is empty", todo="name another", url="ais://b").sentences
            'The folder is empty. Name another'
        """
        return Sentences(self.what, self.todo)

    @property
    def url(self) -> str | None:
        """The object or file."""
        return self.place.get("url")

    @property
    def member(self) -> str | None:
        """The name of the archive member."""
        return self.place.get("member")

    @property
    def offset(self) -> int | None:
        """The byte offset in the (decompressed) shard, or in the body."""
        return self.place.get("offset")

    @property
    def key(self) -> str | None:
        """The key of the sample."""
        return self.place.get("key")

    @property
    def field(self) -> str | None:
        """The field of the sample."""
        return self.place.get("field")

    @property
    def attempt(self) -> int | None:
        """Number of the try of the request."""
        return self.place.get("attempt")


def _shown_value(value: Any) -> Any:
    """Return plain values without secrets, and of a bounded length."""
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, dict):
        return {shortened(name): _shown_value(one) for name, one in value.items()}
    return [_shown_value(one) for one in value] if isinstance(value, list) else value


def _shown(todo: str) -> str:
    """Return a remedy for users: without secrets, with a capital letter."""
    if not isinstance(todo, Remedy) or not todo.ways:
        return sentence_case(clean(todo))
    first, *others = [way._replace(text=clean(way.text)) for way in todo.ways]
    return Remedy(first._replace(text=sentence_case(first.text)), *others)


def _revived(kind: type[_E], args: tuple[object, ...], attributes: dict[str, Any]) -> _E:
    """Return an error as it was, without reading its text."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


class TransportError(AISError):
    """Bytes did not arrive.

    Attributes:
        status: The HTTP status of the server's answer, if it was an error.
    """

    status: int | None = None


class ConnectError(TransportError, ConnectionError):
    """No connection to the cluster or to the node it named."""


class ReadError(TransportError):
    """The server answered with an error status, or the body broke off."""


class StallError(TransportError, TimeoutError):
    """Nothing arrived for longer than allowed."""


class ObjectChangedError(TransportError):
    """The version of the object differs from the one listed or partly read."""


class NotFoundError(TransportError, FileNotFoundError):
    """No such bucket, object or file."""


class AuthError(TransportError, PermissionError):
    """The token is missing, wrong, or does not give the right to read."""


class ShardError(AISError, tarfile.ReadError):
    """The bytes are not a whole, sound shard."""


class TruncatedShardError(ShardError, EOFError):
    """The shard ends before its end."""


class BadHeaderError(ShardError):
    """A header that cannot be right."""


class UnsupportedMemberError(BadHeaderError):
    """A member that a stream cannot contain: sparse, or with a distant link.

    The target of such a link is outside of the sample.
    """


class TrailingDataError(BadHeaderError):
    """Something that is no archive follows a whole archive.

    Every sample before it is passed on first.
    """


class ChecksumError(ShardError):
    """The bytes read are not the bytes that were stored."""


class NotATarError(ShardError):
    """The object is not a tar archive."""


class SampleError(AISError):
    """One sample cannot be used."""


class DuplicateFieldError(SampleError, ValueError):
    """Two members of one sample have the same field."""


class NonAdjacentKeyError(SampleError, ValueError):
    """A key comes again after other keys: its members are not adjacent."""


class MissingFieldError(SampleError, ValueError):
    """A sample lacks a field that is required."""


class DecodeError(SampleError, ValueError):
    """The bytes of a field do not have the format of its name."""


class EncodeError(SampleError, ValueError):
    """The value of a field cannot be written in the format of its name."""


class EmptyBatchError(SampleError, ValueError):
    """Filters or error policies left out all samples of a planned batch."""


class LoaderError(AISError, RuntimeError):
    """A loader, or one of its processes, cannot continue."""


class WorkerDiedError(LoaderError):
    """A worker process ended without an error: it was killed, or exited."""


class SampleIndexError(AISError, ValueError):
    """A sample index that is damaged, incomplete, or of an unknown form."""


class StateError(AISError, ValueError):
    """A checkpoint does not fit the pipeline, topology or data.

    Or it cannot be taken here.
    """


class UsageError(AISError, ValueError):
    """The call cannot work as written."""


class ArgumentError(UsageError, TypeError):
    """Wrong arguments of a call: an unknown option, too many, or too few."""


class MissingLibraryError(UsageError, ImportError):
    """A required optional library is not installed.

    It is never skipped like a bad sample.
    """


class DecodeUsageError(UsageError, DecodeError):
    """Fields cannot be decoded as requested, whatever their content.

    Examples are a pickle that is not allowed, and a value that is not bytes.
    """


class EncodeUsageError(UsageError, EncodeError):
    """Values cannot be written as requested: a pickle is not allowed."""


NEVER_SKIPPED: tuple[type[Exception], ...] = (UsageError, StateError, MemoryError, ImportError, NameError)
"""Errors of the call, the program or the machine, never skipped.

Code that catches errors to continue must let them pass. Skipped, they would make an empty data set, or an endless
loop over one. Other exceptions of a user's function are errors of its sample: the policy of the stage decides.
"""


def noted(error: Exception, note: str) -> None:
    """Add a note to an exception of any class.

    CPython 3.11 and later show it below the message.

    Example:
        >>> error = ValueError("no number")
        >>> noted(error, "in .map_sample(), over the sample 'a'")
        >>> error.__notes__
        ["in .map_sample(), over the sample 'a'"]
    """
    notes = vars(error).setdefault("__notes__", [])
    if (shown := clean(note)) not in notes:
        notes.append(shown)
