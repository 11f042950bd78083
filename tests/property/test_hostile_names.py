"""Hostile names at every entry point: an error of the package, or a success inside the folder.

A new entry point is one function with the mark `entry_point`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from helpers.command import run
from helpers.forged_index import forge_index
from helpers.hostile_names import (
    EntryPoint,
    allow_host,
    attempt,
    check_entry_point,
    check_requests,
    tried_names,
)
from helpers.raw_server import RawServer, Request

from torchdata_ais import AISSampleReader, AISSourceLister, Retry, SampleDataset, SampleIndex, StoreOptions
from torchdata_ais.errors import AISError
from torchdata_ais.index.classes import read_classes
from torchdata_ais.jobs.dsort import run_dsort
from torchdata_ais.jobs.etl.transform import ShardTransform
from torchdata_ais.observe.diagnosis.run_folder import read_run
from torchdata_ais.observe.display.shards import sample_html
from torchdata_ais.store import ObjectCache, list_buckets, list_objects
from torchdata_ais.testing import example_shards, shard_bytes
from torchdata_ais.writing import ShardWriter, convert

ENTRY_POINTS: dict[str, EntryPoint] = {}
PICTURE = b"\xff\xd8\xff\xe0picture"


def entry_point(function: EntryPoint) -> EntryPoint:
    ENTRY_POINTS[function.__name__] = function
    return function


# Names in archives


def tar_of(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an archive as a forger writes it: any name, in PAX headers."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"))
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def hostile_shards(name: str, place: Path) -> str:
    """Write shards with the name as key, as field, and as target of a link."""
    place.mkdir(exist_ok=True)
    for number, names in enumerate(([f"{name}.jpg", f"{name}.cls"], [f"k.{name}"], [name])):
        (place / f"s-{number}.tar").write_bytes(tar_of([(one, PICTURE) for one in names]))
    return f"{place}/s-{{0..2}}.tar"


@entry_point
def members_in_a_stream(name: str, place: Path) -> None:
    for shard in [hostile_shards(name, place), *sorted(map(str, place.glob("*.tar")))]:
        attempt(
            lambda shard=shard: [
                sample_html(one) for one in AISSourceLister(shard).load_tar().group_samples()
            ]
        )


def command(*words: object) -> None:
    """Run a command of `torchdata-ais`, whose answer is a text for a terminal."""
    done = run(*words)
    assert done.exit_code in (0, 1, 2, 3), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert not {"\x1b", "\x07", "\0"} & set(done.output)


@entry_point
def members_in_commands(name: str, place: Path) -> None:
    hostile_shards(name, place)
    for number in range(3):
        for words in (["inspect"], ["info", "--read"], ["lint"]):
            command(*words, f"{place}/s-{number}.tar")


@entry_point
def members_in_an_index(name: str, place: Path) -> None:
    def index(number: int) -> None:
        found = SampleIndex.build(f"{place}/s-{number}.tar", where=place / f"index-{number}")
        found._repr_html_()
        list(AISSampleReader(found)) if len(found) else None
        for form in ("wids", "energon", "dali"):
            attempt(lambda form=form: found.export(form, place / f"{form}-{number}"))

    hostile_shards(name, place)
    attempt(*(lambda number=number: index(number) for number in range(3)))


@entry_point
def members_written_again(name: str, place: Path) -> None:
    hostile_shards(name, place / "in")
    attempt(
        *(
            lambda number=number: convert(
                f"{place}/in/s-{number}.tar",
                f"{place}/out-{number}/s-%d.tar",
                manifest=f"{place}/{number}.json",
            )
            for number in range(3)
        ),
        lambda: write(place, {"__key__": name, "txt": "x"}),
        lambda: write(place, {"__key__": "k", name: b"x"}),
        lambda: write(place, {"__key__": "k", "txt": name}),
    )


def write(place: Path, sample: dict[str, Any]) -> None:
    with ShardWriter(f"{place}/w-%d.tar", manifest=f"{place}/w.json") as writer:
        writer.write(sample)


@entry_point
def members_in_a_transform(name: str, place: Path) -> None:
    hostile_shards(name, place)
    whole = ShardTransform(lambda sample: sample)
    for shard in sorted(place.glob("*.tar")):
        attempt(lambda shard=shard: b"".join(whole.blocks([shard.read_bytes()], str(shard))))


# Names beside shards


@entry_point
def classes_beside_shards(name: str, place: Path) -> None:
    (place / "in").mkdir()
    example_shards(place / "in", counts=(2,))
    for content in ([name, "b"], {name: 0}, name, [[name]]):
        (place / "in/classes.json").write_text(json.dumps(content))
        attempt(
            lambda: read_classes(str(place / "in"), StoreOptions),
            lambda: convert(str(place / "in"), f"{place}/out/s-%d.tar", overwrite=True),
        )
        command("inspect", place / "in/shard-000.tar")


@entry_point
def labels_of_samples(name: str, place: Path) -> None:
    encoded = name.encode("utf-8", "surrogatepass")
    (place / "s.tar").write_bytes(
        shard_bytes({"a.cls": encoded, "a.txt": encoded, "a.json": json.dumps(name).encode()})
    )
    samples = AISSourceLister(str(place / "s.tar")).load_tar().group_samples()
    command("inspect", place / "s.tar")
    attempt(lambda: [sample_html(one) for one in samples], lambda: list(samples.decode()))


# Files and tables to convert


@entry_point
def files_in_a_folder(name: str, place: Path) -> None:
    encoded = name.replace("/", "\u2215").replace("\0", "").encode("utf-8", "surrogatepass")[:200]
    for folder, file in ((b"cat", encoded + b".jpg"), (b"c" + encoded, b"a.jpg"), (encoded + b".d", encoded)):
        home = os.fsencode(place / "in") + b"/" + folder
        os.makedirs(home, exist_ok=True)  # noqa: PTH103 - bytes
        with open(home + b"/" + (file if file not in (b"", b".", b"..") else b"x"), "wb") as stream:  # noqa: PTH123
            stream.write(PICTURE)
    attempt(lambda: convert(place / "in", f"{place}/out/s-%d.tar", manifest=f"{place}/m.json"))
    command("convert", place / "in", f"{place}/again/s-%d.tar")


@entry_point
def cells_of_tables(name: str, place: Path) -> None:
    (place / "a.jpg").write_bytes(PICTURE)
    rows = [{"file_name": "a.jpg", "text": name}, {"file_name": name, "text": "x"}]
    (place / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (place / "t.csv").open("w", errors="surrogatepass", newline="") as file:
        csv.writer(file).writerows([["file_name", "text"], *(list(row.values()) for row in rows)])
    for table in ("t.jsonl", "t.csv"):
        attempt(lambda table=table: convert(place / table, f"{place}/{table}-out/s-%d.tar"))
    (place / "metadata.jsonl").write_text((place / "t.jsonl").read_text())
    attempt(lambda: convert(place, f"{place}/out/s-%d.tar"))


@entry_point
def columns_of_tables(name: str, place: Path) -> None:
    (place / "a.jpg").write_bytes(PICTURE)
    (place / "t.jsonl").write_text(json.dumps({"file_name": "a.jpg", name: name, "__key__": name}) + "\n")
    convert(place / "t.jsonl", f"{place}/out/s-%d.tar")


# Manifests and files of ranks


@entry_point
def manifests(name: str, place: Path) -> None:
    pattern, manifest = f"{place}/s-%03d.tar", place / "s.json"
    with ShardWriter(pattern, manifest=str(manifest)) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    good = json.loads(manifest.read_text())

    def resume(change: Callable[[Any], object]) -> None:
        content = json.loads(json.dumps(good))
        change(content)
        manifest.write_text(json.dumps(content))
        with ShardWriter(pattern, manifest=str(manifest), resume=True) as writer:
            writer.write({"__key__": "a", "txt": "x"})

    attempt(
        *(
            lambda change=change: resume(change)
            for change in (
                lambda content: content["shards"][0].update(name=name),
                lambda content: content["shards"][0].update(cursor=name, keys=name, checksum=name),
                lambda content: content.update(settings={name: name}),
                lambda content: content["settings"].update(dict.fromkeys(content["settings"], name)),
                lambda content: content.update(notes={"classes": [name], name: name}),
            )
        )
    )


@entry_point
def files_of_ranks(name: str, place: Path) -> None:
    content = {
        "rank": 0,
        "ranks": 1,
        "node": name,
        "places": {name: 1},
        "targets": {name: 1},
        "shards": {name: 1},
    }
    for file in ("rank-00000.json", "loader-0.json", "flight-0.json"):
        (place / file).write_text(json.dumps(content))
    command("watch", place)
    read_run(place)


# Indexes


@entry_point
def heads_of_indexes(name: str, place: Path) -> None:
    (place / "in").mkdir()
    SampleIndex.build(example_shards(place / "in", counts=(3, 2))).save(place / "in/.index")
    for field in ("counts", "source"):  # the others: tests/unit/urls/test_foreign_names.py
        try:
            forge_index(place / "in/.index", head={field: name})
        except (UnicodeError, TypeError, AISError):
            continue
        attempt(
            lambda: [one.key for one in SampleIndex.open(place / "in", index_dir=place / "kept")],
            lambda: AISSampleReader(str(place / "in")).counts(),
            lambda: SampleIndex.open(place / "in").save(place / "saved"),
            lambda: list(AISSourceLister(str(place / "in")).read_samples()),
        )
        command("info", place / "in")
        command("index", place / "in")


@entry_point
def rows_of_indexes(name: str, place: Path) -> None:
    (place / "in").mkdir()
    SampleIndex.build(example_shards(place / "in", counts=(2,))).save(place / "in/.index")
    for change in ({"rows": lambda table: table[0].update(name=name)}, {"head": {"columns": [name]}}):
        try:
            forge_index(place / "in/.index", **change)
        except (UnicodeError, AISError, ValueError):
            continue
        attempt(
            lambda: SampleDataset(place / "in")[0],
            lambda: list(AISSampleReader(str(place / "in"))),
            lambda: SampleIndex.open(place / "in", index_dir=place / "kept").verify(),
            lambda: SampleIndex.open(place / "in").export("energon", place / "out"),
        )


def foreign(name: str) -> dict[str, Any]:
    return {
        ".nv-meta/.info.json": {"shard_counts": {name: 1}},
        "s.json": {"wids_version": 1, "shardlist": [{"url": name, "nsamples": 1}]},
        "b.json": {"wids_version": 1, "base": name, "shardlist": [{"url": "../../x", "nsamples": 1}]},
        "n.json": {
            "wids_version": 1,
            "name": name,
            "shardlist": [{"url": "s.tar", "nsamples": 1, "name": name}],
        },
    }


@entry_point
def indexes_of_other_tools(name: str, place: Path) -> None:
    (place / ".nv-meta").mkdir()
    (place / "s.tar").write_bytes(shard_bytes({"a.txt": b"x"}))
    (place / "s.tar.idx").write_text(f"v1.2 1\ntxt 512 1 {name}.txt\n", errors="surrogatepass")
    for file, content in foreign(name).items():
        (place / file).write_text(json.dumps(content))
        attempt(lambda file=file: len(SampleIndex.open(place / file)))
        command("info", place / file)
    attempt(
        lambda: SampleIndex.open(place / "s.tar.idx"),
        lambda: SampleIndex.open(place),
        lambda: list_objects(str(place), options=StoreOptions()),
    )


@entry_point
def indexes_of_other_tools_on_a_web_server(name: str, place: Path) -> None:
    files = {f"/data/{file}": json.dumps(content).encode() for file, content in foreign(name).items()}
    with served(serving(files), "/data/") as server:
        attempt(
            *(
                lambda file=file: SampleIndex.open(server.endpoint + file, cluster=quick(server))
                for file in files
            )
        )


@entry_point
def heads_on_a_web_server(name: str, place: Path) -> None:
    SampleIndex.build(example_shards(place, counts=(3,))).save(place)
    for field in ("parts", "counts"):
        try:
            forge_index(place, head={field: name})
        except (UnicodeError, AISError):
            continue
        files = {f"/data/{path.name}": path.read_bytes() for path in place.iterdir() if path.is_file()}
        with served(serving(files), "/data/") as server:
            options, url = quick(server), f"{server.endpoint}/data/"
            attempt(partial(SampleIndex.open, url, cluster=options, index_dir=place / "kept"))


# Answers of a cluster


def quick(server: RawServer) -> StoreOptions:
    return StoreOptions(server.endpoint, retry=Retry(1, backoff=0.001, max_backoff=0.001, deadline=5))


OF_PETS = ("/v1/buckets/pets/", "/v1/objects/pets/", "/v1/daemon/", "/v1/cluster/")


@contextmanager
def served(script: Callable[[Request], object], *allowed: str) -> Iterator[RawServer]:
    """Give a server that may be connected to, and of which only the allowed paths may be requested."""
    with RawServer(script) as server:
        allow_host(urlsplit(server.endpoint).port or 0)
        try:
            yield server
        finally:
            check_requests([one.target for one in server.requests], *allowed)


def reply(
    request: Request, body: bytes, kind: str = "application/octet-stream", status: str = "200 OK"
) -> None:
    left = int(request.headers.get("content-length", "0"))
    while left and (data := request.sock.recv(left)):
        left -= len(data)
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    request.send(head.encode() + (b"" if request.method == "HEAD" else body))


def serving(files: dict[str, bytes]) -> Callable[[Request], None]:
    """Return a script that serves files, whole or from a byte on."""

    def script(request: Request) -> None:
        body = files.get(urlsplit(request.target).path)
        if body is None:
            reply(request, b"", status="404 Not Found")
        elif request.ranged:
            begin, _, end = request.headers["range"][6:].partition("-")
            part = body[int(begin) : int(end) + 1 if end else None]
            more = f"Content-Range: bytes {begin}-{int(begin) + len(part) - 1}/{len(body)}\r\n"
            head = f"HTTP/1.1 206 Partial\r\n{more}Content-Length: {len(part)}\r\n\r\n"
            request.send(head.encode() + part)
        else:
            reply(request, body)

    return script


def raw(text: str) -> msgspec.Raw:
    """Return a text of MessagePack that may hold what is not UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return msgspec.Raw(b"\xdb" + struct.pack(">I", len(data)) + data)


