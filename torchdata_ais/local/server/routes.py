"""Route table."""

from __future__ import annotations

from collections.abc import Callable
from configparser import ConfigParser
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .faults import Plan
from .http import Reply, Request
from .names import Node, check_bucket_name, parse_uname
from .problem import ReplyError, bad_bucket_name, decode, not_implemented, typed
from .state import Cluster
from .store import Bucket, Store

_KNOWN = ConfigParser()
_KNOWN.read_string(Path(__file__).with_name("vocabulary.ini").read_text())
_PATHS = {name: frozenset(follow.split()) for name, follow in _KNOWN["paths"].items()}
_BESIDE_V1 = frozenset(_KNOWN["words"]["beside_v1"].split())

# Actions and queries of AIStore. Those without a route are 501, others 400 as on a real node.
ACTIONS = frozenset(_KNOWN["words"]["actions"].split())


def is_known_path(path: str) -> bool:
    """Report whether a path is one of AIStore's API, served here or not.

    >>> is_known_path("/v1/download/abort"), is_known_path("/v1/nonsense"), is_known_path("/v2/buckets")
    (True, False, False)
    """
    first, *rest = path.strip("/").split("/")
    if first != "v1":
        return first in _BESIDE_V1
    if not rest or rest[0] not in _PATHS:
        return False
    follow = _PATHS[rest[0]]
    return not follow or len(rest) == 1 or rest[1] in follow


ALWAYS = frozenset(("provider", "namespace", "pid", "utm"))  # parameters of a bucket, and of a redirect

T = TypeVar("T")


@dataclass
class Call:
    """One request on its way through a handler.

    Attributes:
        bucket: The bucket's name, if the path names one.
        name: The object's name, if the path names one; else the rest of the path.
        plan: The actions of the faults.
    """

    cluster: Cluster
    node: Node
    request: Request
    peer: str
    bucket: str = ""
    name: str = ""
    plan: Plan = field(default_factory=Plan)

    @property
    def query(self) -> dict[str, str]:
        """The decoded query parameters."""
        return self.request.query

    @property
    def store(self) -> Store:
        """The objects of the cluster."""
        return self.cluster.store

    @property
    def source(self) -> Bucket:
        """The bucket that the path names, or the 404 of AIStore."""
        return self.store.bucket(self.bucket)

    def other_bucket(self) -> str:
        """The name of the bucket in ``bck_to``."""
        name, _ = parse_uname(self.query.get("bck_to", ""))
        check_bucket_name(name)
        return name

    @cached_property
    def _raw(self) -> bytes:
        return self.request.body.read() or b"{}"

    def body(self, kind: type[T]) -> T:
        """The JSON body of a control request as a `kind`; default ``{}``.

        Only requested types are decoded, so deep or wide JSON costs no more than its bytes.
        """
        message: T = decode(self._raw, kind)
        return message

    @cached_property
    def message(self) -> dict[str, msgspec.Raw]:
        """The undecoded fields of the body: ``{"action", "name", "value"}``."""
        return self.body(dict[str, msgspec.Raw])

    def text(self, field: str) -> str:
        """A field of the body that is a text, or nothing."""
        raw = self.message.get(field)
        return "" if raw is None else decode(raw, str | None, field) or ""

    def value(self, kind: type[T]) -> T | None:
        """The `value` of the action as a `kind`."""
        raw = self.message.get("value")
        return None if raw is None else decode(raw, kind | None, "value")

    def fields(self, **known: object) -> dict[str, Any]:
        """Return the fields of `value`; an unnamed one is answered with 501.

        Each is named by its default, whose type it has, or by its type, and is then `None` if it is missing.
        `msgspec.Raw` is for one that does not matter.
        """
        return typed(self.value(dict[str, msgspec.Raw]) or {}, f"action {self.text('action')!r}", known)


Handler = Callable[[Call], Reply]


