"""Connection pools.

A node closes connections that are idle (a storage target of AIStore after 30 s). They are closed here before; and
where a node was first, in the very moment of the next request, that request goes over another connection.

A process that was forked starts with no connections: two processes on one socket would mix their bodies.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - resolving a host name needs it: 1.5 ms that the first batch would wait for
import ipaddress
import logging
import os
import socket
import ssl
import sys
import time
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from torchdata_ais.errors import UsageError
from torchdata_ais.errors.redaction import RedactingFilter, hide
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.framing import StrictResponse
from torchdata_ais.store.transport.options import StoreOptions, basic, login_in

for _name in ("urllib3.connectionpool", "urllib3.util.retry"):  # they log URLs with their queries
    logging.getLogger(_name).addFilter(RedactingFilter())

_LOOK_S = 1.0  # how often to look for connections that have been idle for too long
_SAFE = ("GET", "HEAD")  # may be sent again when it is unknown whether they were answered
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_HOSTS = 256  # pools kept per manager; a cluster has a pool for each target


class IdleLostError(Exception):
    """The node closed an idle connection before it answered a request."""


class _Connection(HTTPConnection):
    response_class = StrictResponse
    idle_since = float("inf")

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        Cancel.current().watch(sock)  # a proxy may drip its answer to CONNECT
        return sock

    def request(self, *args: Any, **kwargs: Any) -> None:
        Cancel.current().watch(self.sock)  # None if not connected yet
        super().request(*args, **kwargs)


class _TLSConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        Cancel.current().watch(self.sock)
        self.is_verified = True  # skip_verify was set: no InsecureRequestWarning for each request


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection

    def __init__(self, *args: Any, idle_timeout: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._idle_timeout = idle_timeout
        self._look_at = 0.0

    def _get_conn(self, timeout: float | None = None) -> Any:
        self._close_idle()
        return super()._get_conn(timeout)

    def _put_conn(self, conn: Any) -> None:
        Cancel.current().watch(None)
        if conn is not None:
            conn.idle_since = time.monotonic()
        super()._put_conn(conn)

    def _close_idle(self) -> None:
        """Close connections that were idle for too long; use reconnects them."""
        now = time.monotonic()
        if now < self._look_at or self.pool is None:
            return
        self._look_at = now + min(_LOOK_S, self._idle_timeout / 4)
        with self.pool.mutex:
            for conn in self.pool.queue:
                if conn is not None and now - conn.idle_since > self._idle_timeout:
                    conn.close()

    def _make_request(self, conn: Any, method: str, *args: Any, **named: Any) -> Any:
        was_idle = conn.sock is not None
        try:
            return super()._make_request(conn, method, *args, **named)
        except (ConnectionError, ssl.SSLEOFError) as error:
            if was_idle and method in _SAFE and not Cancel.current().ended_it():
                raise IdleLostError from error
            raise


class _TLSPool(_Pool, HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _Manager(urllib3.PoolManager):
    """A manager that remembers the pool of each host.

    To find it again, `urllib3.PoolManager` takes a fifteenth of the time of a request.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._known: dict[tuple[object, ...], HTTPConnectionPool] = {}

    def connection_from_host(
        self,
        host: str | None,
        port: int | None = None,
        scheme: str | None = "http",
        pool_kwargs: dict[str, Any] | None = None,
    ) -> HTTPConnectionPool:
        pool = self._known.get((scheme, host, port))
        if pool is None:
            if len(self._known) >= _HOSTS:
                self._known.clear()
            pool = super().connection_from_host(host, port, scheme, pool_kwargs)
            self._known[scheme, host, port] = pool
        return pool


class _ProxyManager(_Manager, urllib3.ProxyManager):
    pass


def pool_for(url: str, options: StoreOptions) -> urllib3.PoolManager:
    """Return the pool manager of this process for `url`, direct or by a proxy."""
    parts = urlsplit(url)
    proxy = proxy_for(url)
    tls = (options.ca_cert, options.client_cert, options.skip_verify) if parts.scheme == "https" else None
    key = (tls, proxy, options.pool_size, options.idle_timeout)
    manager = _managers.get(key)
    if manager is None:
        made = _make_manager(tls is not None, proxy, options)
        manager = _managers.setdefault(key, made)  # another thread may have been faster
    return manager


_managers: dict[tuple[Any, ...], urllib3.PoolManager] = {}
os.register_at_fork(after_in_child=_managers.clear)  # a forked process has no connections of its parent


def _make_manager(tls: bool, proxy: str | None, options: StoreOptions) -> urllib3.PoolManager:
    settings: dict[str, Any] = {"num_pools": _HOSTS, "maxsize": options.pool_size}
    if tls:
        settings["ssl_context"] = _tls_context(options)
    manager: urllib3.PoolManager
    if proxy is None:
        manager = _Manager(**settings)
    else:
        parts = urlsplit(proxy)
        headers = None
        if parts.username:
            # Not urllib3.make_headers: it knows Latin-1 only.
            headers = {"Proxy-Authorization": basic(*login_in(parts.netloc.rpartition("@")[0]))}
        manager = _ProxyManager(proxy, proxy_headers=headers, **settings)
    report_sockets(manager, options)
    return manager


def report_sockets(manager: urllib3.PoolManager, options: StoreOptions) -> None:
    """Make the connections of `manager` strict, and known to `Cancel`.

    The `Cancel` of their thread gets their sockets. Requests over them raise `IdleLostError` where they are to be
    sent again.
    """
    idle = options.idle_timeout
    make: dict[str, Any] = {
        "http": partial(_Pool, idle_timeout=idle),
        "https": partial(_TLSPool, idle_timeout=idle),
    }
    manager.pool_classes_by_scheme = make


def _tls_context(options: StoreOptions) -> ssl.SSLContext:
    ca = options.ca_cert
    try:
        if ca and os.path.isdir(ca):  # noqa: PTH112 - the value may be bytes-like or a str, as ssl takes it
            context = ssl.create_default_context(capath=ca)
        else:
            context = ssl.create_default_context(cafile=ca)
        if options.client_cert:
            pair = options.client_cert
            context.load_cert_chain(*((pair,) if isinstance(pair, str) else pair))
    except (OSError, ssl.SSLError) as error:
        raise UsageError.at(
            f"the TLS files cannot be used ({error}): ca_cert={ca!r}, client_cert={options.client_cert!r}",
            todo="correct the paths (or AIS_CLIENT_CA, AIS_CRT, AIS_CRT_KEY); they must be PEM",
        ) from error
    if options.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@lru_cache(_HOSTS)
def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def proxy_for(url: str) -> str | None:
    """Return the HTTP proxy that the environment names for `url`.

    This machine is always reached directly.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost" or host.endswith(".localhost") or _is_loopback(host):
        return None
    if sys.platform == "linux" and not any(name in os.environ for name in _PROXIES):
        return None  # getproxies looks at each variable, of which a pod has hundreds
    proxies = getproxies()
    proxy = (proxies.get(parts.scheme) or proxies.get("all") or "").strip()
    if not proxy or proxy_bypass(host):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.isprintable() or " " in proxy:
        raise UsageError.at(
            "the address of the proxy has a blank or a control character in it",
            todo="correct http_proxy, https_proxy or all_proxy",
        )
    if "@" in proxy:
        with suppress(ValueError):
            hide(unquote(urlsplit(proxy).password or ""))
    return proxy
