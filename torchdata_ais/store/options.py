"""How objects are reached: endpoint, token, TLS, timeouts, retries, memory.

Both classes are plain, frozen and picklable: they travel to worker processes with the pipe.
"""

from __future__ import annotations

import os
import random
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from torchdata_ais.arguments import checked_options
from torchdata_ais.error_text import Remedy, in_programs
from torchdata_ais.errors import UsageError
from torchdata_ais.redaction import hide
from torchdata_ais.urls import redact


class Endpoint(str):
    """The address of a cluster, ``http://host:51080``, without the user name and password that belong to it.

    They are kept beside it, so that no URL, message or `repr` made of the address has them.

    Attributes:
        login: User name and password for the address itself, for no other host; or None.

    Example:
        >>> endpoint = Endpoint("http://h:51080", ("me", "pass"))
        >>> endpoint, endpoint.login
        ('http://h:51080', ('me', 'pass'))
    """

    __slots__ = ("login",)

    login: tuple[str, str] | None

    def __new__(cls, address: str, login: tuple[str, str] | None = None) -> Self:
        """Return `address` with its login."""
        self = super().__new__(cls, address)
        self.login = login
        hide(login[1] if login else None)
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[str, str] | None]]:
        return type(self), (str(self), self.login)


def login_in(text: str) -> tuple[str, str]:
    """Return user name and password of what stands before the ``@`` of an address.

    Example:
        >>> login_in("me:p%40ss")
        ('me', 'p@ss')
    """
    name, _, password = text.partition(":")
    return unquote(name), unquote(password)


def basic(name: str, password: str) -> str:
    """Return the value of the header for a user name and password.

    Example:
        >>> basic("me", "pass")
        'Basic bWU6cGFzcw=='
    """
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


@checked_options
@dataclass(frozen=True)
class Retry:
    """When a request is tried again, and for how long.

    Retried are refused, reset and stalled connections, short bodies, and the statuses 408, 409, 425, 429
    and 5xx (but not 501, 505, 507). Never retried are 404, 403, 401, 416 and every other 4xx.

    Attributes:
        attempts: Failures in a row before the error is raised; a new byte begins the count anew. 1 is no retry.
        backoff: Seconds before the second try; doubled for each further one, with jitter of up to half of it.
        max_backoff: The longest of these pauses in seconds. A server's ``Retry-After`` is honoured in full, if it
            is at most a day.
        deadline: Seconds one object may spend waiting for the network, pauses included; None is for ever.
            The time its consumer takes does not count, and every MiB that arrives adds a second, so that a
            large shard on a slow line is not cut off. The same for any other request to the cluster, and for a
            whole listing, all its pages together, where nothing is added: a million objects behind a cloud
            bucket may need more than the default.

    Example:
        >>> Retry(attempts=3, backoff=0.0).delay(1)
        0.0
    """

    attempts: int = 5
    backoff: float = 0.5
    max_backoff: float = 10.0
    deadline: float | None = 300.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError.at(f"attempts={self.attempts} allows no request", todo="pass attempts=1 or more")
        if self.backoff < 0 or self.max_backoff < 0 or (self.deadline is not None and self.deadline <= 0):
            raise UsageError.at(f"{self} has a negative time", todo="pass seconds >= 0, deadline > 0 or None")

    def delay(self, failures: int) -> float:
        """Return the pause in seconds after so many `failures` in a row (1 or more)."""
        full = min(self.max_backoff, self.backoff * 2.0 ** min(failures - 1, 30))
        return full * random.uniform(0.5, 1.0)


ONE_TRY = Retry(attempts=1, deadline=5.0)
"""For what is asked for the sake of a better message."""


