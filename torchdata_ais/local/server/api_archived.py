"""Files out of an object that is an archive: one by its path, or all that match, as a tar."""

from __future__ import annotations

from collections.abc import Iterator

from .archive import Archive, File, Member, archive_of, matching, packed
from .files import FileSlice
from .problem import ReplyError
from .reply import Reply
from .routes import Call
from .store import Object


def get_archived(call: Call, entry: Object, file: FileSlice) -> Reply:
    """Answer a GET with `archpath` or `archregx`. `file` stays open."""
    path, regex, mode = (call.query.get(name, "") for name in ("archpath", "archregx", "archmode"))
    if "range" in call.request.headers:
        asked = f"archpath={path}" if path else f"archregx={regex}"
        ranges = call.request.headers["range"]
        message = f"cannot range-read archived content range: {ranges}, arch query: ({asked})"
        raise ReplyError(400, f"{message} - operation not supported", "ErrUnsupp")
    if path and regex:
        both = 'archpath="archpath" (match one) and archregx="archregx" (match many) are mutually exclusive'
        raise ReplyError(400, f"dpq: 'archpath={path}', err: dpq: {both}")
    archive = archive_of(file, entry, call.query.get("archmime", ""))
    if path:
        found = archive.find(path)
        if found is None:
            raise member_missing(call, call.bucket, entry.name, path)
        return Reply(200, {"Content-Type": "application/octet-stream"}, archive.body(found))
    positions = matching([member.name for member in archive.files], regex, mode)
    if not positions:
        asked = f"(archregx={regex}, archmode={mode})"
        raise member_missing(call, call.bucket, entry.name, asked)
    wanted = [archive.files[position] for position in positions]
    own = archive_of(file.part(0, file.size), entry, call.query.get("archmime", ""))
    return Reply(200, {"Content-Type": "application/x-tar"}, packed(".tar", _files(own, wanted)))


def member_missing(call: Call, bucket: str, name: str, path: str) -> ReplyError:
    """No such file in the archive."""
    return ReplyError(404, f"{call.node.tag}: {path} in ais://{bucket}/{name} does not exist", "ErrNotFound")


def _files(archive: Archive, wanted: list[Member]) -> Iterator[File]:
    with archive.file:
        yield from archive.copied(wanted)
