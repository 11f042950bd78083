"""Error answers: the status, the `tcode` and the text that AIStore gives, which its SDK reads by pattern."""

from __future__ import annotations

__all__ = [
    "Problem",
    "bucket_exists",
    "bucket_missing",
    "invalid_path",
    "not_implemented",
    "object_missing",
]


class Problem(Exception):
    """A request that is answered with an error status.

    Args:
        status: HTTP status.
        message: What AIStore's `message` field says.
        tcode: AIStore's type of error, left out of the answer when empty.
        headers: Further headers of the answer.
    """

    def __init__(
        self, status: int, message: str, tcode: str = "", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.tcode = tcode
        self.headers = headers


def bucket_missing(name: str) -> Problem:
    """No such bucket."""
    return Problem(404, f'bucket "ais://{name}" does not exist', "ErrBckNotFound")


def bucket_exists(name: str) -> Problem:
    """The bucket is there already."""
    return Problem(409, f'bucket "ais://{name}" already exists', "ErrBucketAlreadyExists")


def object_missing(node: str, bucket: str, name: str) -> Problem:
    """No such object, in the words of the target `node`."""
    return Problem(404, f"{node}: ais://{bucket}/{name} does not exist", "ErrNotFound")


def invalid_path(what: str, name: str) -> Problem:
    """A name with parts that could leave the bucket."""
    return Problem(400, f'invalid {what} "{name}"', "errInvalidPath")


def not_implemented(what: str) -> Problem:
    """Something a real cluster may do and this one does not: said by name, never guessed."""
    message = f"{what}: not implemented by the embedded cluster - operation not supported"
    return Problem(501, message, "ErrUnsupp")