@checked_options
@dataclass(frozen=True)
class StoreOptions:
    """Everything the store needs to know besides a URL.

    Attributes:
        endpoint: ``http://proxy:51080``, for URLs that name no host (``ais://bucket/object``). Kept as an
            `Endpoint`: a user name and password in it are sent to it, and are shown nowhere.
        token: Bearer token; sent to the endpoint and to the nodes of its cluster map, to no other host: without
            an endpoint to nobody, whatever hosts the URLs name. White space around it is dropped.
        ca_cert: File or folder with the CA certificates to trust; None is the system's.
        client_cert: PEM file with certificate and key, or a pair of files.
        skip_verify: Do not check the server's certificate.
        connect_timeout: Seconds to connect, TLS handshake included; None is no limit.
        first_byte_timeout: Seconds until the response begins (a cold object is fetched first).
        stall_timeout: Seconds without a byte in the middle of a body. Answers that are not the bytes of an object
            (a page of a listing, the state of a job) must be whole within the three timeouts together.
        retry: The retry policy.
        block_bytes: Most bytes in one block.
        prefetch_bytes: Bytes all open objects of this process may hold ready together. An object without a
            block may always fetch one, so the bound, with the block each consumer holds, is
            ``prefetch_bytes + 2 * open objects * block_bytes``.
        verify: Compare whole objects with the checksum the cluster stored.
        pin: A version, checksum or size that differs from the listing's is an `ObjectChangedError`.
        pool_size: Idle connections kept per host.
        idle_timeout: Seconds without a request after which a connection is closed: less than nodes wait (a storage
            target of AIStore 30 s). One that a node has closed before is replaced, which is no failure.
        node_requests: Requests in flight at most from all processes of this machine together to one cluster (a
            target of AIStore refuses more than 256); at most 32 of them from one process. Loaders share them out
            evenly, at least one a process. A cluster that answers 429 or 503 halves what a process has.
    """

    endpoint: str = ""
    token: str | None = field(default=None, repr=False)
    ca_cert: str | None = None
    client_cert: str | tuple[str, str] | None = None
    skip_verify: bool = False
    connect_timeout: float | None = 3.0
    first_byte_timeout: float | None = 60.0
    stall_timeout: float | None = 20.0
    retry: Retry = Retry()
    block_bytes: int = 1 << 20
    prefetch_bytes: int = 32 << 20
    verify: bool = True
    pin: bool = True
    pool_size: int = 32
    idle_timeout: float = 20.0
    node_requests: int = 256

    def __post_init__(self) -> None:
        if self.block_bytes < 1 or self.prefetch_bytes < 1:
            raise UsageError.at(
                f"block_bytes={self.block_bytes} and prefetch_bytes={self.prefetch_bytes} must be positive",
                todo="leave them out for the defaults",
            )
        if self.node_requests < 1:
            raise UsageError.at(f"node_requests={self.node_requests}", todo="pass 1 or more")
        if not self.idle_timeout > 0:
            raise UsageError.at(f"idle_timeout={self.idle_timeout}", todo="pass seconds, more than 0")
        object.__setattr__(self, "endpoint", _clean_endpoint(self.endpoint))
        object.__setattr__(self, "token", _clean_token(self.token))
        hide(self.token)

    @property
    def login(self) -> tuple[str, str] | None:
        """User name and password for the endpoint, where its address had them."""
        return self.endpoint.login if isinstance(self.endpoint, Endpoint) else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        hide(self.token)  # in this process, too


