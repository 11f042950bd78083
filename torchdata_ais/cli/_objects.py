"""Objects and files that a command names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from torchdata_ais._util.files import naming
from torchdata_ais._util.formatting import bytes_text, count_text
from torchdata_ais.cli._output import echo, echo_json
from torchdata_ais.errors import AISError, NotFoundError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.store import (
    StoreOptions,
    head_object,
    list_objects,
    open_blocks,
    put_object,
    with_neighbours,
)
from torchdata_ais.store.objects.pages import list_bucket
from torchdata_ais.store.objects.sdk import call, check_new_name, sdk_bucket, sdk_client
from torchdata_ais.store.objects.sdk import make_bucket as _make
from torchdata_ais.store.transport.metadata import hash_like
from torchdata_ais.urls import Location, MemberPath, ObjectURL, below_fault, bucket_place, parse_url
from torchdata_ais.urls.parsing import common_beginning

_BY_CLUSTER = (".tar", ".tgz", ".tar.gz")
"""Shards out of which AIStore gives single members."""

_BLOCK = 1 << 20


class Found(NamedTuple):
    """An object, a shard's member, or a listed object to read.

    Size and checksum of the URL are those of an object, if known. `name` is that at the target, within a folder or
    prefix; `member` is "" for a whole object.
    """

    url: ObjectURL
    name: str
    member: str = ""

    @property
    def uri(self) -> str:
        """Its name for people."""
        return parse_url(self.url).uri + (f"/{self.member}" if self.member else "")


def object_place(url: str) -> Location:
    """Return where `url` is in AIStore, or raise `UsageError`."""
    place = parse_url(url)
    if place.kind != "object":
        raise UsageError.at("this is no bucket", todo="write ais://bucket or ais://bucket/prefix", url=url)
    return place


def find(url: str, options: StoreOptions, *, prefix: bool = True) -> list[Found]:
    """Return the object of this name, a shard's member, or a prefix's objects.

    With `prefix`, names that only begin so are meant, too.
    """
    place = object_place(url)
    if "{" in place.name:
        return _below(place, named_objects(url, options))
    is_name = place.name and not place.name.endswith("/")
    if is_name:
        try:
            return [Found(head_object(url, options), PurePosixPath(place.name).name)]
        except NotFoundError:
            pass
        if is_member(url, options):
            shard, member = _split(place)
            return [Found(ObjectURL(shard.at(options.endpoint).url()), PurePosixPath(member).name, member)]
    if not prefix and not is_name:
        raise UsageError.at(
            "this names no object", todo=f"name one: torchdata-ais ls {url} shows them", url=url
        )
    below = list_objects(url, options=options, beside=True)
    if prefix:
        return _below(place, below)
    near = ", ".join(parse_url(one).uri for one in below[:3])
    more = f" or {count_text(len(below) - 3, 'other')}" if len(below) > 3 else ""
    raise NotFoundError.at(f"there is no object {place.uri}", todo=f"did you mean {near}{more}?", url=url)


def named_objects(url: str, options: StoreOptions, regex: str = "") -> list[ObjectURL]:
    """Return the objects that a template names, each looked up.

    Raises:
        NotFoundError: One of them is not there; or `regex` is found in none of the names.
    """
    urls = list_objects(url, regex=regex or None, options=options, beside=True)
    return [_looked_up(one, options, len(urls)) for one in urls]


def _looked_up(url: ObjectURL, options: StoreOptions, named: int) -> ObjectURL:
    """Return one of the `named` objects of a template."""
    try:
        return head_object(url, options)
    except NotFoundError as error:
        told = with_neighbours(error, url, options, named)
        raise told from told.__cause__


def is_member(url: str, options: StoreOptions) -> bool:
    """Report whether `url` names a member of an existing shard."""
    shard, member = _split(parse_url(url))
    if not member:
        return False
    try:
        head_object(shard, options)
    except NotFoundError:
        return False
    return True


def _split(place: Location) -> tuple[Location, str]:
    """Return the shard and the name in it; "" where it is not a member."""
    path = MemberPath(place.name)
    return replace(place, name=path.url), path.member if path.url else ""


def _below(place: Location, urls: list[ObjectURL]) -> list[Found]:
    """Return objects, named after the last slash of a prefix's fixed part."""
    cut = place.name.partition("{")[0].rpartition("/")[0]
    skip = len(cut) + 1 if cut else 0
    return [Found(url, parse_url(url).name[skip:]) for url in urls]


