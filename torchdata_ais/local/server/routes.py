"""The table of what this cluster answers; the nodes dispatch by it and the coverage page is written from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

import msgspec

from .problem import ReplyError, bad_bucket_name, not_implemented
from .vocabulary import ACTIONS, is_known_path

if TYPE_CHECKING:
    from .faults import Plan
    from .node import Node
    from .reply import Reply
    from .state import Cluster
    from .wire import Request

__all__ = ["ROUTES", "Call", "Int", "Route", "decode", "find", "number", "route", "typed"]

ALWAYS = frozenset(("provider", "namespace", "pid", "utm"))
"""Query parameters that any request may carry: the bucket's, and what a redirect adds."""


Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of JSON, as large as Go's."""

T = TypeVar("T")
_EMPTY = (b"null", b'""', b"false", b"0", b"[]", b"{}")


class Call:
    """One request on its way through a handler.

    Attributes:
        node: The node it came to.
        bucket: The bucket's name, if the path names one.
        name: The object's name, if the path names one; else what else follows in the path.
        plan: What the faults want, if anything.
    """

    __slots__ = ("_message", "_raw", "bucket", "name", "node", "plan", "request")

    def __init__(self, node: Node, request: Request) -> None:
        self.node = node
        self.request = request
        self.bucket = ""
        self.name = ""
        self.plan: Plan | None = None
        self._raw: bytes | None = None
        self._message: dict[str, msgspec.Raw] | None = None

    @property
    def cluster(self) -> Cluster:
        """The cluster this node belongs to."""
        return self.node.cluster

    @property
    def query(self) -> dict[str, str]:
        """The decoded query parameters."""
        return self.request.query

    def body(self, kind: type[T]) -> T:
        """The JSON body of a control request as a `kind`; that of ``{}`` if there is none.

        Nothing is decoded into types that were not asked for, so deep or wide JSON costs no more than its bytes.
        """
        if self._raw is None:
            self._raw = self.request.body.read()
        message: T = decode(self._raw or b"{}", kind)
        return message

    @property
    def message(self) -> dict[str, msgspec.Raw]:
        """The fields of the body, not decoded: mostly ``{"action", "name", "value"}``."""
        if self._message is None:
            self._message = self.body(dict[str, msgspec.Raw])
        return self._message

    def text(self, field: str) -> str:
        """A field of the body that is a text, or nothing."""
        raw = self.message.get(field)
        return "" if raw is None else decode(raw, str | None, field) or ""

    def value(self, kind: type[T]) -> T | None:
        """The `value` of the action as a `kind`."""
        raw = self.message.get("value")
        return None if raw is None else decode(raw, kind | None, "value")

    def fields(self, **known: Any) -> dict[str, Any]:
        """Return the fields of `value`; one that is not named here is answered with 501.

        Each is named by its default, whose type it has, or by its type, and is then `None` if it is missing.
        `msgspec.Raw` is for one that does not matter.
        """
        return typed(self.value(dict[str, msgspec.Raw]) or {}, f"action {self.text('action')!r}", known)


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


Handler = Callable[[Call], "Reply"]


@dataclass(frozen=True)
class Route:
    """One row of the table.

    Args:
        role: ``"proxy"`` or ``"target"``.
        method: HTTP method.
        resource: What the path names: ``"bucket"`` for ``/v1/buckets/b``, and so on.
        key: Which of several requests of this form: the action, the ``what``, or the deciding parameter.
        query: Query parameters it understands besides the common ones.
        sdk: What in the SDK makes this request.
        handler: The function that answers.
    """

    role: str
    method: str
    resource: str
    key: str
    query: frozenset[str]
    sdk: str
    handler: Handler


ROUTES: dict[tuple[str, str, str, str], Route] = {}


def route(
    role: str, method: str, resource: str, key: str = "", *, query: str = "", sdk: str = ""
) -> Callable[[Handler], Handler]:
    """Put a handler into the table. `query` lists parameter names separated by blanks."""

    def register(handler: Handler) -> Handler:
        known = frozenset(query.split())
        ROUTES[role, method, resource, key] = Route(role, method, resource, key, known, sdk, handler)
        return handler

    return register


def find(call: Call, resource: str, key: str) -> Route:
    """Return the route of a request, after checking that every query parameter is understood."""
    method = call.request.method
    found = ROUTES.get((call.node.role, method, resource, key))
    if found is None:
        raise _unknown(call, resource, key)
    for name in call.query:
        if name not in found.query and name not in ALWAYS:
            raise not_implemented(f"query parameter {name!r} of {method} {call.request.path}")
    provider = call.query.get("provider", "ais")
    if provider not in ("ais", ""):
        raise not_implemented(f"provider {provider!r}")
    if call.query.get("namespace"):
        raise not_implemented(f"namespace {call.query['namespace']!r}")
    return found


def _unknown(call: Call, resource: str, key: str) -> ReplyError:
    method, path = call.request.method, call.request.path
    siblings = [row for row in ROUTES.values() if row.resource == resource]
    if not siblings:
        if is_known_path(path) and (not key or key in ACTIONS):
            return not_implemented(f"{method} {path}" + (f" with {key!r}" if key else ""))
        if key:
            return ReplyError(400, f'invalid action "{key}"')
        peer = call.node.peer_of(call.request)
        return ReplyError(400, f"invalid request URI: '{method} {path}' from {peer}")
    if resource == "object" and method == "POST" and key not in ACTIONS:
        # AIStore takes the whole rest of the path for the name of a bucket then.
        return bad_bucket_name()
    if key and key not in ACTIONS and not (resource == "sort" and is_known_path(path)):
        if resource in ("cluster", "daemon") and "what" in call.query:
            return ReplyError(400, f"unexpected query [what={key}]")
        return ReplyError(400, f'invalid action "{key}"')
    return not_implemented(f"{method} of {resource}" + (f" with {key!r}" if key else ""))
