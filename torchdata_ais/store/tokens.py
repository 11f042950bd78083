"""Who gets to see the token: the endpoint and the nodes of its cluster, nobody else."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from urllib.parse import unquote, urlsplit

import urllib3

from torchdata_ais.store.attempts import Failed
from torchdata_ais.store.options import StoreOptions
from torchdata_ais.store.wire import refused, send_once

__all__ = ["authorization", "basic_login", "origin"]

_log = logging.getLogger("torchdata_ais")
_MAP_TIMEOUT_S = 10.0
_MAP_AGE_S = (
    10.0  # a host that is not on the map is looked up again after this time: the cluster may have grown
)
_MAP_BYTES = 16 << 20

_Origin = tuple[str, str, int]
_maps: dict[tuple[str, str], tuple[float, frozenset[_Origin]]] = {}
_lock = threading.Lock()


def _forget() -> None:
    """Start a forked process with a lock that nobody holds."""
    global _lock  # noqa: PLW0603 - the parent may have held the lock while it forked
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def origin(url: str) -> _Origin:
    """Return scheme, host and port of `url`."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").lower(), port


def authorization(url: str, home: str, options: StoreOptions) -> dict[str, str]:
    """Return the header with the token if `url` belongs to the cluster at `home`, else nothing.

    Args:
        url: Where the request goes.
        home: The endpoint the token was given for; ``""`` if the request is none for AIStore.
        options: Holds the token.
    """
    if not options.token or not home:
        return {}
    target = origin(url)
    if target == origin(home) or target in _cluster(home, target, options):
        return {"Authorization": f"Bearer {options.token}"}
    _log.debug("the token is not sent to %s://%s:%s: not a node of the cluster", *target)
    return {}


def basic_login(url: str) -> tuple[_Origin, dict[str, str]] | None:
    """Return the origin and header of the user name and password written into `url`."""
    parts = urlsplit(url)
    if not parts.username:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return origin(url), urllib3.make_headers(basic_auth=login)


def _cluster(home: str, wanted: _Origin, options: StoreOptions) -> frozenset[_Origin]:
    """Return the addresses of the nodes of the cluster, fetched when first needed."""
    parts = urlsplit(home)
    prefix = parts.path.partition("/v1/")[0]
    base = f"{parts.scheme}://{parts.netloc}{prefix}"
    key = (base, options.token or "")
    with _lock:
        fetched, nodes = _maps.get(key, (float("-inf"), frozenset()))
    if wanted in nodes or time.monotonic() - fetched < _MAP_AGE_S:
        return nodes
    nodes = _fetch_map(base, options)
    with _lock:
        _maps[key] = (time.monotonic(), nodes)
    return nodes


def _fetch_map(base: str, options: StoreOptions) -> frozenset[_Origin]:
    headers = {"Authorization": f"Bearer {options.token}", "Accept-Encoding": "identity"}
    timeout = urllib3.Timeout(connect=options.connect_timeout, read=_MAP_TIMEOUT_S)
    nodes = set()
    try:
        response = send_once("GET", f"{base}/v1/daemon?what=smap", options, timeout, headers=headers)
        if response.status != 200:
            raise refused(response, options)
        smap = json.loads(response.read(_MAP_BYTES))
        response.release_conn()
        for node in [*smap["tmap"].values(), *smap["pmap"].values()]:
            for net in ("public_net", "intra_control_net", "intra_data_net"):
                address = (node.get(net) or {}).get("direct_url")
                if address:
                    nodes.add(origin(address))
    except (
        Failed,
        urllib3.exceptions.HTTPError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        _log.warning("the cluster map of %s cannot be read (%s): redirects get no token", base, error)
    return frozenset(nodes)
