"""Commands that print a shard, run without a shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from typing_extensions import Self

from torchdata_ais.errors import ReadError, UsageError
from torchdata_ais.errors.redaction import MASK, redact_command, without_words
from torchdata_ais.pipes.checkpoint.load_state import url_of
from torchdata_ais.urls import parse_url
from torchdata_ais.webdataset import utils
from torchdata_ais.webdataset.handlers import Handler, reraise_exception

PREFIX = "pipe:"

# Text up to the first sign that only a shell understands. Signs in single quotes and after a backslash are plain, and
# so are "~" and "#" inside of a word. Double quotes do not protect "$" and "`".
_PLAIN_TEXT = re.compile(
    r"""(?: [^'"\\|&;<>()$`*\n\r~\#] | (?<=\S)[~\#] | \\[^\n\r] | '[^']*' | "(?:[^"\\$`] | \\[^\n$`])*" )*""",
    re.VERBOSE,
)
_OPERATOR = re.compile(r"\|\||&&|>>|<<|\$\(|.", re.DOTALL)
_HIDES_ERRORS = re.compile(r"\|\|[ \t]*true")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELL_WORD = re.compile(
    r"[!.{}]|alias|case|cd|eval|exec|export|for|function|if|set|source|ulimit|umask|unset|until|while"
)
_TODO = "put a URL in quotes, or pass Command([...]) with the words of one program, which may be your own"


def refuse_local_file(url: str) -> None:
    """Raise if `url` is a local file and `utils.enforce_security` is set."""
    if utils.enforce_security and parse_url(url).kind == "file":
        raise UsageError.at(
            "local files are not read while enforce_security is set",
            todo="unset wds.utils.enforce_security or WDS_SECURE, or use WebDataset(path)",
            url=url,
        )


class Command(str):
    """A shard that a command prints, as a list of words.

    It is run without a shell. The text of a ``pipe:`` URL becomes a command where the program passes it itself: see
    `from_text` and `with_commands`. Samples, errors and logs show it by
    `torchdata_ais.errors.redaction.redact_command`: without queries of URLs, values of options and secrets. What it
    prints goes to a temporary file (``TMPDIR``) first: of a command that fails no sample is passed on. It runs in a
    process group of its own, which is ended with the command, after `timeout`, on Ctrl-C, and when the process that
    wants the shard is gone.

    Args:
        words: Program and arguments.
        timeout: Seconds it may take.

    Memory:
        None to speak of; on disk the size of one shard.

    Raises:
        UsageError: No list of words, or a word that no program can be started with (a null character).

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
        if isinstance(words, str) or not words or not all(map(_is_word, words)):
            raise UsageError.at(
                "expected a command as a list of words", todo='write Command(["zcat", "s.tar.gz"])'
            )
        self = super().__new__(cls, f"{PREFIX}{redact_command(words)}")
        self.words = tuple(words)
        self.timeout = timeout
        return self

    @classmethod
    def from_text(cls, text: str, timeout: float = 600.0) -> Self:
        """Return the command of a ``pipe:`` URL, split as a shell splits it.

        A trailing ``|| true``, which hides errors, is left out.

        Args:
            text: The URL. It must come from the program: never pass text from data here.
            timeout: Seconds the command may take.

        Raises:
            UsageError: Only a shell understands the text, or it is empty.

        Example:
            >>> Command.from_text("pipe:curl -s 'http://host/s.tar?a=1&b=2' || true").words
            ('curl', '-s', 'http://host/s.tar?a=1&b=2')
            >>> Command.from_text("pipe:cat s.tar.gz | zcat")
            Traceback (most recent call last):
            torchdata_ais.errors.UsageError: Expected a command that needs no shell, got '|' outside of quotes. ...
        """
        return cls(_words_of(text), timeout)

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
                f"the command {redact_command(self.words[:1])[:200]!r} is not there",
                todo="install it",
                url=str(self),
            )
        with (
            tempfile.TemporaryFile() as said,
            self._start(output, said) as keeper,
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

    def _start(self, output: IO[bytes], said: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(  # noqa: S603 - the words are the program's own, see above
                [sys.executable, "-I", "-S", "-c", _KEEPER, *self.words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=said,
                start_new_session=True,
            )
        except OSError as error:  # such as too many words
            raise ReadError.at(f"the command cannot be started: {error.strerror}", url=str(self)) from None


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


def _is_word(word: object) -> bool:
    try:
        return isinstance(word, str) and b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:  # half a character
        return False


def _words_of(text: str) -> list[str]:
    command = text.removeprefix(PREFIX).strip(" \t\r\n")
    found = _PLAIN_TEXT.match(command)
    plain = found[0] if found else ""
    rest = command[len(plain) :]
    try:
        words = shlex.split(plain if _HIDES_ERRORS.fullmatch(rest) else command)
    except ValueError:  # a quote that is not closed, or a backslash at the end
        raise _needs_shell(text, "an open quote or a backslash at the end") from None
    if rest and not _HIDES_ERRORS.fullmatch(rest):
        where = "in double quotes" if rest[0] == '"' else "outside of quotes"
        sign = "'$' or '`'" if rest[0] == '"' else repr((_OPERATOR.match(rest) or rest)[0])
        raise _needs_shell(text, f"{sign} {where}")
    if not words:
        raise _needs_shell(text, "no word")
    if _ASSIGNMENT.match(words[0]):
        raise _needs_shell(
            text, "a variable in the place of the program", 'pass Command(["env", "NAME=value", ...])'
        )
    if _SHELL_WORD.fullmatch(words[0]):
        raise _needs_shell(text, f"{words[0]!r}, a word of the shell")
    if any(MASK in word for word in words):
        raise _needs_shell(
            text, f"{MASK!r}, which takes the place of secrets in texts", "pass the original command"
        )
    return words


def _needs_shell(text: str, got: str, todo: str = _TODO) -> UsageError:
    return UsageError.at(f"expected a command that needs no shell, got {got}", todo=todo, url=text)


def with_command(url: object) -> Any:
    """Return `url`, and a `Command` for the text of a ``pipe:`` URL.

    Only a plain string is such text: the names in a listing are of another class, and a path is a path.
    """
    return Command.from_text(url) if type(url) is str and url.startswith(PREFIX) else url


def with_commands(shards: object) -> Any:
    """Return `shards`, with a `Command` for each ``pipe:`` URL of a list.

    A list or tuple is what the program passes itself. Items of iterators, pipes, data sets and open files are
    returned as they are, since they may come from data: readers refuse text there, and run a `Command` only.

    Example:
        >>> [type(url).__name__ for url in with_commands(["pipe:cat s.tar", "s.tar"])]
        ['Command', 'str']
        >>> [type(url).__name__ for url in with_commands(iter(["pipe:cat s.tar"]))]
        ['str']
    """
    if not isinstance(shards, list | tuple):
        return shards
    return [
        {**item, "url": with_command(item["url"])}
        if isinstance(item, Mapping) and "url" in item and "stream" not in item
        else with_command(item)
        for item in shards
    ]


def named_by(item: object) -> str:
    """Return the URL or path of an item: text, a path, or its ``"url"``.

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
    items: Iterable[object],
    names: dict[str, str],
    handler: Handler = reraise_exception,
    open_shards: int = 1,
    local_files: bool = True,
) -> Iterator[str]:
    """Yield the readable name of each shard, and run a command in its turn.

    The temporary file of a command is entered in `names`; a command needs `open_shards` to be one. With `local_files`,
    local files are read even where `utils.enforce_security` is set.
    """
    for item in with_commands(items):
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
        program = redact_command(url.words[:1]).rpartition("/")[2][:40]
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
