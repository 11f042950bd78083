"""The request that makes a transform."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

import msgspec

from .fields import typed
from .problem import ReplyError, not_implemented

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
    """Return the request that makes a transform; refuse what cannot be done without containers, by name."""
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
