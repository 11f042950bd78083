"""LocalCluster."""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import os
import secrets
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from typing_extensions import Self

from torchdata_ais.errors import ConnectError, UsageError

from .server.faults import Action, Fault


@dataclass(frozen=True)
class ClusterStats:
    """Counters of a cluster since its start or the last reset.

    Attributes:
        requests: Number of answers by (role of the node, method, status).
        bytes_sent: Bytes of all bodies sent.
        connections: Connections that were accepted.
        peak_requests: How many requests were under way at the same time, at most, at all nodes together.
    """

    requests: dict[tuple[str, str, int], int]
    bytes_sent: int
    connections: int = 0
    peak_requests: int = 0

    def count(self, method: str | None = None, status: int | None = None, role: str | None = None) -> int:
        """Number of requests with this method, status and role; `None` counts all."""
        return sum(
            number
            for (row_role, row_method, row_status), number in self.requests.items()
            if method in (None, row_method) and status in (None, row_status) and role in (None, row_role)
        )


@dataclass(frozen=True)
class RequestRecord:
    """One answered request: its node, its content, its answer."""

    node: str
    role: str
    method: str
    url: str
    status: int
    bytes_sent: int
    headers: dict[str, str] = field(repr=False)


_SERVER = Path(__file__).with_name("server") / "__main__.py"
_STOP_DEADLINE_S = 5.0


@dataclass(frozen=True)
class Secret:
    """A text hidden in its repr, and in tracebacks with variables."""

    text: str = field(repr=False)


class ServerProcess:
    """The process of one cluster, which ends with its parent in any case."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._owner = os.getpid()
        self._lock = threading.Lock()
        with os.fdopen(
            os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
        ) as stderr:
            self._process = subprocess.Popen(  # noqa: S603  our own file under our own interpreter
                [sys.executable, str(_SERVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                start_new_session=True,  # Ctrl-C in a terminal goes to the parent only
            )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """Report whether this process, and not a parent of it, started it."""
        return self._owner == os.getpid()

    @property
    def running(self) -> bool:
        """Report whether it is alive."""
        if self.is_ours:
            return self._process.poll() is None
        # In a fork it is not a child, and cannot be waited for: but its end of the pipe is closed when it has ended.
        poll = select.poll()
        poll.register(_open(self._process.stdout), 0)
        return not poll.poll(0)

    def ask(self, value: dict[str, Any], deadline_s: float) -> Any:
        """Send one line of JSON and return the answer; `UsageError` in a fork."""
        if not self.is_ours:
            raise UsageError.at(
                "a fork cannot steer the cluster", todo="Do it in the process that started it"
            )
        stdin, stdout = _open(self._process.stdin), _open(self._process.stdout)
        with self._lock:
            try:
                print(json.dumps(value, default=lambda secret: secret.text), file=stdin, flush=True)
            except OSError as cause:
                raise self._died() from cause
            end = time.monotonic() + deadline_s
            while not select.select([stdout], [], [], 0.1)[0]:
                if not self.running:
                    raise self._died()
                if time.monotonic() > end:
                    raise ConnectError.at(f"the cluster's process did not answer within {deadline_s:g} s")
            line = stdout.readline()
        if not line:
            raise self._died()
        return json.loads(line)

    def _died(self) -> ConnectError:
        tail = self._log.read_text(errors="replace")[-2000:].strip() if self._log.exists() else ""
        code = self._process.wait(_STOP_DEADLINE_S)
        return ConnectError.at(f"the cluster's process has ended with status {code}: {tail or 'no output'}")

    def end(self) -> None:
        """End it, by force if it takes long."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # the buffer has no reader any more
                _open(pipe).close()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # by the arguments
    return pipe


_START_DEADLINE_S = 30.0
_COMMAND_DEADLINE_S = 60.0
_PREFIX = "ais-local-"
_LEFT_AFTER_S = 60.0  # age of a temporary folder after which its server has locked it, or it is left over


