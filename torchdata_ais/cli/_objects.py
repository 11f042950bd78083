"""What a URL on the command line names: an object, a member of a shard, or all objects of a prefix or template."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.shown import count_text
from torchdata_ais.store import StoreOptions, head_object, list_objects, open_blocks, with_neighbours
from torchdata_ais.store.hashes import hash_like
from torchdata_ais.store.naming import naming
from torchdata_ais.urls import Location, MemberPath, ObjectURL, below_fault, parse_url

_BY_CLUSTER = (".tar", ".tgz", ".tar.gz")
"""Shards out of which AIStore gives single members."""

_BLOCK = 1 << 20


class Found(NamedTuple):
    """Something that can be read.

    Attributes:
        url: The object, or the shard; size and checksum of an object where they are known.
        name: What it is called where it is copied to, below a folder or prefix.
        member: The member's name; "" for a whole object.
    """

    url: ObjectURL
    name: str
    member: str = ""

    @property
    def uri(self) -> str:
        """Its name for people."""
        return parse_url(self.url).uri + (f"/{self.member}" if self.member else "")


def object_place(url: str) -> Location:
    """Return where `url` is in AIStore.

    Raises:
        UsageError: It is something else.
    """
    place = parse_url(url)
    if place.kind != "object":
        raise UsageError.at("this is no bucket", todo="write ais://bucket or ais://bucket/prefix", url=url)
    return place


def find(url: str, options: StoreOptions, *, prefix: bool = True) -> list[Found]:
    """Return the object of this name; or the member of a shard; or all objects whose names begin so.

    Args:
        url: A name, a prefix, or a template of names.
        options: The cluster.
        prefix: Whether names that only begin so are meant, too.

    Raises:
        NotFoundError: There is none of these.
        UsageError: It can be nothing but a prefix, and those are not meant.
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
    """Whether `url` names something inside of a shard that is there."""
    shard, member = _split(parse_url(url))
    if not member:
        return False
    try:
        head_object(shard, options)
    except NotFoundError:
        return False
    return True


def _split(place: Location) -> tuple[Location, str]:
    """Return the shard and the name in it; no name where this cannot be a member."""
    path = MemberPath(place.name)
    return replace(place, name=path.url), path.member if path.url else ""


def _below(place: Location, urls: list[ObjectURL]) -> list[Found]:
    """Return objects with their names after the last slash of the prefix or of the fixed part of the template."""
    cut = place.name.partition("{")[0].rpartition("/")[0]
    skip = len(cut) + 1 if cut else 0
    return [Found(url, parse_url(url).name[skip:]) for url in urls]


@contextmanager
def blocks_of(found: Found, options: StoreOptions) -> Iterator[Iterator[bytes]]:
    """Open an object or a member, and give its blocks.

    Raises:
        NotFoundError: The shard has no such member.
    """
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
    """Compare a file with what is known of an object; None if that is too little to know."""
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
    """Return the name below or at `target` for each of `found`.

    Args:
        found: What is copied.
        folder: Whether `target` is a folder or a prefix that ends with a slash.
        target: As typed.

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
