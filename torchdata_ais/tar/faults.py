"""What the tar reader says when an archive is not whole: cause, place, and what to do."""

from __future__ import annotations

from torchdata_ais.error_text import Remedy, in_commands, in_programs
from torchdata_ais.errors import BadHeaderError, NotATarError, ShardError, TruncatedShardError
from torchdata_ais.tar.kinds import kind_of

_REWRITE = "if the object is stored like this, write it again"
_PLAIN = (
    "write the shard again with plain members (GNU tar: without --sparse and --multi-volume; "
    "bsdtar: with --no-read-sparse)"
)


class Faults:
    """A maker of errors about one archive.

    Args:
        url: What the archive is called, if it has a name.
    """

    def __init__(self, url: str) -> None:
        self._url = url or None

    def truncated(self, where: str, end: int, member: str | None = None) -> TruncatedShardError:
        """The archive ends at byte `end`, `where` it should not."""
        what = f"the shard ends at byte {end}, {where}"
        return TruncatedShardError.at(what, todo=_REWRITE, url=self._url, member=member, offset=end)

    def no_end(self, end: int) -> TruncatedShardError:
        """The archive ends between two members."""
        what = f"the shard ends at byte {end} without an end marker, so that members may be missing"
        todo = Remedy(
            _REWRITE, "; if its writer never adds the marker, pass safety=Safety(require_end=False)"
        )
        return TruncatedShardError.at(what, todo=todo, url=self._url, offset=end)

    def bad_header(self, what: str, offset: int, member: str | None = None) -> BadHeaderError:
        """A header or extension header is damaged."""
        return BadHeaderError.at(
            f"{what}, at byte {offset}", todo=_REWRITE, url=self._url, member=member, offset=offset
        )

    def refused(self, what: str, offset: int, member: str | None = None) -> BadHeaderError:
        """A kind of member that cannot be read from a stream."""
        what = f"{what} cannot be read from a stream"
        return BadHeaderError.at(what, todo=_PLAIN, url=self._url, member=member, offset=offset)

    def too_long(self, what: str, limit: int, offset: int, member: str) -> BadHeaderError:
        """An extension header, or a name in it, is longer than any real one; `member` is how the name begins."""
        return BadHeaderError.at(
            f"{what}, more than {limit}, at byte {offset}",
            todo="write the shard again with shorter names, and without large attributes (tar: no --xattrs)",
            url=self._url,
            member=member,
            offset=offset,
        )

    def lone_zeros(self, offset: int) -> BadHeaderError:
        """One block of zeros, where an end marker has two: most likely a header that was wiped."""
        return self.bad_header("one block of zeros stands alone before more data", offset)

    def after_the_end(self, offset: int) -> BadHeaderError:
        """Neither zeros nor another archive follow the end marker."""
        return self.bad_header("data that is not another archive follows the end of the archive", offset)

    def not_a_tar(self, block: bytes) -> NotATarError:
        """The first block is no header."""
        todo = Remedy(
            in_programs("keep names that are not tar archives out of the listing with regex="),
            in_commands("name the shards alone, such as ais://bucket/train-"),
        )
        what = f"not a tar archive: {kind_of(block)}"
        return NotATarError.at(what, todo=todo, url=self._url, offset=0)

    def too_large(self, size: int, limit: int, member: str, offset: int) -> ShardError:
        """A member is larger than the caller allows."""
        return ShardError.at(
            f"a member has {size} bytes, more than max_member_bytes={limit}",
            todo="raise max_member_bytes if members may be this large",
            url=self._url,
            member=member,
            offset=offset,
        )
