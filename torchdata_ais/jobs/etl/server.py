"""`ShardServer`: the SDK's ETL server for whole shards, on the cluster."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO, ClassVar
from urllib.parse import unquote

from aistore.sdk.etl.webserver.http_multi_threaded_server import HTTPMultiThreadedServer

from torchdata_ais.errors import AISError
from torchdata_ais.jobs.etl.transform import ShardTransform, parse_args

HELD_BYTES = 8 << 20  # made before the first is sent: until then a failure can be reported as an error
_BLOCK_BYTES = 1 << 20
_UNPROCESSABLE = 422  # not tried again: the same function on the same shard fails again


class ShardServer(HTTPMultiThreadedServer):  # type: ignore[misc]  # untyped
    """Base of the classes of `shard_etl`.

    Shards pass through in a stream. A failure is the object's error: while less than `HELD_BYTES` are made, an answer
    with the reason; later the connection is broken off, so that no client takes the part for the whole. The log has
    the traceback in both cases.

    Memory:
        `HELD_BYTES` and the memory of `ShardTransform`, for each request.
    """

    shard_transform: ClassVar[ShardTransform]

    def transform_stream(self, reader: BinaryIO, path: str, etl_args: str) -> Iterator[bytes]:
        """Return the blocks of the new shard."""
        shard = iter(partial(reader.read, _BLOCK_BYTES), b"")
        return _begun(self.shard_transform.blocks(shard, object_uri(path), parse_args(etl_args)))

    def get_mime_type(self) -> str:
        """Return the type of a tar archive."""
        return "application/x-tar"

    class RequestHandler(HTTPMultiThreadedServer.RequestHandler):  # type: ignore[misc]
        """The SDK's handler, with reported failures."""

        _has_answered = False

        def end_headers(self) -> None:
            """Note that the status is out, and cannot be taken back."""
            super().end_headers()
            self._has_answered = True

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """Answer with the reason of a failure, or break off a started answer."""
            error = sys.exc_info()[1]
            if error is not None:
                self.server.etl_server.logger.error("%s failed", self.path, exc_info=error)
            if self._has_answered:
                self._break_off()
                return
            text = message or explain or ""
            if isinstance(error, AISError):
                code, text = _UNPROCESSABLE, str(error)
            elif error is not None:
                text = f"{type(error).__name__}: {error}"
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _break_off(self) -> None:
            """Reset the connection: a normal close would be a regular end."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()


def object_uri(path: str) -> str:
    """Return the object URI of a request's path.

    ``/bucket/object``, or an encoded ``ais/@uuid#namespace/bucket/object``.

    Example:
        >>> object_uri("/pets/a%20b.tar"), object_uri("/aws%2F%40%23%2Fpets%2Fs.tar")
        ('ais://pets/a b.tar', 'aws://pets/s.tar')
    """
    name = unquote(path).lstrip("/")
    provider, _, rest = name.partition("/")
    space, _, place = rest.partition("/")
    return f"{provider}://{place}" if space.startswith("@") and "#" in space else f"ais://{name}"


def _begun(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Return `blocks`, the first `HELD_BYTES` of them made in this call."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size >= HELD_BYTES:
            break
    return chain(held, blocks)
