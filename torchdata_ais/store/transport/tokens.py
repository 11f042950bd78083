"""Tokens, and the hosts that receive them."""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from contextlib import suppress
from functools import lru_cache

import urllib3
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from torchdata_ais.errors.redaction import hide
from torchdata_ais.store.transport.attempts import Failed
from torchdata_ais.store.transport.exchange import UNREADABLE, refused, send_once
from torchdata_ais.store.transport.options import StoreOptions, basic, login_in

_log = logging.getLogger("torchdata_ais")
_MAP_TIMEOUT_S = 10.0
_MAP_AGE_S = 10.0  # then an unknown host is looked up again: the cluster may have grown
_MAP_BYTES = 16 << 20

_Origin = tuple[str, str, int]
_maps: dict[tuple[str, str], tuple[float, frozenset[_Origin]]] = {}


def origin(url: str) -> _Origin | None:
    """Return scheme, host and port of `url`; None if it names no host.

    It is parsed as urllib3 does when it connects: in malformed URLs, other parsers find other hosts.

    Example:
        >>> origin("HTTP://Node.:80/x") == origin("http://me:pass@node")
        True
    """
    return _origin(url.partition("?")[0])


@lru_cache(4096)
def _origin(url: str) -> _Origin | None:
    try:
        parts = parse_url(url)
    except LocationParseError:
        return None
    host = (parts.host or "").rstrip(".").lower()
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host.strip("[]")))
    if not parts.scheme or not host:
        return None
    return parts.scheme, host, parts.port or (443 if parts.scheme == "https" else 80)


def authorization(url: str, options: StoreOptions) -> dict[str, str]:
    """Return the header with the token for a request to the cluster.

    The header is empty if `url` leads elsewhere. The cluster is that of the token's endpoint in `options`, never the
    host of a URL itself, which is data.
    """
    target = origin(url) if options.token and options.endpoint else None
    if target is None:
        return {}
    if target == origin(options.endpoint) or target in _cluster(target, options):
        return {"Authorization": f"Bearer {options.bearer}"}
    _log.debug("the token is not sent to %s://%s:%s: not a node of the cluster", *target)
    return {}


def is_node(url: str, options: StoreOptions) -> bool:
    """Return whether the host of `url` is a node of the cluster's map."""
    target = origin(url)
    return bool(options.endpoint) and target is not None and target in _cluster(target, options)


def login_of(url: str, options: StoreOptions) -> tuple[str, _Origin | None, dict[str, str]]:
    """Return `url` without its login, and the header with it for its origin.

    User name and password are those in `url`, else those given with the endpoint, if it leads there.
    """
    try:
        auth = parse_url(url).auth if "@" in url else None
    except LocationParseError:
        return url, None, {}  # a URL that cannot be parsed is not sent
    login = None
    if auth is not None:
        login = login_in(auth)
        hide(login[1])
        url = parse_url(url)._replace(auth=None).url
    elif options.login and origin(url) == origin(options.endpoint):
        login = options.login
    return url, origin(url), {"Authorization": basic(*login)} if login else {}


def _cluster(wanted: _Origin, options: StoreOptions) -> frozenset[_Origin]:
    """Return the addresses of the cluster's nodes, fetched on first use."""
    key = (str(options.endpoint), options.bearer or "")
    fetched, nodes = _maps.get(key, (float("-inf"), frozenset()))
    if wanted in nodes or time.monotonic() - fetched < _MAP_AGE_S:
        return nodes
    nodes = _fetch_map(options)
    _maps[key] = (time.monotonic(), nodes)
    return nodes


def _fetch_map(options: StoreOptions) -> frozenset[_Origin]:
    base = str(options.endpoint)
    headers = {"Accept-Encoding": "identity"}
    if options.token:
        headers["Authorization"] = f"Bearer {options.bearer}"
    headers.update(login_of(base, options)[2])
    timeout = urllib3.Timeout(connect=options.connect_timeout, read=_MAP_TIMEOUT_S)
    nodes: set[_Origin] = set()
    try:
        response = send_once("GET", f"{base}/v1/daemon?what=smap", options, timeout, headers=headers)
        if response.status != 200:
            raise refused(response, options)
        smap = json.loads(response.read(_MAP_BYTES))
        response.release_conn()
        for node in [*smap["tmap"].values(), *smap["pmap"].values()]:
            for net in ("public_net", "intra_control_net", "intra_data_net"):
                address = (node.get(net) or {}).get("direct_url")
                node_origin = origin(address) if address else None
                if node_origin is not None:
                    nodes.add(node_origin)
    except (Failed, urllib3.exceptions.HTTPError, OSError, *UNREADABLE) as error:
        if options.token:
            _log.warning("the cluster map of %s cannot be read (%s): redirects get no token", base, error)
    return frozenset(nodes)