class Faults:
    """The rules in force in a running cluster.

    See `torchdata_ais.local.Fault` for their meaning.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def add(
        self,
        action: Action | Fault,
        *,
        verb: str = "GET",
        object: str = "*",  # noqa: A002  the word users look for
        bucket: str = "*",
        nth: int | Collection[int] | None = None,
        times: int | None = None,
        probability: float = 1.0,
        seed: int = 0,
        at_proxy: bool | None = None,
    ) -> int:
        """Put a rule in force and return its number, for `clear`."""
        fault = action
        if not isinstance(fault, Fault):
            fault = Fault(fault, verb, object, bucket, nth, times, probability, seed, at_proxy)
        return int(self._cluster._ask("add_fault", fault=fault.to_json()))

    def clear(self, number: int | None = None) -> None:
        """Take the rule of this number, or all rules, out of force."""
        self._cluster._ask("clear_faults", number=number)

    def fired(self, number: int | None = None) -> int:
        """Return on how many requests the rule of this number has fired.

        Without a number: all rules in force.
        """
        return int(self._cluster._ask("fired", number=number))


class LocalCluster:
    """An embedded AIStore cluster: a proxy and targets in one child process.

    It listens on 127.0.0.1 only. It implements AIStore's HTTP interface well enough for the unmodified SDK, with real
    redirects from the proxy to the targets, and keeps objects on disk. Unsupported requests are answered with 501 and
    the name of the feature. The process ends with `stop`, with the `with` block, or with the process that started it,
    however that ends.

    Every program of this machine may use it; web pages may not (403 for a foreign `Host` or `Origin`). With
    `etl=True`, requests that make or change transforms need the secret of this start, as transforms run code as you.
    `client()` and `env()` have it, `ensure_etl` takes the cluster itself, and `token` is for everything else. Keep it
    to yourself.

    Args:
        targets: Number of targets, each with its own port.
        root: Folder for the data, kept and read again by the next start. None: a temporary one, removed.
        port: Port of the proxy; 0 lets the system choose.
        faults: Rules in force from the start.
        etl: Whether transforms may be run. They are code of the user, run in child processes, and may do all that the
            user may.

    Raises:
        UsageError: The port or the folder is in use, or an argument cannot be.
        ConnectError: The process did not come up.

    Example:
        >>> with LocalCluster(targets=2) as cluster:
        ...     bucket = cluster.client().bucket("pets").create()
        ...     bucket.object("a.txt").get_writer().put_content(b"cat")
        ...     bucket.object("a.txt").get_reader().read_all()
        <Response [200]>
        b'cat'
    """

    def __init__(
        self,
        targets: int = 2,
        root: str | os.PathLike[str] | None = None,
        port: int = 0,
        faults: Iterable[Fault] | None = None,
        *,
        etl: bool = False,
    ) -> None:
        if not isinstance(targets, int) or targets < 1:
            raise UsageError.at(f"targets={targets!r} cannot work", todo="give at least one target")
        if root is not None and not isinstance(root, str | os.PathLike):
            raise UsageError.at(f"root={root!r} is no folder", todo="pass its path, or leave it out")
        self._targets = targets
        self._root = None if root is None else Path(root).resolve()
        self._folder: Path
        self._port = port
        self._initial_faults = list(faults or ())
        self._etl = etl
        self._process: ServerProcess | None = None
        self._ports: dict[str, Any] = {}
        self._secret = Secret("")
        self.faults = Faults(self)

    # -- life

    def start(self) -> Self:
        """Start the process and return when it accepts connections.

        Does nothing when it runs.
        """
        if self.running:
            return self
        self.stop()  # the rest of one that has ended by itself
        if self._root is None:
            _remove_leftovers(Path(tempfile.gettempdir()))
        self._folder = root = self._root or Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError.at(
                f"the folder {root} for the data cannot be made: {error.strerror or error}",
                todo="name another root=, one that this user may write to",
            ) from error
        self._secret = Secret(secrets.token_urlsafe(24))
        self._process = process = ServerProcess(root / "server.log")
        atexit.register(_stop_at_exit, weakref.ref(self))
        config = {
            "root": str(root),
            "remove": self._root is None,
            "targets": self._targets,
            "port": self._port,
            "faults": [fault.to_json() for fault in self._initial_faults],
            "etl": self._etl,
            "secret": self._secret,
            "parent": os.getpid(),
            "python_path": [entry or str(Path.cwd()) for entry in sys.path],
        }
        try:
            self._ports = process.ask(config, _START_DEADLINE_S)
            if "error" in self._ports:
                raise _start_error(self._ports, self._port, root)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the process and remove a temporary folder.

        Does nothing when it is not running.
        """
        process = self._process
        if process is None or not process.is_ours:
            return
        self._process = None
        process.end()
        if self._root is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Report whether the process is alive.

        It ends when it can accept no connections any more.
        """
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._running().pid

    def __repr__(self) -> str:
        state = self.endpoint if self.running else "stopped"
        return f"LocalCluster(targets={self._targets}, {state})"

    # -- use

    @property
    def endpoint(self) -> str:
        """URL of the proxy: the value for `AIS_ENDPOINT`."""
        self._running()
        return f"http://127.0.0.1:{self._ports['proxy']}"

    @property
    def target_urls(self) -> list[str]:
        """URLs of the targets."""
        self._running()
        return [f"http://127.0.0.1:{port}" for port in self._ports["targets"]]

    @property
    def root(self) -> Path:
        """Folder of the data."""
        self._running()
        return self._folder

    @property
    def token(self) -> str:
        """The secret of this start: the value for `AIS_AUTHN_TOKEN`.

        It is needed where transforms are made or changed.
        """
        self._running()
        return self._secret.text

    # The options are those of the SDK's class, in each of its versions.
    def client(self, **options: object) -> Any:
        """Return a new `aistore.sdk.Client` of this cluster, with its token.

        `options` go to its constructor.
        """
        from aistore.sdk import Client

        return Client(self.endpoint, **{"token": self.token, **options})

    @contextmanager
    def env(self) -> Iterator[str]:
        """Set `AIS_ENDPOINT` and `AIS_AUTHN_TOKEN` in the block to this cluster's."""
        ours = {"AIS_ENDPOINT": self.endpoint, "AIS_AUTHN_TOKEN": self.token}
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield self.endpoint
        finally:
            for name in ours:
                os.environ.pop(name, None)
            os.environ.update({name: value for name, value in before.items() if value is not None})

    def put_dir(self, path: str | os.PathLike[str], to: str) -> list[str]:
        """PUT all files of a folder tree, named by their path in it.

        Makes the bucket if it is missing.

        Args:
            path: The folder.
            to: ``ais://bucket`` or ``ais://bucket/prefix``; a prefix is put before the names unchanged.

        Returns:
            The names of the objects, sorted.
        """
        folder = Path(path)
        if not to.startswith("ais://") or not folder.is_dir():
            raise UsageError.at(
                f"cannot put {folder} to {to}", todo="Give a folder and ais://bucket[/prefix]"
            )
        bucket_name, _, prefix = to.removeprefix("ais://").partition("/")
        bucket = self.client().bucket(bucket_name)
        bucket.create(exist_ok=True)
        files = {
            prefix + file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()
        }
        for name, file in sorted(files.items()):
            bucket.object(name).get_writer().put_file(file)
        return sorted(files)

    def stats(self) -> ClusterStats:
        """Return the counters."""
        answer = self._ask("stats")
        rows = {(role, method, status): count for role, method, status, count in answer["requests"]}
        return ClusterStats(rows, answer["bytes_sent"], answer["connections"], answer["peak_requests"])

    def requests(self) -> list[RequestRecord]:
        """Return the last (up to 100,000) answered requests, oldest first."""
        return [RequestRecord(**row) for row in self._ask("requests")]

    def reset_stats(self) -> None:
        """Set the counters to zero and forget the requests."""
        self._ask("forget_counts")

    def reset(self) -> None:
        """Reset to an empty cluster: no buckets, jobs or faults, counters at zero."""
        self._ask("reset")

    # -- the pipe

    def _running(self) -> ServerProcess:
        """Return the process, if it runs."""
        if self._process is not None and self.running:
            return self._process
        ended = "the cluster is not running" if self._process is None else "the cluster's process has ended"
        raise UsageError.at(ended, todo="Use it inside its `with` block, or call start()")

    def _ask(self, what: str, **arguments: object) -> Any:
        return self._running().ask({"do": what, **arguments}, _COMMAND_DEADLINE_S)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of servers killed together with their owners."""
    for root in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # of another user, or removed meanwhile
            status = root.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            lock = os.open(root / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(lock).st_mtime > _LEFT_AFTER_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(root, ignore_errors=True)
            finally:
                os.close(lock)


def _stop_at_exit(reference: weakref.ref[LocalCluster]) -> None:
    cluster = reference()
    if cluster is not None:
        cluster.stop()


def _start_error(answer: dict[str, Any], port: int, root: Path) -> UsageError | ConnectError:
    if answer.get("errno") == errno.EADDRINUSE:
        return UsageError.at(
            f"port {port} on 127.0.0.1 is in use", todo="Stop what uses it, or take another port (0 for any)"
        )
    if answer.get("name") == "RootInUseError":
        return UsageError.at(answer["error"], todo="Stop it, or give another folder")
    return ConnectError.at(f"the cluster cannot start on {root}: {answer['error']}")
