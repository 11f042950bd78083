"""Values in the JSON and the query of a request: of the type they must have, or a 400 that says what they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, get_origin

import msgspec

from .problem import ReplyError, not_implemented

Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of JSON, as large as Go's."""

_EMPTY = (b"null", b'""', b"false", b"0", b"[]", b"{}")


def typed(fields: Mapping[str, msgspec.Raw], of: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the fields that are known; see `Call.fields`. `of` says in the 501 whose fields they are."""
    out = {name: None if _is_type(spec) else spec for name, spec in known.items()}
    for key, raw in fields.items():
        name = key.replace("-", "_")
        if name not in known:
            if bytes(raw).strip() not in _EMPTY:
                raise not_implemented(f"field {key!r:.100} of {of:.100}")
            continue
        spec = known[name]
        if spec is msgspec.Raw:
            continue
        kind = spec if _is_type(spec) else Int if type(spec) is int else type(spec)
        value = decode(raw, kind | None, key)
        if value is not None:
            out[name] = value
    return out


def _is_type(spec: Any) -> bool:
    return isinstance(spec, type) or get_origin(spec) is not None


def decode(raw: bytes | msgspec.Raw, kind: Any, field: str = "") -> Any:
    """Return JSON as a `kind`, or say with 400 what is wrong with it."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as cause:
        where = f" in {field!r}" if field else ""
        raise ReplyError(400, f"failed to unmarshal the request{where}: {cause}", "ErrJSON") from cause


def number(text: str, what: str) -> int:
    """Return the value of a query parameter that is a number, or say with 400 that it is none."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ReplyError(400, f"{what} {text!r:.100} is not a number")
    return int(text)
