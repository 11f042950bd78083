"""Files out of an object that is an archive: one by its path, or all that match, as a tar."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .archive import TAR_END, Archive, NotAnArchiveError, body_of, contents, matching, tar_member
from .problem import ReplyError
from .reply import Reply
from .routes import Call
from .store import Object

__all__ = ["archive_of", "get_archived", "member_missing"]


def get_archived(call: Call, entry: Object, fd: int) -> Reply:
    """Answer a GET with `archpath` or `archregx`; closes `fd`."""
    path, regex = call.query.get("archpath", ""), call.query.get("archregx", "")
    try:
        if "range" in call.request.headers:
            asked = f"archpath={path}" if path else f"archregx={regex}"
            ranges = call.request.headers["range"]
            message = f"cannot range-read archived content range: {ranges}, arch query: ({asked})"
            raise ReplyError(400, f"{message} - operation not supported", "ErrUnsupp")
        if path and regex:
            both = (
                'archpath="archpath" (match one) and archregx="archregx" (match many) are mutually exclusive'
            )
            raise ReplyError(400, f"dpq: 'archpath={path}', err: dpq: {both}")
        archive = archive_of(call, entry, fd)
        if path:
            found = archive.find(path)
            if found is None:
                raise member_missing(call, call.bucket, entry.name, path)
            headers = [("Content-Type", "application/octet-stream")]
            try:
                return Reply(200, headers, body_of(fd, archive, found))
            except NotAnArchiveError as cause:
                raise ReplyError(400, f"archive: {entry.name} is damaged ({cause})") from cause
        names = [name for name, _, _ in archive.files]
        found_at = matching(names, regex, call.query.get("archmode", ""))
        wanted = [archive.files[position] for position in found_at]
        if not wanted:
            asked = f"(archregx={regex}, archmode={call.query.get('archmode', '')})"
            raise member_missing(call, call.bucket, entry.name, asked)
        return Reply(200, [("Content-Type", "application/x-tar")], _tar_of(os.dup(fd), archive, wanted))
    finally:
        os.close(fd)


def archive_of(call: Call, entry: Object, fd: int) -> Archive:
    """The index of an object that should be an archive."""
    try:
        return call.cluster.archives.load(fd, entry.file, entry.name, call.query.get("archmime", ""))
    except NotAnArchiveError as cause:
        raise ReplyError(400, f"archive/tar: invalid tar header ({cause})") from cause


def member_missing(call: Call, bucket: str, name: str, path: str) -> ReplyError:
    """No such file in the archive."""
    return ReplyError(404, f"{call.node.tag}: {path} in ais://{bucket}/{name} does not exist", "ErrNotFound")


def _tar_of(fd: int, archive: Archive, wanted: list[tuple[str, int, int]]) -> Iterator[bytes]:
    try:
        for (name, _, _), content in zip(wanted, contents(fd, archive, wanted), strict=True):
            yield tar_member(name, content)
        yield TAR_END
    finally:
        os.close(fd)
