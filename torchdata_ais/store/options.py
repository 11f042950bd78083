"""How objects are reached: endpoint, token, TLS, timeouts, retries, memory.

Both classes are plain, frozen and picklable: they travel to worker processes with the pipe.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

from torchdata_ais.arguments import checked_options
from torchdata_ais.error_text import Remedy, in_programs
from torchdata_ais.errors import UsageError
from torchdata_ais.known_secrets import hide
from torchdata_ais.store.endpoint import Endpoint, clean_endpoint


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
        object.__setattr__(self, "endpoint", clean_endpoint(self.endpoint))
        object.__setattr__(self, "token", _clean_token(self.token))
        hide(self.token)

    @property
    def login(self) -> tuple[str, str] | None:
        """User name and password for the endpoint, where its address had them."""
        return self.endpoint.login if isinstance(self.endpoint, Endpoint) else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        hide(self.token)  # in this process, too


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
