"""Transforms."""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import msgspec

from .names import new_id, object_uname
from .problem import ReplyError, not_implemented, typed
from .store import Object

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Variable(msgspec.Struct, omit_defaults=True):
    name: str
    value: str | None = None


class _Runtime(msgspec.Struct, omit_defaults=True):
    image: str | None = None
    command: list[str] | None = None
    env: list[_Variable] | None = None


_MESSAGE: dict[str, Any] = {
    "name": "",
    "communication": "",
    "init_timeout": str | int,
    "obj_timeout": str | int,
    "support_direct_put": bool,
    "runtime": _Runtime,
}


def read_message(fields: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the request that makes a transform; containers are refused."""
    values = typed(fields, "ETL init", _MESSAGE)
    runtime: _Runtime = values["runtime"] or _Runtime()
    if not values["communication"].startswith(("hpush", "hpull")):
        raise not_implemented(f"ETL communication {values['communication']!r:.100}")
    names = {variable.name: variable.value or "" for variable in runtime.env or ()}
    if "ETL_CLASS_PAYLOAD" not in names or runtime.command:
        raise not_implemented("ETL from a container image (only a class, by Etl.init_class)")
    for name, value in names.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ReplyError(400, f"not an environment variable: {name!r:.100}", "ErrETL")
    if names.get("OS_PACKAGES"):
        raise not_implemented("ETL with OS_PACKAGES")
    for package in filter(None, names.get("PACKAGES", "").split(",")):
        base = re.split(r"[\[<>=!~; ]", package.strip())[0]
        try:
            importlib.metadata.version(base)
        except (importlib.metadata.PackageNotFoundError, ValueError) as cause:
            raise ReplyError(
                400, f"ETL needs the package {base!r}, which is not installed here", "ErrETL"
            ) from cause
    return {name: msgspec.to_builtins(value) for name, value in values.items() if value is not None}


_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?")


def parse_seconds(text: object, default: float) -> float:
    """Read a time such as ``5m`` or ``45s``."""
    match = _SECONDS.fullmatch(str(text or ""))
    if match is None:
        return default
    factor = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}[match.group(2)]
    return float(match.group(1)) * factor


_WORKER = Path(__file__).with_name("etl_worker.py")
_NAME = re.compile(r"[a-z0-9][-a-z0-9]{4,30}[a-z0-9]")
_BLOCK_BYTES = 1 << 20
_POLL_S = 0.05
_TERM_S = 2.0
_INIT_TIMEOUT_S = 300.0


@dataclass
class Etl:
    """One transform and its worker.

    `python_path` is where the user's own modules are; a worker that pulls finds the objects below `target_url`.
    """

    message: dict[str, Any]
    log: Path
    target_url: str
    python_path: list[str]
    job_id: str = field(default_factory=lambda: f"etl-{new_id()}")
    secret: str = field(default_factory=lambda: new_id(12))
    objects: int = 0
    in_bytes: int = 0
    out_bytes: int = 0
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.message["name"])

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that the request gives the worker."""
        runtime = self.message.get("runtime") or {}
        return {item["name"]: item.get("value") or "" for item in runtime.get("env") or ()}

    # -- the worker

    def start(self) -> None:
        """Start the worker and return when it answers."""
        with socket.socket() as held:  # no other process gets its port before the worker
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            self.port = held.getsockname()[1]
            self._start()

    def _start(self) -> None:
        deadline_s = parse_seconds(self.message.get("init_timeout"), _INIT_TIMEOUT_S)
        environment = {
            **os.environ,
            **self.env,
            "AIS_TARGET_URL": f"{self.target_url}/v1/etl/_object/{self.name}/{self.secret}",
            "PYTHONPATH": os.pathsep.join(self.python_path),
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, str(_WORKER), str(self.port), str(os.getpid())]
        with self.log.open("ab") as log:
            try:
                self.process = subprocess.Popen(  # noqa: S603  our own file under our own interpreter
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as cause:  # too long, mostly
                why = f"ETL[{self.name}]: the worker cannot be started: {cause}"
                raise ReplyError(400, why, "ErrETL") from cause
        end = time.monotonic() + deadline_s
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                why = self.died() or f"ETL[{self.name}]: not ready after {deadline_s:g} s: {self.tail()}"
                self.stop()
                raise ReplyError(400, why, "ErrETL")
            time.sleep(_POLL_S)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """End the worker and all it has started."""
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_TERM_S)
        with suppress(ProcessLookupError):  # the rest of its group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def died(self) -> str:
        """Error text if the worker has ended by itself, else empty."""
        code = self.process.poll() if self.process else None
        ended = f"ETL[{self.name}]: the worker has ended with status {code}: {self.tail()}"
        return "" if code is None else ended

    def tail(self) -> str:
        """The end of the worker's output."""
        return self.log.read_text(errors="replace")[-1500:].strip() if self.log.exists() else ""

    # -- objects

    def send(
        self,
        bucket: str,
        name: str,
        body: bytes | IO[bytes],
        size: int,
        path: Path | None,
        args: str,
        timeout_s: float,
    ) -> Iterator[bytes]:
        """Send a body through the worker and return the blocks of the result."""
        if self.process is None:
            raise ReplyError(404, f"etl job {self.name} is not running", "ErrNotFound")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        query = f"?etl_args={quote(args, safe='')}" if args else ""
        try:
            if self.message["communication"].startswith("hpull"):  # the worker requests objects itself
                connection.request("GET", f"/{quote(object_uname(bucket, name), safe='')}{query}")
            elif path is not None and self.env.get("ETL_DIRECT_FQN", "").lower() == "true":
                query += f"{'&' if query else '?'}etl_fqn={quote(str(path), safe='')}"
                connection.request("PUT", f"/{quote(f'{bucket}/{name}')}{query}", b"")
            else:
                headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
                connection.request("PUT", f"/{quote(f'{bucket}/{name}')}{query}", body, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as cause:
            connection.close()
            why = self.died() or f"ETL[{self.name}]: {type(cause).__name__}: {cause}"
            raise ReplyError(500, f"{why} (object {bucket}/{name})", "ErrETL") from cause
        if response.status >= 400:
            text = response.read(4000).decode(errors="replace").strip()
            connection.close()
            message = f"ETL[{self.name}]: failed to transform ais://{bucket}/{name}: {text}"
            raise ReplyError(response.status, message, "ErrETL")
        self.objects += 1
        self.in_bytes += size
        return self._blocks(response)

    def _blocks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        with response:
            while block := response.read(_BLOCK_BYTES):
                self.out_bytes += len(block)
                yield block
            if response.length:
                raise OSError(f"ETL[{self.name}]: the answer ended {response.length} bytes early")


class Etls:
    """The transforms of a cluster by name."""

    def __init__(self) -> None:
        self._etls: dict[str, Etl] = {}

    def __iter__(self) -> Iterator[Etl]:
        return iter(list(self._etls.values()))

    def get(self, tag: str, name: str) -> Etl:
        """Return a transform or raise the 404 of AIStore."""
        found = self._etls.get(name)
        if found is None:
            raise ReplyError(404, f"{tag}: etl job {name} does not exist", "ErrNotFound")
        return found

    def add(self, tag: str, etl: Etl) -> None:
        """Register a transform whose name must be new."""
        if not _NAME.fullmatch(etl.name):
            raise ReplyError(400, f"etl name {etl.name!r:.100} is invalid: 6 to 32 of [a-z0-9-]")
        if self._etls.setdefault(etl.name, etl) is not etl:
            raise ReplyError(409, f"{tag}: etl job {etl.name} already exists")

    def remove(self, name: str) -> None:
        """Forget a transform."""
        self._etls.pop(name, None)

    def clear(self) -> None:
        """End and forget all."""
        for etl in self:
            etl.stop()
            self.remove(etl.name)

    def run(
        self, tag: str, names: list[str], bucket: str, entry: Object, path: Path, args: str, timeout_s: float
    ) -> Iterator[bytes]:
        """Send an object through the transforms; return the blocks of the result."""
        if not names:
            raise ReplyError(400, "no ETL was named")
        first, *more = [self.get(tag, name) for name in names]
        with path.open("rb") as file:
            blocks = first.send(bucket, entry.name, file, entry.size, path, args, timeout_s)
        for etl in more:
            content = b"".join(blocks)
            blocks = etl.send(bucket, entry.name, content, len(content), None, args, timeout_s)
        return blocks
