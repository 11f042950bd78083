"""What all commands share: errors as one clear message, exit codes, the cluster that is meant."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torchdata_ais.store import StoreOptions

__all__ = ["Debug", "Endpoint", "ExitCodes", "counted", "options_for", "reported", "sentence", "size_text"]

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Endpoint = Annotated[
    str,
    typer.Option(help="The cluster, as http://host:51080. Default: AIS_ENDPOINT.", show_default=False),
]


# Errors speak of arguments of functions; some are options here, and one is not to be had.
_ARGUMENTS = {
    ", or pass allow_empty=True": "",
    "resume=True": "--resume",
    "overwrite=True": "--overwrite",
    "manifest=": "--manifest",
    "max_pixels=": "--max-pixels ",
}


class ExitCodes:
    """What the command returns to the shell."""

    FAILED = 1
    INTERRUPTED = 130
    HELP = "Exit codes: 0 done, 1 failed (the message says why), 2 wrong arguments, 130 interrupted."


@contextmanager
def reported(debug: bool = False) -> Iterator[None]:
    """Run a command: errors of this package become one message and exit code 1, signals 130.

    SIGTERM is handled like Ctrl-C, so that clusters are stopped and buckets removed.
    """
    from torchdata_ais.errors import AISError

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(ExitCodes.INTERRUPTED) from None
    except (AISError, OSError) as error:
        if debug:
            raise
        typer.echo(f"error: {sentence(error)}", err=True)
        raise typer.Exit(ExitCodes.FAILED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def sentence(error: BaseException) -> str:
    """Return what an error says, without the traceback a worker process may have added.

    Example:
        >>> from torchdata_ais.errors import NotFoundError
        >>> print(sentence(NotFoundError.at("no bucket 'x'", todo="Create it", url="ais://x", attempt=None)))
        no bucket 'x'. Create it
          url: ais://x
    """
    text = str(error) or type(error).__name__
    # Loaders put "Caught ... Original Traceback ..." in front; the last line naming the class begins the message.
    begins = list(re.finditer(rf"^(?:\w+\.)*{type(error).__name__}: ", text, re.MULTILINE))
    if begins:
        text = text[begins[-1].end() :]
    text = text.partition("\n[at] ")[0].partition("\nThis exception is thrown by")[0].strip()
    for argument, option in _ARGUMENTS.items():
        text = text.replace(argument, option)
    place: dict[str, Any] = getattr(error, "place", {})
    return "\n".join([text, *(f"  {name}: {value}" for name, value in place.items())])


def options_for(endpoint: str = "") -> StoreOptions:
    """Return how to reach the cluster: the one given, else that of ``AIS_ENDPOINT``.

    Raises:
        UsageError: There is neither.
    """
    from torchdata_ais.errors import UsageError
    from torchdata_ais.store import resolve_options

    options = resolve_options(endpoint=endpoint or None)
    if not options.endpoint:
        raise UsageError.at(
            "no cluster is known",
            todo="export AIS_ENDPOINT=http://host:51080, or pass --endpoint; torchdata-ais serve starts one here",
        )
    return options


def counted(count: int, what: str) -> str:
    """Return "1 shard", "2 shards"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size_text(count: int) -> str:
    """Return a number of bytes for people.

    Example:
        >>> size_text(512), size_text(15_700), size_text(60_000_000)
        ('512 B', '15.7 kB', '60.0 MB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
