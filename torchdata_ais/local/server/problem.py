"""Error answers: the status, the `tcode` and the text that AIStore gives, which its SDK reads by pattern."""

from __future__ import annotations

import errno
import os

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ReplyError(Exception):
    """A request that is answered with an error status.

    Args:
        status: HTTP status.
        message: What AIStore's `message` field says.
        tcode: AIStore's type of error, left out of the answer when empty.
        headers: Further headers of the answer.
    """

    def __init__(
        self, status: int, message: str, tcode: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.tcode = tcode
        self.headers = headers or {}


def bad_bucket_name() -> ReplyError:
    """A name that no bucket may have."""
    only = "may only contain letters, numbers, dashes (-), underscores (_), and dots (.)"
    return ReplyError(400, f"bucket name is invalid: {only}")


def bucket_missing(name: str) -> ReplyError:
    """No such bucket."""
    return ReplyError(404, f'bucket "ais://{name}" does not exist', "ErrBckNotFound")


def bucket_exists(name: str) -> ReplyError:
    """The bucket is there already."""
    return ReplyError(409, f'bucket "ais://{name}" already exists', "ErrBucketAlreadyExists")


def object_missing(node: str, bucket: str, name: str) -> ReplyError:
    """No such object, in the words of the target `node`."""
    return ReplyError(404, f"{node}: ais://{bucket}/{name} does not exist", "ErrNotFound")


def not_recovered(node: str, bucket: str, name: str) -> ReplyError:
    """No such object in a bucket with erasure coding: a GET tries to recover it from slices."""
    return ReplyError(
        400, f"{node}: failed to EC-recover ais://{bucket}/{name}, err: no metafile", "ErrFailedTo"
    )


def parts_lost(size: int, left: int) -> ReplyError:
    """An object of `size` bytes whose metadata count one piece, of which `left` bytes are on the disk."""
    return ReplyError(500, f"errsize ({size} != {left})", "ErrLmetaCorrupted")


def invalid_path(what: str, name: str) -> ReplyError:
    """A name with parts that could leave the bucket."""
    return ReplyError(400, f'invalid {what} "{name}"', "errInvalidPath")


def not_implemented(what: str) -> ReplyError:
    """Something a real cluster may do and this one does not: said by name, never guessed."""
    message = f"{what}: not implemented by the embedded cluster - operation not supported"
    return ReplyError(501, message, "ErrUnsupp")


def of_the_machine(node: str, error: OSError) -> ReplyError:
    """What the system refused: 507 for a full disk, 503 for what passes, 500 for all else."""
    code = error.errno or 0
    status = 507 if code in _FULL else 503 if code in _SHORT else 500
    name = errno.errorcode.get(code, type(error).__name__)
    return ReplyError(status, f"{node}: [Errno {code}] {name}: {os.strerror(code) if code else error}", name)
