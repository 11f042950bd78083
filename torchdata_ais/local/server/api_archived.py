"""Files out of an object that is an archive: one by its path, or all that match, as a tar."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .archive import TAR_END, Archive, NotAnArchive, body_of, contents, matcher, tar_member
from .problem import Problem
from .reply import Reply
from .routes import Call
from .store import Object

__all__ = ["archive_of", "get_archived", "member_missing"]


def get_archived(call: Call, entry: Object, fd: int) -> Reply:
    """Answer a GET with `archpath` or `archregx`; closes `fd`."""
    path, regex = call.query.get("archpath", ""), call.query.get("archregx", "")
    try:
        if "range" in call.request.headers:
            message = f"cannot range-read archived file {path} - operation not supported"
            raise Problem(416, message, "ErrUnsupp")
        if path and regex:
            raise Problem(400, "archpath and archregx cannot be given together")
        archive = archive_of(call, entry, fd)
        if path:
            found = archive.find(path)
            if found is None:
                raise member_missing(call, call.bucket, entry.name, path)
            headers = [("Content-Type", "application/octet-stream")]
            return Reply(200, headers, body_of(fd, archive, found))
        fits = matcher(regex, call.query.get("archmode", ""))
        wanted = [file for file in archive.files if fits(file[0])]
        if not wanted:
            raise member_missing(call, call.bucket, entry.name, f"{regex!r}")
        return Reply(200, [("Content-Type", "application/x-tar")], _tar_of(os.dup(fd), archive, wanted))
    finally:
        os.close(fd)


def archive_of(call: Call, entry: Object, fd: int) -> Archive:
    """The index of an object that should be an archive."""
    try:
        return call.cluster.archives.load(fd, entry.file, entry.name, call.query.get("archmime", ""))
    except NotAnArchive as cause:
        cname = f"ais://{call.bucket}/{entry.name}"
        raise Problem(500, f"{call.node.tag}: failed to read archive {cname}: {cause}") from cause


def member_missing(call: Call, bucket: str, name: str, path: str) -> Problem:
    """No such file in the archive."""
    return Problem(404, f"{call.node.tag}: {path} in ais://{bucket}/{name} does not exist", "ErrNotFound")


def _tar_of(fd: int, archive: Archive, wanted: list[tuple[str, int, int]]) -> Iterator[bytes]:
    try:
        for (name, _, _), content in zip(wanted, contents(fd, archive, wanted), strict=True):
            yield tar_member(name, content)
        yield TAR_END
    finally:
        os.close(fd)