@dataclass(frozen=True)
class Route:
    """One row of the table.

    Attributes:
        resource: The kind of the path: ``"bucket"`` for ``/v1/buckets/b``, and so on.
        key: Which of several requests of this form: the action, the ``what``, or the deciding parameter.
        query: Query parameters it understands besides the common ones.
        sdk: The SDK's function that makes this request.
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
    """Put a handler into the table; `query` has names separated by blanks."""

    def register(handler: Handler) -> Handler:
        known = frozenset(query.split())
        ROUTES[role, method, resource, key] = Route(role, method, resource, key, known, sdk, handler)
        return handler

    return register


def load_routes() -> None:
    """Fill the table: every ``api_*.py`` of this folder has rows for it."""
    for file in Path(__file__).parent.glob("api_*.py"):
        import_module(f".{file.stem}", __package__)


def find(call: Call, resource: str, key: str) -> Route:
    """Return the route of a request; check its query parameters.

    Requests about an object have the target's, at the proxy, too.
    """
    method = call.request.method
    role = "target" if resource == "object" else call.node.role
    found = ROUTES.get((role, method, resource, key))
    if found is None:
        raise _unknown(call, resource, key)
    for name in call.query:
        if name not in found.query and name not in ALWAYS:
            raise not_implemented(f"query parameter {name!r} of {method} {call.request.path}")
    for name in ("provider", "namespace"):
        value = call.query.get(name, "")
        if value and (name, value) != ("provider", "ais"):
            raise not_implemented(f"{name} {value!r}")
    return found


def _unknown(call: Call, resource: str, key: str) -> ReplyError:
    method, path = call.request.method, call.request.path
    known_key, known_path = not key or key in ACTIONS, is_known_path(path)
    missing = f" with {key!r}" if key else ""
    if all(row.resource != resource for row in ROUTES.values()):
        if known_path and known_key:
            return not_implemented(f"{method} {path}{missing}")
        if not key:
            return ReplyError(400, f"invalid request URI: '{method} {path}' from {call.peer}")
    elif resource == "object" and method == "POST" and key not in ACTIONS:
        # AIStore takes the whole rest of the path for the name of a bucket then.
        return bad_bucket_name()
    elif known_key or (resource == "sort" and known_path):
        return not_implemented(f"{method} of {resource}{missing}")
    elif resource in ("cluster", "daemon") and "what" in call.query:
        return ReplyError(400, f"unexpected query [what={key}]")
    return ReplyError(400, f'invalid action "{key}"')


_SHOWN_PATHS = {
    "batch": "/v1/ml/moss[/bucket]",
    "bucket": "/v1/buckets/bucket",
    "buckets": "/v1/buckets",
    "cluster": "/v1/cluster",
    "daemon": "/v1/daemon",
    "etl": "/v1/etl/name",
    "etls": "/v1/etl",
    "health": "/v1/health",
    "object": "/v1/objects/bucket/object",
    "reverse": "/v1/reverse/daemon",
    "sort": "/v1/sort",
}


def coverage_table() -> str:
    """Return a Markdown table of the requests of a `LocalCluster`.

    All others get 501 or 400.

    Example:
        >>> print(coverage_table().splitlines()[2])
        | GET `/v1/buckets` | `list` | | Cluster.list_buckets |
    """
    load_routes()
    lines = ["| request | action, `what` or parameter | query parameters | SDK |", "|---|---|---|---|"]
    rows = [row for row in ROUTES.values() if row.sdk]
    for row in sorted(rows, key=lambda row: (_SHOWN_PATHS[row.resource], row.method, row.key, row.role)):
        query = " ".join(f"`{name}`" for name in sorted(row.query - {"what"}))
        key = f"`{row.key}`" if row.key else ""
        cells = (f"{row.method} `{_SHOWN_PATHS[row.resource]}`", key, query, row.sdk)
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return "\n".join(lines) + "\n"