@contextmanager
def blocks_of(found: Found, options: StoreOptions) -> Iterator[Iterator[bytes]]:
    """Open an object or a member, and give its blocks."""
    if not found.member:
        with open_blocks(found.url, options) as source:
            yield source
        return
    place = parse_url(found.url)
    missing = f"torchdata-ais ls {place.uri}/ shows its members"
    if place.name.endswith(_BY_CLUSTER):
        part = replace(place, params={**place.params, "archpath": found.member})
        try:
            with open_blocks(ObjectURL(part.url()), options) as source:
                yield source
        except NotFoundError as error:
            raise NotFoundError.at(
                f"the shard has no member {found.member!r}", todo=missing, url=place.uri
            ) from error
        return
    yield iter([_member(found, options, missing)])


def _member(found: Found, options: StoreOptions, missing: str) -> bytes:
    """Read a shard up to a member."""
    from torchdata_ais.tar import TarReader, decompress

    with open_blocks(found.url, options) as source:
        blocks = decompress(source, url=found.url)
        for _, data, _, _ in TarReader(blocks, url=found.url, want=lambda name: name == found.member):
            if isinstance(data, bytes):
                return data
    raise NotFoundError.at(f"the shard has no member {found.member!r}", todo=missing, url=found.uri)


def same_file(wanted: ObjectURL, path: Path) -> bool | None:
    """Compare a file with an object's metadata; None without a checksum."""
    with naming(str(path)), path.open("rb") as file:
        if wanted.size is not None and wanted.size != path.stat().st_size:
            return False
        digest = hash_like(wanted.checksum)
        if digest is None:
            return None
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
        return digest.hexdigest() == wanted.checksum


def target_names(found: list[Found], folder: bool, target: str) -> list[str]:
    """Return the name in or at `target` for each of `found`.

    `folder` is true for a folder, or a prefix that ends with a slash.

    Raises:
        UsageError: Several things for one name; a name that leads out of the folder.
    """
    if not folder:
        if len(found) > 1:
            raise UsageError.at(
                f"{len(found)} objects cannot have one name", todo=f"end the target with a slash: {target}/"
            )
        return [""]
    for one in found:
        if below_fault(one.name):
            raise UsageError.at(f"{one.uri} has no name that is safe below {target}", todo="name its target")
    return [one.name for one in found]


@dataclass(frozen=True)
class Bucket:
    """A bucket to write to."""

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
        """Report whether it is missing and can be made, as ``ais://`` ones can."""
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
        """Return which names are stored already with the same bytes.

        Raises:
            UsageError: Some have other bytes, without `overwrite`.
        """
        url = f"{self.uri}/{common_beginning([name for name, _ in items])}"
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
        """Store one file; `moved` is called with the bytes sent."""
        with naming(str(path)), _Sent(path, moved) as file:
            put_object(f"{self.uri}/{name}", file, self.options)

    def put_blocks(self, name: str, blocks: Iterator[bytes], moved: Callable[[int], None]) -> int:
        """Store blocks of bytes, and return their size."""

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
    """Print the stored objects; their rows say which are ``stored`` just now."""
    stored = sum(row["stored"] for row in rows)
    there = len(rows) - stored
    if as_json:
        echo_json({"stored": stored, "there": there, "size": size, "objects": rows}, indent=1)
        return
    more = f"; {there} there already" if there else ""
    echo(f"stored {count_text(stored, 'object')}, {bytes_text(size)}, in {bucket.uri}{more}")


class _Sent(FileIO):
    """A file that reports bytes read after a rewind; before, it is hashed."""

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
    """Create a missing bucket for the block; remove it on an error if empty."""
    if bucket is None or not bucket.is_missing():
        yield
        return
    try:  # from before it is made: the answer may not come any more
        bucket.create()
        yield
    except BaseException:
        with suppress(AISError):  # the first error is reported
            bucket.delete_if_empty()
        raise


def bucket_for(target: str, options: StoreOptions | None) -> Bucket | None:
    """Return the bucket that `target` names, if it names one."""
    place = parse_url(target)
    if options is None or place.kind != "object" or place.namespace:
        return None
    return Bucket.of(place, options)
