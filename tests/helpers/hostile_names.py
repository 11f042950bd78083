"""Names that no index, listing, table or archive may bring, and a check of one entry point with all of them.

`check_entry_point` calls a function with each name and a folder. While it runs, an audit hook sees each file that is
opened or changed and each connection. What is outside of the folder, or leads to another host, is refused and noted.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import settings

from torchdata_ais.errors import AISError

HOSTILE = [
    "", ".", "..", "./", "../", "../x", "../../x", "a/../../x", "a/../..", "..\\x", "..\\..\\x", "\\\\host\\x",
    "/", "/etc/passwd", "//etc/passwd", "///etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/environ",
    "~/x/../../..",
    "a\0b", "\0", "/etc/passwd\0.tar", "a\nb", "a\r\nX: y", "\x1b]0;x\x07", "\x7f", "\t/../x", "a\x01",
    "%2e%2e/../x", "..%2f/../x", "%2e%2e%2f../..", "..;/../x", "..../../../x",
    "file:///etc/passwd", "file:/etc/passwd", "FILE:///etc/passwd", "file://localhost/etc/passwd", "file://h/etc/passwd",
    "http://evil/x.tar", "https://evil/x.tar", "http://h@evil/x.tar", "http://evil:80/x", "http://evil/v1/objects/b/x.tar",
    "http://h:1/v1/objects/b/x.tar", "http://u:p@h:1/x", "http://h:1/../x", "http://h:1/%2e%2e/x", "http://h:1/..%5cx",
    "http://169.254.169.254/latest/meta-data", "ftp://h/x", "gopher://h/x", "ais://", "ais:///x", "ais://other/x.tar",
    "s3://pets/train-0.tar", "ais://@ns/pets/train-0.tar", "ais://pets/train-/../../other/x.tar", "ais://pets/../other/x",
    "ais://pets/train-\n.tar", "ais:pets/x", "-", "pipe:touch /tmp/pwned", "pipe:-", "|touch x",
    "ais://pets/" + "train-" * 2000, "/" * 70_000, "../" * 20_000, "x" * 5000 + "/../../..",
    "/tmp/\u002e\u002e/etc/passwd", "/e\u0301/x", "/\ufeff/x", "/\u202etar.x", "/\ud800/x", "//host/share/x",
    "/.", "/..", "/x/.",
]  # fmt: skip
"""None is in the folders and buckets that the tests name."""

EntryPoint = Callable[[str, Path], object]
"""A function that has the package read a name from data that are in the folder, or are made there."""

_LONGEST_ERROR = 40_000
_TERMINAL = re.compile(r"[\x00\x07\x1b\x7f]")
_WRITES = {
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.utime",
    "os.mkfifo",
}
_MOVES = {"os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,)}
_NO_PROCESSES = {"os.system", "os.exec", "os.posix_spawn", "os.startfile", "subprocess.Popen", "pty.spawn"}
_LIBRARIES = tuple(
    os.path.realpath(path).rstrip("/") + "/"
    for path in (sys.prefix, sys.base_prefix, Path(__file__).parents[2], "/usr", "/lib", "/sys", "/etc/ssl")
)
_SYSTEM = re.compile(
    r"/dev/(urandom|null|shm)|/proc/(?!.*environ)|/etc/(mime\.types|os-release|localtime|host)"
)


class _Watch:
    """What an entry point may touch, and what it touched beyond that."""

    def __init__(self, folders: Collection[Path], hosts: Collection[tuple[str, int]]) -> None:
        self.folders = tuple(os.path.realpath(folder) for folder in folders)
        self.hosts = set(hosts)
        self.found: list[str] = []
        self.errors: list[AISError] = []

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise `PermissionError` at an event that leads elsewhere."""
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            self._path(event, path, may_be_library=not writes)
        elif event in _WRITES:
            self._path(event, args[0])
        elif event in _MOVES:
            for place in _MOVES[event]:
                self._path(event, args[place])
        elif event in _NO_PROCESSES:
            self._refuse(f"{event} {args!r}")
        elif event == "socket.connect":
            address = args[1]
            if not (isinstance(address, tuple) and address[:2] in self.hosts):
                self._refuse(f"a connection to {address!r}")
        elif event == "socket.getaddrinfo" and (args[0], args[1]) not in self.hosts:
            self._refuse(f"a look-up of {args[0]!r}")

    def _path(self, event: str, path: object, *, may_be_library: bool = False) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        text = os.fsdecode(path)
        if "\0" in text:
            return  # refused by Python
        try:
            real = os.path.realpath(text)
        except OSError:
            return
        inside = any(real == folder or real.startswith(f"{folder}/") for folder in self.folders)
        if inside or (may_be_library and (real.startswith(_LIBRARIES) or _SYSTEM.match(real))):
            return
        self._refuse(f"{event} {text[:300]!r}")

    def _refuse(self, what: str) -> None:
        self.found.append(what)
        raise PermissionError(f"the test refuses {what}")


