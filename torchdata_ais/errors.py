"""The errors of this package: what happened, where, and what to do about it.

::

    AISError
    |-- TransportError          bytes did not arrive; the retryable ones were retried before you see them
    |   |-- ConnectError        no connection (also a ConnectionError)
    |   |-- ReadError           the server answered with an error, or the body broke off for good
    |   |-- StallError          nothing arrived for too long (also a TimeoutError)
    |   |-- ObjectChangedError  another version of the object than the one listed or begun
    |   |-- NotFoundError       no such bucket or object (also a FileNotFoundError)
    |   `-- AuthError           token missing, wrong or without the right (also a PermissionError)
    |-- ShardError              the bytes arrived, but they are not a whole, sound shard
    |   |-- TruncatedShardError the shard ends before its end (also an EOFError)
    |   |-- BadHeaderError      a tar header that cannot be right
    |   |   `-- UnsupportedMemberError  a sparse member, or a link whose target is not in its sample
    |   |-- ChecksumError       the body is not the one the cluster stored
    |   `-- NotATarError        not a tar archive at all
    |-- SampleError             one sample cannot be used
    |   |-- DuplicateFieldError two members with the same key and field
    |   |-- NonAdjacentKeyError a key met again later in its shard
    |   |-- MissingFieldError   a required field is not there
    |   |-- DecodeError         the bytes of a field are not what its name says
    |   `-- EncodeError         a value cannot be written as what the name of its field says
    |-- LoaderError             a loader or one of its processes cannot go on
    |   `-- WorkerDiedError     a worker process ended without saying why
    |-- SampleIndexError        a sample index that is damaged, or of another form
    |-- StateError              a checkpoint that does not fit the pipeline or the data
    `-- UsageError              the call itself cannot work (also a ValueError)
        |-- MissingLibraryError an optional library is not installed (also an ImportError)
        |-- DecodeUsageError    decoding was asked for in a way that fails for any data (also a DecodeError)
        `-- EncodeUsageError    likewise for writing (also an EncodeError)

What is wrong with the call, the program or the machine, rather than with the data, is one of `NEVER_SKIPPED`, and
passes every ``on_error=``, every handler and every loop over samples.

Every error takes one string, so that it pickles and so that loaders, which rebuild exceptions from their
text in another process, lose nothing: the place is written as the last line of the message in a fixed form
(``[at] {json}``), and ``error.url``, ``.member``, ``.offset``, ``.key`` read it back from there.

No error shows a secret or a control character: all of them take their text through `redaction.clean`.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any, ClassVar

from typing_extensions import Self

from torchdata_ais.redaction import RedactingFilter, clean, redact

__all__ = [
    "AISError",
    "AuthError",
    "BadHeaderError",
    "ChecksumError",
    "ConnectError",
    "DecodeError",
    "DecodeUsageError",
    "DuplicateFieldError",
    "EncodeError",
    "EncodeUsageError",
    "LoaderError",
    "MissingFieldError",
    "MissingLibraryError",
    "NonAdjacentKeyError",
    "NotATarError",
    "NotFoundError",
    "ObjectChangedError",
    "ReadError",
    "SampleError",
    "SampleIndexError",
    "ShardError",
    "StallError",
    "StateError",
    "TransportError",
    "TruncatedShardError",
    "UnsupportedMemberError",
    "UsageError",
    "WorkerDiedError",
]

logging.getLogger("torchdata_ais").addFilter(RedactingFilter())

_PLACE = re.compile(r"^\[at\] (\{.*\})$", re.MULTILINE)


class AISError(Exception):
    """Base of every error this package raises.

    Build one with `at`, which writes the place into the message, or with a plain message.

    Example:
        >>> error = TruncatedShardError.at("the shard ends inside a member", url="ais://b/s.tar", offset=512)
        >>> error.offset
        512
        >>> print(error)
        the shard ends inside a member
        [at] {"url": "ais://b/s.tar", "offset": 512}
    """

    retryable: ClassVar[bool] = False
    """Whether trying the same request again can help: a property of the class."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clean(str(message)))

    @classmethod
    def at(cls, what: str, *, todo: str = "", **place: Any) -> Self:
        """Return an error that says `what` happened, what `todo`, and the place.

        Args:
            what: One sentence: the cause, then the fact. No final full stop.
            todo: What the reader should do next, as an imperative sentence without full stop.
            **place: Whatever of ``url member offset key field attempt worker`` is known. None is left out.
        """
        text = f"{what}. {todo}" if todo else what
        known = {name: value for name, value in place.items() if value is not None}
        if "url" in known:
            known["url"] = redact(str(known["url"]))  # known to be one URL, whatever stands in it
        if known:
            text += f"\n[at] {json.dumps(known, default=str)}"
        return cls(text)

    def noting(self, note: str) -> Self:
        """Return the same error with `note` added to its sentence, before the place; the cause is kept.

        Example:
            >>> print(TruncatedShardError.at("the shard ends early", offset=512).noting("3 samples were passed on"))
            the shard ends early; 3 samples were passed on
            [at] {"offset": 512}
        """
        text, line, place = str(self).partition("\n[at] ")
        noted = type(self)(f"{text}; {note}{line}{place}")
        noted.__cause__ = self.__cause__
        return noted

    @property
    def place(self) -> dict[str, Any]:
        """The fields of the last ``[at]`` line, or an empty dict. Works on errors rebuilt from text, too."""
        found = _PLACE.findall(str(self))
        if not found:
            return {}
        try:
            place: dict[str, Any] = json.loads(found[-1])
        except ValueError:
            return {}
        return place

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
        """How many times the request was tried."""
        return self.place.get("attempt")


