"""One bucket to write to, with this package's retries and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from os.path import commonprefix
from pathlib import Path
from typing import Any

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._objects import same_file
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import AISError, NotFoundError, UsageError
from torchdata_ais.shown import bytes_text, count_text
from torchdata_ais.store import StoreOptions, list_objects, put_object
from torchdata_ais.store.naming import naming
from torchdata_ais.store.pages import list_bucket
from torchdata_ais.store.sdk import call, check_new_name, sdk_bucket, sdk_client
from torchdata_ais.store.sdk import make_bucket as _make
from torchdata_ais.urls import Location, ObjectURL, bucket_place, parse_url


@dataclass(frozen=True)
class Bucket:
    """A bucket to write to.

    Args:
        options: The cluster.
        place: The bucket.
    """

    options: StoreOptions
    place: Location

    @classmethod
    def of(cls, place: Location, options: StoreOptions) -> Bucket:
        """Return the bucket that `place` is in."""
        return cls(options, bucket_place(place.bucket, place.provider))

    @property
    def uri(self) -> str:
        """Its name, as ``ais://name``."""
        return self.place.uri.rstrip("/")

    def is_missing(self) -> bool:
        """Return whether it is not there and can be made; those of other providers are there or not."""
        check_new_name(self.place)
        with sdk_client(self.options) as client:
            try:
                call(sdk_bucket(client, self.place).head, self.options, f"bucket {self.uri}", self.uri)
            except NotFoundError:
                return self.place.provider == "ais"
            return False

    def create(self) -> None:
        """Make the bucket if it is missing."""
        check_new_name(self.place)
        with sdk_client(self.options) as client:
            _make(client, self.place, self.options)

    def holds(self, items: Sequence[tuple[str, Path | ObjectURL]], *, overwrite: bool) -> set[str]:
        """Return which names are there with the bytes that are to be stored under them.

        Args:
            items: Names, each with a file or an object.
            overwrite: Whether names with other bytes may stand there.

        Raises:
            UsageError: There are such, and they may not.
        """
        prefix = commonprefix([name for name, _ in items])  # noqa: RUF071 - of names, not of paths
        url = f"{self.uri}/{prefix}"
        objects = list_objects(url, options=self.options, beside=True, allow_empty=True)
        listed = {parse_url(one).name: one for one in objects}
        there = {name: _same(listed[name], content) for name, content in items if name in listed}
        other = [name for name, same in there.items() if not same]
        if other and not overwrite:
            raise UsageError.at(
                f"something else is stored already under {count_text(len(other), 'of these name')}",
                todo=Remedy("pass overwrite=True", "choose other names"),
                url=f"{self.uri}/{other[0]}",
            )
        return {name for name, same in there.items() if same}

    def put(self, name: str, content: bytes) -> None:
        """Store one object."""
        put_object(f"{self.uri}/{name}", content, self.options)

    def put_file(self, name: str, path: Path, moved: Callable[[int], None]) -> None:
        """Store one file; `moved` is told what is sent."""
        with naming(str(path)), _Sent(path, moved) as file:
            put_object(f"{self.uri}/{name}", file, self.options)

    def put_blocks(self, name: str, blocks: Iterator[bytes], moved: Callable[[int], None]) -> int:
        """Store what comes in blocks, and return its size."""

        def told() -> Iterator[bytes]:
            for block in blocks:
                moved(len(block))
                yield block

        return put_object(f"{self.uri}/{name}", told(), self.options).size or 0

    def delete_if_empty(self) -> None:
        """Remove the bucket, unless there is something in it, be it an index."""
        if not list_bucket(self.place.at(self.options.endpoint), "", self.options):
            self.delete()

    def delete(self) -> None:
        """Remove the bucket and all in it."""
        with sdk_client(self.options) as client:
            bucket = sdk_bucket(client, self.place)
            call(lambda: bucket.delete(missing_ok=True), self.options, f"bucket {self.uri}", self.uri)


def tell_stored(bucket: Bucket, rows: Sequence[Mapping[str, Any]], size: int, *, as_json: bool) -> None:
    """Print what was stored.

    Args:
        bucket: Where.
        rows: Of each object, what JSON has of it, such as whether it was ``stored``: else it was there already.
        size: The bytes that were stored.
        as_json: Whether to print JSON.
    """
    stored = sum(row["stored"] for row in rows)
    there = len(rows) - stored
    if as_json:
        echo_json({"stored": stored, "there": there, "size": size, "objects": rows}, indent=1)
        return
    more = f"; {there} there already" if there else ""
    echo(f"stored {count_text(stored, 'object')}, {bytes_text(size)}, in {bucket.uri}{more}")


class _Sent(FileIO):
    """A file that tells what is read of it after it was rewound: the first time it is only hashed."""

    def __init__(self, path: Path, moved: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._moved = moved
        self._sent: int | None = None

    def seek(self, offset: int, whence: int = 0) -> int:
        self._moved(-(self._sent or 0))
        self._sent = 0
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> Any:
        data = super().read(-1 if size is None else size)
        if self._sent is not None:
            self._sent += len(data or b"")
            self._moved(len(data or b""))
        return data


def _same(listed: ObjectURL, content: Path | ObjectURL) -> bool:
    if isinstance(content, Path):
        return bool(same_file(listed, content))
    return bool(listed.checksum) and (listed.checksum, listed.size) == (content.checksum, content.size)


@contextmanager
def new_bucket(bucket: Bucket | None) -> Iterator[None]:
    """Have the bucket there while something is written; one that was made and stayed empty goes when that fails."""
    if bucket is None or not bucket.is_missing():
        yield
        return
    try:  # from before it is made: the answer may not come any more
        bucket.create()
        yield
    except BaseException:
        with suppress(AISError):  # what failed first is what is told
            bucket.delete_if_empty()
        raise


def bucket_for(target: str, options: StoreOptions | None) -> Bucket | None:
    """Return the bucket that `target` names, if it names one."""
    place = parse_url(target)
    return (
        Bucket.of(place, options)
        if options is not None and place.kind == "object" and not place.namespace
        else None
    )