def resolve_options(
    *, client: Any = None, endpoint: str | None = None, token: str | None = None, **overrides: Any
) -> StoreOptions:
    """Return the options that apply here.

    An argument given counts most, then `client`, then the environment, then the default.

    Args:
        client: An SDK ``Client``, or a bucket or object group: its endpoint, token, TLS settings, timeouts.
        endpoint: The cluster; else that of `client`, else ``AIS_ENDPOINT``, else ``""``.
        token: Bearer token; else that of `client`, else ``AIS_AUTHN_TOKEN``.
        **overrides: Other fields of `StoreOptions`. None counts as not given; a timeout of 0 is no limit.

    Raises:
        UsageError: An unknown option, a malformed endpoint, or a malformed environment variable.

    Example:
        >>> resolve_options(endpoint="http://h:51080", token="secret")  # doctest: +ELLIPSIS
        StoreOptions(endpoint='http://h:51080', ca_cert=...
    """
    known = {spec.name for spec in fields(StoreOptions)}
    unknown = set(overrides) - known
    if unknown:
        raise UsageError.at(
            f"unknown option {', '.join(sorted(unknown))}", todo=f"use one of {', '.join(sorted(known))}"
        )
    given = {"endpoint": endpoint, "token": token, **overrides}
    values: dict[str, Any] = {**_from_environment(os.environ)}
    for layer in (_from_client(client), given):
        values.update((name, value) for name, value in layer.items() if value is not None)
    for name in ("connect_timeout", "first_byte_timeout", "stall_timeout"):
        if name in values and values[name] == 0:
            values[name] = None
    return StoreOptions(**values)


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the variables of the AIStore SDK say (and the two CA variables of requests)."""
    values: dict[str, Any] = {
        "endpoint": env.get("AIS_ENDPOINT"),
        "token": env.get("AIS_AUTHN_TOKEN"),
        "ca_cert": env.get("AIS_CLIENT_CA") or env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE"),
        "connect_timeout": _number(env, "AIS_CONNECT_TIMEOUT"),
        "first_byte_timeout": _number(env, "AIS_READ_TIMEOUT"),
        "stall_timeout": _number(env, "AIS_READ_TIMEOUT"),
    }
    if env.get("AIS_CRT") and env.get("AIS_CRT_KEY"):
        values["client_cert"] = (env["AIS_CRT"], env["AIS_CRT_KEY"])
    skip = env.get("AIS_SKIP_VERIFY_CRT", env.get("AIS_SKIP_VERIFY", ""))
    if skip:
        values["skip_verify"] = skip.strip().lower() in ("1", "t", "true", "y", "yes", "on")
    pool = _number(env, "AIS_MAX_CONN_POOL")
    values["pool_size"] = int(pool) if pool else None
    return {name: value for name, value in values.items() if value not in (None, "")}


def _number(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError.at(f"{name}={text!r} is no number >= 0", todo=f"set {name} right or unset it")
    return value


def _from_client(client: Any) -> dict[str, Any]:
    """Return what an SDK object knows; anything with the same attributes will do."""
    if client is None:
        return {}
    request = getattr(client, "_request_client", None)
    if request is None:
        request = client if hasattr(client, "base_url") else getattr(client, "client", None)
    base_url = getattr(request, "base_url", None)
    if base_url is None:
        raise UsageError.at(
            f"a {type(client).__name__} names no cluster",
            todo="pass http://host:51080, aistore.sdk.Client(endpoint), or StoreOptions(endpoint, token)",
        )
    values: dict[str, Any] = {
        "endpoint": str(base_url).rstrip("/").removesuffix("/v1"),
        "token": getattr(request, "token", None) or None,
    }
    session = getattr(request, "session_manager", None)
    for name in ("ca_cert", "client_cert"):
        values[name] = getattr(session, name, None) or None
    values["skip_verify"] = True if getattr(session, "skip_verify", False) else None
    timeout = getattr(request, "timeout", None)
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    # (3, 20) is what every SDK client has unless it was told otherwise: then our own defaults are better.
    if (connect, read) != (3, 20):
        values["connect_timeout"] = connect or 0
        values["first_byte_timeout"] = values["stall_timeout"] = read or 0
    return values


def _clean_token(token: str | None) -> str | None:
    """Return the token as a header can carry it. No message quotes it."""
    if token is None:
        return None
    if not isinstance(token, str):
        raise UsageError.at(f"token= is of type {type(token).__name__}, not str", todo="decode it first")
    token = token.strip()
    wrong = next((words for words, pattern in _NO_TOKEN.items() if pattern.search(token)), "")
    if wrong:
        raise UsageError.at(
            f"the token has {wrong} in it, which no header can carry",
            todo=Remedy(
                "give AIS_AUTHN_TOKEN",
                in_programs("StoreOptions(endpoint, token)"),
                ", the token alone, as one line",
            ),
        )
    return token or None


_NO_TOKEN = {
    "a line break": re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]"),
    "a control character": re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f]"),
    "white space": re.compile(r"\s"),
    "a character outside of Latin-1": re.compile(r"[^\x00-\xff]"),
}


def _clean_endpoint(endpoint: str) -> Endpoint:
    login = endpoint.login if isinstance(endpoint, Endpoint) else None
    endpoint = re.sub(r"(?<=[^:/])(/v1)?/*$", "", endpoint.strip())
    if not endpoint:
        return Endpoint("")
    if "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    more = valid and (parts.query or parts.fragment or "/v1/" in parts.path)
    if not valid or more or re.search(r"[\s\x00-\x1f\x7f\\]", endpoint):
        raise UsageError.at(
            f"the endpoint {redact(endpoint)!r} is no address of a cluster",
            todo="write the address as http://host:51080, in cluster= or AIS_ENDPOINT",
        )
    user, at, host = parts.netloc.rpartition("@")
    if at:
        login = login_in(user)
        endpoint = parts._replace(netloc=host).geturl()
    return Endpoint(endpoint, login)