class TransportError(AISError):
    """Bytes did not arrive."""


class ConnectError(TransportError, ConnectionError):
    """No connection to the cluster or to the node it named."""

    retryable = True


class ReadError(TransportError):
    """The server answered with an error status, or the body broke off."""

    retryable = True


class StallError(TransportError, TimeoutError):
    """Nothing arrived for longer than allowed."""

    retryable = True


class ObjectChangedError(TransportError):
    """The object is another version than the one listed, or than the one whose first part was read."""


class NotFoundError(TransportError, FileNotFoundError):
    """No such bucket, object or file."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class AuthError(TransportError, PermissionError):
    """The token is missing, wrong, or does not give the right to read."""


class ShardError(AISError):
    """The bytes are not a whole, sound shard."""


class TruncatedShardError(ShardError, EOFError):
    """The shard ends before its end."""


class BadHeaderError(ShardError):
    """A header that cannot be right."""


class UnsupportedMemberError(BadHeaderError):
    """A kind of member that cannot be read from a stream: sparse, or a link out of its sample."""


class ChecksumError(ShardError):
    """The bytes read are not the bytes that were stored."""

    retryable = True


class NotATarError(ShardError):
    """The object is not a tar archive."""


class SampleError(AISError):
    """One sample cannot be used."""


class DuplicateFieldError(SampleError, ValueError):
    """Two members of one sample have the same field."""


class NonAdjacentKeyError(SampleError, ValueError):
    """A key was met again after other keys: its members do not stand together."""


class MissingFieldError(SampleError, ValueError):
    """A sample lacks a field that is required."""


class DecodeError(SampleError, ValueError):
    """The bytes of a field cannot be decoded as what its name says."""


class EncodeError(SampleError, ValueError):
    """The value of a field cannot be written as what its name says."""


class LoaderError(AISError, RuntimeError):
    """A loader, or one of its processes, cannot go on."""


class WorkerDiedError(LoaderError):
    """A worker process ended without an error of its own: killed, out of memory, or exited."""


class SampleIndexError(AISError, ValueError):
    """A sample index that is damaged, incomplete, or of a form that this package does not read."""


class StateError(AISError, ValueError):
    """A checkpoint does not fit this pipeline, this topology or the data, or cannot be taken here."""


class UsageError(AISError, ValueError):
    """The call cannot work as written."""


class MissingLibraryError(UsageError, ImportError):
    """An optional library is needed here and is not installed. Never skipped as if a sample were bad."""

    def __str__(self) -> str:
        # ImportError has a text of its own, which would leave out everything but the message.
        return str(self.args[0]) if self.args else ""


class DecodeUsageError(UsageError, DecodeError):
    """Fields cannot be decoded as it was asked for, whatever they hold: a pickle is not allowed, a value no bytes."""


class EncodeUsageError(UsageError, EncodeError):
    """Values cannot be written as it was asked for: a pickle is not allowed."""


NEVER_SKIPPED: tuple[type[Exception], ...] = (UsageError, StateError, MemoryError, ImportError, NameError)
"""Errors of the call, the program or the machine: whoever catches errors to go on after them lets these pass.

Skipped, they would make an empty data set, or an endless loop over one. What a function of the user raises besides is
an error of its sample: the policy of the stage decides.
"""