def cluster_with(name: str, *, bucket: str = "pets") -> Callable[[Request], None]:
    """Return a script of a proxy whose bucket lists this name, and one that lists a bucket of this name."""
    found = [
        {"n": raw(name), "s": 10240, "v": "1"},
        {"n": "ok.tar", "s": 10240, "cs": raw(name), "v": raw(name)},
    ]
    page = msgspec.msgpack.encode(
        {
            "UUID": raw(name),
            "ContinuationToken": "",
            "Flags": 0,
            "Entries": found,
        }
    )
    buckets = json.dumps([{"name": name, "provider": "ais"}, {"name": "b", "provider": name}]).encode()
    body = shard_bytes({"a.txt": b"x"})

    def script(request: Request) -> None:
        path = urlsplit(request.target).path
        if path == f"/v1/buckets/{bucket}":
            reply(request, page, "application/msgpack")
        elif path == "/v1/buckets":
            reply(request, buckets, "application/json")
        elif path.startswith(f"/v1/objects/{bucket}/") and not path.endswith("/classes.json"):
            reply(request, body, "application/x-tar\r\nAis-Version: 1")
        else:
            reply(request, b"{}", "application/json", "404 Not Found")

    return script


@entry_point
def objects_in_a_listing(name: str, place: Path) -> None:
    with served(cluster_with(name), *OF_PETS) as server:
        options = quick(server)
        attempt(
            lambda: list(
                AISSourceLister("ais://pets", cluster=options).load_tar(cluster=options).group_samples()
            ),
            lambda: SampleIndex.build("ais://pets", where=place / "index", cluster=options),
            lambda: convert("ais://pets/", f"{place}/out/s-%d.tar", cluster=options),
            lambda: ObjectCache(str(place / "cache"), 1 << 20).fetch(
                list_objects("ais://pets", options=options)[0], options
            ),
        )
        for words in (["ls", "ais://pets"], ["get", "ais://pets/", f"{place}/got/"]):
            command(*words, "--endpoint", server.endpoint)