_watching: list[_Watch] = []
_busy = threading.local()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watching or getattr(_busy, "here", False):
        return
    _busy.here = True
    try:
        _watching[-1].see(event, args)
    finally:
        _busy.here = False


_hooked: list[bool] = []


@contextmanager
def watched(folders: Collection[Path], hosts: Collection[tuple[str, int]] = ()) -> Iterator[_Watch]:
    """Refuse and note what leads out of the folders, and to other hosts, while the block runs."""
    if not _hooked:
        sys.addaudithook(_hook)  # cannot be removed, and does nothing while `_watching` is empty
        _hooked.append(True)
    watch = _Watch(folders, hosts)
    _watching.append(watch)
    try:
        yield watch
    finally:
        _watching.remove(watch)


def attempt(*calls: Callable[[], object]) -> None:
    """Make each of the calls; an error of the package is kept, to be looked at by `check_entry_point`."""
    for call in calls:
        try:
            call()
        except AISError as error:
            _watching[-1].errors.append(error)


def allow_host(port: int) -> None:
    """Allow connections to a server of the test on this machine, for the call under way."""
    for watch in _watching:
        watch.hosts |= {("127.0.0.1", port), ("127.0.0.1", str(port))}  # type: ignore[arg-type]


def check_requests(targets: Collection[str], *allowed: str) -> None:
    """Check that each request has a path, as a server understands it, that begins as one of `allowed`."""
    for target in targets:
        path = os.path.normpath(unquote(urlsplit(target).path))
        assert f"{path}/".startswith(allowed), target


def tried_names(number: int) -> list[str]:
    """Return all names in ``.ci/run``; in the README's command an eighth, another one for each entry point."""
    return HOSTILE[number % 8 :: 8] if settings().derandomize else HOSTILE


def check_entry_point(
    entry: EntryPoint, names: Collection[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Call `entry` with each name in a folder of its own.

    It may raise an error of the package, of bounded length, with a next step and a place, or succeed. Either way
    nothing outside of the folder is touched, and no other host is asked.
    """
    wrong = []
    for number, name in enumerate(names):
        home = root / str(number)
        place, temporary = home / "place", home / "tmp"
        place.mkdir(parents=True)
        temporary.mkdir()
        (home / "thesis.txt").write_text("ten years")
        monkeypatch.chdir(place)
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        with watched((place, temporary)) as watch:
            attempt(partial(entry, name, place))
        wrong += [f"{name[:80]!r}: {why}" for error in watch.errors for why in _faults_of(error)]
        wrong += [f"{name[:80]!r}: {what}" for what in watch.found]
        assert (home / "thesis.txt").read_text() == "ten years"
        assert sorted(path.name for path in home.iterdir()) == ["place", "thesis.txt", "tmp"]
    assert not wrong, "\n".join(wrong)


def _faults_of(error: AISError) -> Iterator[str]:
    text = str(error)
    if len(text) > _LONGEST_ERROR:
        yield f"an error of {len(text)} characters"
    if _TERMINAL.search(text):
        yield f"a control character in {text[:300]!r}"
    if not error.todo:
        yield f"no next step in {text[:300]!r}"
    if not error.place and not re.search(r"['/:]", error.what):
        yield f"no place in {text[:300]!r}"
