"""``torchdata-ais cp``: objects and members to other names."""

from __future__ import annotations

from dataclasses import replace

from torchdata_ais.cli._run import AsJson, Endpoint, command, goes_on, options_for
from torchdata_ais.errors import UsageError
from torchdata_ais.urls import parse_url


@command("aistore.sdk", "rich.progress")
def cp(
    source: str,
    target: str,
    overwrite: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Copy an object, a member of a shard, or all objects of a prefix to other names; the bucket is made if missing.

    The bytes pass through this machine and are checked. Objects that are there with the same bytes are left as they
    are, so the same command goes on after an interrupt. Names are kept from the last slash of the prefix on.

    Args:
        source (SRC): ais://bucket/object; a prefix or a template for several; ais://bucket/shard.tar/member.jpg.
        target (DST): ais://bucket/name; ais://bucket/ or ais://bucket/prefix/ to keep names.
        overwrite: Replace objects that hold something else.

    Examples:
        torchdata-ais cp ais://pets/train-000.tar ais://small/
        torchdata-ais cp ais://pets/train- ais://copy/old/
        torchdata-ais cp ais://pets/train-000.tar/cat/0001.jpg ais://pets/cover.jpg
    """
    goes_on()
    from torchdata_ais.cli._bucket import Bucket, new_bucket, tell_stored
    from torchdata_ais.cli._objects import blocks_of, find, is_member, object_place, target_names
    from torchdata_ais.cli._progress import moved_bytes
    from torchdata_ais.urls import check_object

    for url, todo in (
        (source, "torchdata-ais put stores files"),
        (target, "torchdata-ais get fetches into files"),
    ):
        if parse_url(url).kind == "file":
            raise UsageError.at(f"{url}: cp copies from bucket to bucket", todo=todo, url=url)
    place, _ = object_place(target), object_place(source)
    options = options_for(endpoint, place.endpoint)
    if is_member(target, options):
        raise UsageError.at(
            "a shard is not changed in place", todo="write a new one: torchdata-ais convert", url=target
        )
    found = find(source, options)
    folder = not place.name or place.name.endswith("/")
    names = [place.name + name for name in target_names(found, folder, target)]
    named = dict(zip(names, found, strict=True))
    for name in named:
        check_object(replace(place, name=name))
    sources = {one.uri for one in found if not one.member}
    for name, one in named.items():
        uri = replace(place, name=name, endpoint="").uri
        if uri in sources - {one.uri}:
            raise UsageError.at(
                f"{one.uri} would be copied over {uri}, which is to be copied, too",
                todo="copy to another bucket or prefix",
                url=uri,
            )
    bucket = Bucket.of(place, options)
    with new_bucket(bucket):
        there = bucket.holds([(name, one.url) for name, one in named.items()], overwrite=overwrite)
        new = {name: one for name, one in named.items() if name not in there}
        size = 0
        with moved_bytes("cp", sum(one.url.size or 0 for one in new.values())) as moved:
            for name, one in new.items():
                with blocks_of(one, options) as blocks:
                    size += bucket.put_blocks(name, blocks, moved)
    rows = [
        {"url": one.uri, "target": f"{bucket.uri}/{name}", "stored": name in new}
        for name, one in named.items()
    ]
    tell_stored(bucket, rows, size, as_json=as_json)