@entry_point
def buckets_in_a_listing(name: str, place: Path) -> None:
    with served(cluster_with(name), "/v1/buckets/") as server:
        command("ls", "--endpoint", server.endpoint)
        list_buckets(quick(server))


@entry_point
def names_for_the_cache(name: str, place: Path) -> None:
    cache = ObjectCache(str(place / "cache"), 1 << 20)
    with served(cluster_with("x.tar"), "/v1/objects/pets/") as server:
        for one in (f"ais://pets/{name}", f"{server.endpoint}/v1/objects/pets/{name}"):
            attempt(lambda one=one: cache.fetch(one, quick(server)))


@entry_point
def names_of_a_job(name: str, place: Path) -> None:
    spec = {
        "input_bck": {"name": "pets"}, "input_format": {"template": "s-{0..1}"}, "input_extension": ".tar",
        "output_format": "new-%d", "output_shard_size": "1MB",
    }  # fmt: skip
    with served(cluster_with("s-0.tar"), *OF_PETS, "/v1/sort/") as server:
        formats: list[dict[str, Any]] = [{"template": name}, {"objnames": [name]}]
        for change in ({"output_format": name}, *({"input_format": each} for each in formats)):
            file = place / "spec.json"
            file.write_text(json.dumps(spec | change))
            attempt(lambda file=file: run_dsort(quick(server), file, stall_timeout=2))


@pytest.mark.quick(7)
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_promise_8_hostile_names_lead_nowhere(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = list(ENTRY_POINTS).index(entry)
    check_entry_point(ENTRY_POINTS[entry], tried_names(number), tmp_path, monkeypatch)
