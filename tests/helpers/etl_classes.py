"""Server classes of transforms. Each worker imports this module: it leaves out torch, which takes seconds."""

from __future__ import annotations

from typing import Any

from aistore.sdk.etl.webserver.http_multi_threaded_server import HTTPMultiThreadedServer


class Upper(HTTPMultiThreadedServer):
    def transform(self, data: bytes, _path: str, etl_args: str) -> bytes:
        if data == b"bad":
            raise ValueError("bad input")
        return data.upper() + etl_args.encode()


class Doubled(HTTPMultiThreadedServer):
    def transform(self, data: bytes, _path: str, _etl_args: str) -> bytes:
        return data * 2


class Broken(HTTPMultiThreadedServer):
    def __init__(self, **_: Any) -> None:
        raise RuntimeError("cannot start, on purpose")

    def transform(self, data: bytes, _path: str, _etl_args: str) -> bytes:
        return data
