"""Commands that print a shard. They are run without a shell, and only if the program passes a `Command`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from typing_extensions import Self

from torchdata_ais.errors import ReadError, UsageError
from torchdata_ais.errors.redaction import redact_command, without_words
from torchdata_ais.pipes.checkpoint.load_state import url_of
from torchdata_ais.urls import parse_url
from torchdata_ais.webdataset import utils
from torchdata_ais.webdataset.handlers import Handler, reraise_exception


def refuse_local_file(url: str) -> None:
    """Raise if `url` is a local file and `utils.enforce_security` is set.

    Raises:
        UsageError: It is.
    """
    if utils.enforce_security and parse_url(url).kind == "file":
        raise UsageError.at(
            "local files are not read while enforce_security is set",
            todo="unset wds.utils.enforce_security or WDS_SECURE, or use WebDataset(path)",
            url=url,
        )


class Command(str):
    """A shard that a command prints: what takes the place of ``pipe:`` URLs, for programs, not for data.

    The command is given as a list of words and run without a shell. The text of a ``pipe:`` URL is never run, since it
    may come from data. Samples, errors and logs show it by `torchdata_ais.errors.redaction.redact_command`: without
    queries of URLs, values of options and secrets. What it prints goes to a temporary file
    (``TMPDIR``) first: of a command that fails no sample is passed on. It runs in a process group of its own, which is
    ended with the command, after `timeout`, on Ctrl-C, and when the process that wants the shard is gone.

    Args:
        words: Program and arguments.
        timeout: Seconds it may take.

    Memory:
        None to speak of; on disk the size of one shard.

    Raises:
        UsageError: No list of words.

    Example:
        >>> Command(["zcat", "s.tar.gz"])
        'pipe:zcat s.tar.gz'
        >>> Command(["curl", "-H", "Authorization: Bearer a1b2", "http://host/s.tar"])
        "pipe:curl -H '***' http://host/s.tar"
    """

    __slots__ = ("timeout", "words")

    words: tuple[str, ...]
    timeout: float

    def __new__(cls, words: Sequence[str], timeout: float = 600.0) -> Self:
        """Return the command as a URL that shows it, without its secrets."""
        if isinstance(words, str) or not words or not all(isinstance(word, str) for word in words):
            raise UsageError.at(
                "expected a command as a list of words", todo='write Command(["zcat", "s.tar.gz"])'
            )
        self = super().__new__(cls, f"pipe:{redact_command(words)}")
        self.words = tuple(words)
        self.timeout = timeout
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[str, ...], float]]:
        return type(self), (self.words, self.timeout)

    def run(self, output: IO[bytes]) -> None:
        """Run the command, with a file for what it prints.

        Raises:
            ReadError: It does not exist, failed, or took too long.
            UsageError: `utils.enforce_security` is set.
        """
        if utils.enforce_security:
            raise UsageError.at(
                "commands are not run while enforce_security is set",
                todo="unset wds.utils.enforce_security or WDS_SECURE",
                url=str(self),
            )
        if shutil.which(self.words[0]) is None:
            raise ReadError.at(
                f"the command {redact_command(self.words[:1])!r} is not there",
                todo="install it",
                url=str(self),
            )
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(  # noqa: S603 - the words are the program's own, see above
                [sys.executable, "-I", "-S", "-c", _KEEPER, *self.words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=said,
                start_new_session=True,
            ) as keeper,
        ):
            try:
                status = keeper.wait(self.timeout)
            except subprocess.TimeoutExpired as error:
                raise ReadError.at(
                    f"the command took longer than {self.timeout:g} s",
                    todo="give it more time: Command(words, timeout=)",
                    url=str(self),
                ) from error
            finally:
                if keeper.poll() is None:
                    os.killpg(keeper.pid, signal.SIGKILL)
            if status:
                said.seek(max(0, said.seek(0, os.SEEK_END) - 300))
                tail = said.read().decode(errors="replace").strip()
                tail = without_words(self.words, tail)
                raise ReadError.at(f"the command ended with status {status}: {tail}", url=str(self))


# Runs the command, and ends it when its own stdin is closed: by the death of the process that wants the output, too.
_KEEPER = """
import os, signal, subprocess, sys, threading

def watch():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=watch, daemon=True).start()
status = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)  # what the command has left behind
os._exit(status if status >= 0 else 128 - status)
"""


def named_by(item: Any) -> str:
    """Return the URL or path that an item names: text, a path object, or a mapping with such a ``"url"``.

    Raises:
        UsageError: It names none.

    Example:
        >>> from pathlib import PurePosixPath
        >>> named_by({"url": PurePosixPath("/data/s.tar")})
        '/data/s.tar'
    """
    named = item.get("url") if isinstance(item, Mapping) else item
    if isinstance(named, os.PathLike):
        named = os.fspath(named)
    return url_of(named if isinstance(named, str) else item)


def readable(
    items: Iterable[Any],
    names: dict[str, str],
    handler: Handler = reraise_exception,
    open_shards: int = 1,
    local_files: bool = True,
) -> Iterator[str]:
    """Yield what can be read for each shard; a command is run when its turn comes.

    Args:
        items: URLs, paths, or ``{"url": ...}``.
        names: Where the temporary file of a command is entered, with the command.
        handler: Called when a command fails.
        open_shards: How many shards the reader has open; a command needs it to be one.
        local_files: Whether local files are read even where `utils.enforce_security` is set.
    """
    for item in items:
        url = named_by(item)
        if not isinstance(url, Command):
            if not local_files:
                refuse_local_file(url)
            yield url
            continue
        if open_shards > 1:
            raise UsageError.at(
                "the output of a command is kept only while it is the one shard being read",
                todo="read commands with open_shards=1",
                url=str(url),
            )
        program = redact_command(url.words[:1]).rpartition("/")[2]
        prefix = f"torchdata_ais-{program}-"  # errors of the shard show it
        with tempfile.NamedTemporaryFile(prefix=prefix, suffix=".tar") as output:
            try:
                url.run(output)
            except ReadError as error:
                if not handler(error):
                    return
                continue
            names[output.name] = url
            yield output.name
            del names[output.name]
