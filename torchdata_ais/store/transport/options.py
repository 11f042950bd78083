"""Options of requests, and the endpoint.

Both classes are plain, frozen and picklable: they travel to worker processes with the pipe.
"""

from __future__ import annotations

import json
import os
import random
import re
import stat
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from torchdata_ais._util.arguments import checked_options
from torchdata_ais.errors import AISError, AuthError, UsageError
from torchdata_ais.errors.redaction import hide
from torchdata_ais.errors.text import Remedy, in_programs
from torchdata_ais.urls import redact


class Endpoint(str):
    """Address of a cluster, ``http://host:51080``, without its login.

    User name and password are kept separately, so that no URL, message or `repr` of the address has them.

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
    """Return user name and password of the part before ``@`` in an address.

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


def clean_endpoint(endpoint: str) -> Endpoint:
    """Return the address without its optional ending."""
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


@checked_options
@dataclass(frozen=True)
class Retry:
    """Retry policy of requests: conditions and bounds.

    Retried are refused, reset and stalled connections, short bodies, and the statuses 408, 409, 425, 429
    and 5xx (but not 501, 505, 507). Never retried are 404, 403, 401, 416 and every other 4xx.

    Attributes:
        attempts: Failures in a row before the error is raised; a new byte resets the count. 1 means no retry.
        backoff: Seconds before the second try; doubled for each further one, with jitter of up to half of it.
        max_backoff: The longest of these pauses in seconds. A server's ``Retry-After`` is honoured in full, if it
            is at most a day.
        deadline: Seconds one object may spend waiting for the network, pauses included; None means no limit. The time
            its consumer takes does not count, and every MiB that arrives adds a second, so that a large shard on a
            slow line is not cut off. The same for any other request to the cluster, and for a whole listing, all its
            pages together, where nothing is added: a million objects of a cloud bucket may need more than the
            default.

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
        """Return the pause in seconds after `failures` in a row (1 or more)."""
        full = min(self.max_backoff, self.backoff * 2.0 ** min(failures - 1, 30))
        return full * random.uniform(0.5, 1.0)


ONE_TRY = Retry(attempts=1, deadline=5.0)  # for requests that only improve a message


class TokenSource:
    """A token from a function or a file.

    It is read when it is first needed, and again after a 401.

    Args:
        origin: The function, or the path of the file. A file has the token alone, or JSON with a ``"token"``, as the
            ``ais`` command writes it.

    Example:
        >>> source = TokenSource(lambda: "secret-1")
        >>> source.value(), source.renewed("secret-1")
        ('secret-1', False)
    """

    def __init__(self, origin: Callable[[], str] | str) -> None:
        self._origin = origin
        self._value: str | None = None

    def value(self) -> str:
        """Return the token; `AuthError` if the function or the file gives none."""
        if self._value is None:
            self._value = self._read()
        return self._value

    def renewed(self, old: str) -> bool:
        """Read the token again if it is still `old`; return whether it changed."""
        if self._value == old:
            self._value = self._read()
        return self._value != old

    def _read(self) -> str:
        origin = self._origin
        text = _file_text(origin) if isinstance(origin, str) else _called(origin)
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            text = str(json.loads(text)["token"])
        token = _clean_token(text)
        if token is None:
            raise AuthError.at(f"{self} gives no token", todo="let it give the token alone, as one line")
        hide(token)
        return token

    def __str__(self) -> str:
        return f"the token file {self._origin}" if isinstance(self._origin, str) else "the function of token="

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenSource) and self._origin == other._origin

    def __hash__(self) -> int:
        return hash(self._origin)

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenSource, (self._origin,)  # another process reads it for itself


Token: TypeAlias = "str | Callable[[], str] | os.PathLike[str] | TokenSource | None"  # noqa: S105 - a type
"""A bearer token, a function that returns it, or the `pathlib.Path` of its file."""


def _called(function: Callable[[], str]) -> str:
    try:
        return function()
    except AISError:
        raise
    except Exception as error:  # its text may quote the token
        raise AuthError.at(
            f"the function of token= failed ({type(error).__name__})", todo="correct the function"
        ) from error


def _file_text(path: str) -> str:
    todo = "check token= or AIS_AUTHN_TOKEN_FILE"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise AuthError.at(f"the token file {path} is not a regular file", todo=todo)
            data = os.read(fd, _TOKEN_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        if isinstance(error, AISError):
            raise
        raise AuthError.at(f"the token file {path} cannot be read ({error.strerror})", todo=todo) from error
    return data.decode("latin-1")


@checked_options
@dataclass(frozen=True)
class StoreOptions:
    """Settings of the store besides the URL.

    Attributes:
        endpoint: ``http://proxy:51080``, for URLs that name no host (``ais://bucket/object``). Kept as an
            `Endpoint`: a user name and password in it are sent to it, and are shown nowhere.
        token: Bearer token; sent only to the endpoint and to the nodes of its cluster map. Without an endpoint it is
            never sent, whatever hosts the URLs name. White space around it is dropped. A function without arguments,
            or the `pathlib.Path` of a file, gives a token that expires: it is read again once after a 401. Worker
            processes get the function by pickle: take one from the top of a module.
        ca_cert: File or folder with the CA certificates to trust; None is the system's.
        client_cert: PEM file with certificate and key, or a pair of files.
        skip_verify: Do not check the server's certificate.
        connect_timeout: Seconds to connect, TLS handshake included; None means no limit.
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
            target of AIStore 30 s). One that a node has closed before is replaced, which does not count as a failure.
        node_requests: Requests in flight at most from all processes of this machine together to one cluster (a target
            of AIStore refuses more than 256); at most 32 of them from one process. Loaders divide them evenly, at
            least one for each process. An answer 429 or 503 halves the number of a process.
        get_batch: Whether reading by index may request the ranges of many samples at once (GetBatch). Such requests
            keep a job on the cluster, which refuses maintenance meanwhile. False: each range is a request.
    """

    endpoint: str = ""
    token: Token = field(default=None, repr=False)
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
    get_batch: bool = True

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
        object.__setattr__(self, "endpoint", clean_endpoint(self.endpoint))
        token = self.token
        if isinstance(token, os.PathLike):
            token = TokenSource(os.fsdecode(token))
        elif callable(token):
            token = TokenSource(token)
        if not isinstance(token, TokenSource):
            token = _clean_token(token)
            hide(token)
        object.__setattr__(self, "token", token)

    @property
    def bearer(self) -> str | None:
        """The token to send now.

        Raises:
            AuthError: Its function or file gives none.
        """
        token = self.token
        return token.value() if isinstance(token, TokenSource) else token  # type: ignore[return-value]

    def renew(self, old: str | None) -> bool:
        """Return whether there is another token than the refused `old`.

        It comes from a function or a file.
        """
        return old is not None and isinstance(self.token, TokenSource) and self.token.renewed(old)

    @property
    def login(self) -> tuple[str, str] | None:
        """User name and password for the endpoint, where its address had them."""
        return self.endpoint.login if isinstance(self.endpoint, Endpoint) else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.token, str):
            hide(self.token)  # in this process, too


def _clean_token(token: str | None) -> str | None:
    """Return the token as a header can carry it. No message quotes it."""
    if token is None:
        return None
    if not isinstance(token, str):
        raise UsageError.at(
            f"token= is of type {type(token).__name__}, not str",
            todo="decode it first, or pass a function or a pathlib.Path",
        )
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


_TOKEN_BYTES = 64 << 10
_NO_TOKEN = {
    "a line break": re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]"),
    "a control character": re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f]"),
    "white space": re.compile(r"\s"),
    "a character outside of Latin-1": re.compile(r"[^\x00-\xff]"),
}
