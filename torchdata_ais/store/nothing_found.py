"""What to say where nothing was found of what was asked for: the slip that the source shows, or where to look."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.store.files import home_todo
from torchdata_ais.urls import parse_url, redact


def described(source: Any) -> str:
    """Return what to call a source in messages."""
    if isinstance(source, str):
        try:
            return parse_url(source).uri
        except UsageError:
            return redact(source)
    name = getattr(source, "name", None) or getattr(getattr(source, "bck", None), "name", "")
    return f"{type(source).__name__} {name}".strip()


_SLIPS = (
    (
        re.compile(r"%0?\d*d"),
        "names are no pattern of a writer: write train-{000000..000099}.tar, or the prefix alone",
    ),
    (
        re.compile(r"[*?\[]"),
        "a bucket knows no * ? [: write the prefix that names begin with, or train-{000..099}.tar",
    ),
)


def _todo(source: Any) -> str:
    """Return what to do where nothing was found: the slip that the name shows, or where to look."""
    text = source if isinstance(source, str) else ""
    slip = next((todo for sign, todo in _SLIPS if sign.search(text)), None)
    return slip or "check bucket and prefix (AIS_ENDPOINT may name another cluster)"


def nothing_found(
    source: Any, prefix: str, template: str | None, regex: str | None, listed: int
) -> NotFoundError:
    """Return what to say of a source in which `listed` objects are, and none of those that were asked for."""
    if isinstance(source, str | Path) and parse_url(str(source)).kind == "file":
        if Path(source).is_dir() and not regex:
            return NotFoundError.at(
                f"{source}: no file matches: the folder holds no shard (.tar)",
                todo="check the path; torchdata-ais convert makes shards of folders and tables",
                url=str(source),
            )
        return NotFoundError.at(
            f"{source}: no file"
            + (f" matches regex={regex!r}; {listed} were found" if regex and listed else " matches"),
            todo=home_todo(str(source)) or "check the path and the folder it is relative to",
            url=str(source),
        )
    what = f"{described(source)}: no object"
    if prefix:
        what += f" with the prefix {prefix!r}"
    if template is not None:
        what += f" in the template {template!r}"
    if regex and listed:
        what += f" matches regex={regex!r}; {listed} were listed"
    return NotFoundError.at(what, todo=_todo(source), url=redact(source) if isinstance(source, str) else None)
