"""What webdataset's tests read: a shard that a checkout may lack, and web files, by a proxy of this machine."""

from __future__ import annotations

import http.server
import io
import json
import random
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from PIL import Image

SAMPLES = 47
REMOTE_SAMPLES = 100


def picture(kind: str, size: tuple[int, int], number: int) -> bytes:
    stream = io.BytesIO()
    noise = random.Random(number).randbytes(
        size[0] * size[1] * 3
    )  # does not shrink: tests cut the shard short
    Image.frombytes("RGB", size, noise).save(stream, kind)
    return stream.getvalue()


def archive(samples: list[dict[str, bytes]], mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:  # type: ignore[call-overload]
        for number, sample in enumerate(samples):
            for field, data in sample.items():
                info = tarfile.TarInfo(f"{number:08d}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def local_shard() -> bytes:
    """47 samples of a picture, a class, a WordNet name and an annotation, as in ImageNet."""
    samples = []
    for n in range(SAMPLES):
        size = (600, 793) if n == 0 else (80, 60)
        fields = {"cls": b"%d" % n, "png": picture("PNG", size, n), "wnid": b"n%08d" % n}
        samples.append({**fields, "xml": b"<annotation>%d</annotation>" % n})
    return archive(samples, "w:gz")


@cache
def remote_shard() -> bytes:
    samples = [
        {"jpg": picture("JPEG", (96, 64), n), "json": json.dumps([{"n": n}]).encode()}
        for n in range(REMOTE_SAMPLES)
    ]
    return archive(samples, "w")


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Answers for every host: test data of the checkout, else a shard for every name but `missing.tar`.

    https (CONNECT) is refused.
    """

    protocol_version = "HTTP/1.1"
    testdata: Path

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        file = self.testdata / name
        known = "/testdata/" in self.path or (name.endswith(".tar") and "missing" not in name)
        body = file.read_bytes() if file.exists() else remote_shard() if known else b"not found"
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # who reads a few samples hangs up

    def do_CONNECT(self) -> None:
        self.send_error(502, "no internet")

    def log_message(self, *args: object) -> None:
        del args


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        """Say nothing of readers that hang up."""


@contextmanager
def proxy(checkout: Path) -> Iterator[str]:
    """Serve web files on this machine; yield the proxy's URL."""
    handler = type("Proxy", (_Proxy,), {"testdata": checkout / "testdata"})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(60)


def add_missing(folder: Path) -> None:
    """Put the shard that most tests read where a checkout lacks it (a mirror may keep no large files)."""
    shard = folder / "testdata" / "imagenet-000000.tgz"
    if not shard.exists():
        shard.parent.mkdir(exist_ok=True)
        shard.write_bytes(local_shard())
