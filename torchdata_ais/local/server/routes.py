"""The table of what this cluster answers; the nodes dispatch by it and the coverage page is written from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .problem import ReplyError, bad_bucket_name, not_implemented

if TYPE_CHECKING:
    from .faults import Plan
    from .node import Node
    from .reply import Reply
    from .state import Cluster
    from .wire import Request

__all__ = ["ROUTES", "Call", "Route", "find", "route"]

ALWAYS = frozenset(("provider", "namespace", "pid", "utm"))
"""Query parameters that any request may carry: the bucket's, and what a redirect adds."""


class Call:
    """One request on its way through a handler.

    Attributes:
        node: The node it came to.
        bucket: The bucket's name, if the path names one.
        name: The object's name, if the path names one; else what else follows in the path.
        message: The JSON body of a control request: ``{"action", "name", "value"}``.
        plan: What the faults want, if anything.
    """

    __slots__ = ("_message", "bucket", "name", "node", "plan", "request")

    def __init__(self, node: Node, request: Request, bucket: str, name: str) -> None:
        self.node = node
        self.request = request
        self.bucket = bucket
        self.name = name
        self.plan: Plan | None = None
        self._message: dict[str, Any] | None = None

    @property
    def cluster(self) -> Cluster:
        """The cluster this node belongs to."""
        return self.node.cluster

    @property
    def query(self) -> dict[str, str]:
        """The decoded query parameters."""
        return self.request.query

    @property
    def message(self) -> dict[str, Any]:
        """The JSON body, read on the first use; ``{}`` if there is none."""
        if self._message is None:
            raw = self.request.body.read()
            try:
                message = json.loads(raw) if raw else {}
            except ValueError as cause:
                raise ReplyError(400, f"failed to unmarshal the request: {cause}", "ErrJSON") from cause
            if not isinstance(message, dict):
                raise ReplyError(
                    400, f"failed to unmarshal the request: not an object: {message!r:.100}", "ErrJSON"
                )
            self._message = message
        return self._message

    @property
    def value(self) -> dict[str, Any]:
        """The `value` of the action, as a dict."""
        value = self.message.get("value")
        return value if isinstance(value, dict) else {}

    def fields(self, **known: Any) -> dict[str, Any]:
        """Return `value` with defaults for what is missing; a field not named here is answered with 501."""
        value = self.value
        for key, item in value.items():
            if key.replace("-", "_") not in known and item not in (None, "", False, 0, [], {}):
                raise not_implemented(f"field {key!r} of action {self.message.get('action')!r}")
        out = dict(known)
        out.update({k.replace("-", "_"): v for k, v in value.items() if k.replace("-", "_") in known})
        return out


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
    method = call.request.method
    siblings = [row for row in ROUTES.values() if row.resource == resource]
    if not siblings and key not in KNOWN_ACTIONS:
        uri = f"{method} {call.request.path}"
        return ReplyError(400, f"invalid request URI: '{uri}' from {call.node.peer_of(call.request)}")
    if resource == "object" and method == "POST" and key not in KNOWN_ACTIONS:
        # AIStore takes the whole rest of the path for the name of a bucket then.
        return bad_bucket_name()
    if key and key not in KNOWN_ACTIONS:
        if resource in ("cluster", "daemon") and "what" in call.query:
            return ReplyError(400, f"unexpected query [what={key}]")
        return ReplyError(400, f'invalid action "{key}"')
    return not_implemented(f"{method} of {resource}" + (f" with {key!r}" if key else ""))


KNOWN_ACTIONS = frozenset(
    [
        "create-bck",
        "destroy-bck",
        "set-bprops",
        "reset-bprops",
        "summary-bck",
        "ec-encode",
        "copy-bck",
        "etl-bck",
        "blob-download",
        "make-n-copies",
        "rechunk",
        "index-shard",
        "summary-shard",
        "rebalance",
        "move-bck",
        "resilver",
        "lru",
        "cleanup-store",
        "evict-remote-bck",
        "list",
        "load-lom-cache",
        "promote",
        "rename-obj",
        "mpt-upload",
        "mpt-complete",
        "mpt-abort",
        "reset-stats",
        "reset-config",
        "set-config",
        "rotate-logs",
        "shutdown",
        "copy-listrange",
        "delete-listrange",
        "etl-listrange",
        "evict-listrange",
        "prefetch-listrange",
        "archive",
        "attach",
        "detach",
        "enable-bend",
        "disable-bend",
        "start-maintenance",
        "stop-maintenance",
        "shutdown-node",
        "decommission-node",
        "decommission",
        "check-lock",
        "get-batch",
        "create-inventory",
        "destroy-inventory",
        "show-inventory",
        "start",
        "stop",
        "status",
        "status_all",
        "running_all",
        "qryxstats",
        "smap",
        "node_status",
        "log",
        "cluster_config",
        "bmd",
        "config",
        "stats",
        "snode",
        "sysinfo",
        "remote",
        "target_ips",
    ]
)
"""Actions and questions that AIStore knows: those without a route are 501, others 400 as on a real node."""
