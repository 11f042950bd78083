"""Which cluster a call means: one argument, ``cluster=``, and what version 0.1 called its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypedDict, runtime_checkable

from typing_extensions import Unpack

from torchdata_ais.errors import UsageError
from torchdata_ais.store.options import StoreOptions, Token
from torchdata_ais.store.resolving import resolve_options


@runtime_checkable
class _Clients(Protocol):
    """A `LocalCluster`, or what else makes clients of itself."""

    @property
    def endpoint(self) -> str: ...

    def client(self) -> Any: ...


Cluster: TypeAlias = "str | StoreOptions | _Clients | Any | None"
"""An address (``http://proxy:51080``), an SDK ``Client``, a `LocalCluster`; or `StoreOptions`, to say token, TLS,
timeouts and retries, too. None: ``AIS_ENDPOINT`` and the SDK's other variables.
"""


class ClusterNames(TypedDict, total=False):
    """What version 0.1 called the parts of ``cluster=``, which are taken in its place.

    Attributes:
        endpoint: The address.
        client: An SDK client.
        token: A bearer token, for the address, the client's cluster or that of the environment; or a function that
            returns it, or the `pathlib.Path` of its file.
        options: `StoreOptions`.
    """

    endpoint: str | None
    client: Any
    token: Token
    options: StoreOptions | None


def given_options(
    cluster: Cluster = None,
    *,
    options: StoreOptions | None = None,
    endpoint: str | None = None,
    client: Any = None,
    token: Token = None,
) -> StoreOptions | None:
    """Return how to reach the cluster that the arguments of a call name; None if they name none.

    Args:
        cluster: See `Cluster`.
        options: See `ClusterNames`.
        endpoint: Likewise.
        client: Likewise.
        token: Likewise.

    Raises:
        UsageError: It is none, or is named twice.

    Example:
        >>> given_options("h:51080").endpoint, given_options(endpoint="h:51080").endpoint, given_options()
        ('http://h:51080', 'http://h:51080', None)
    """
    in_parts = any(part is not None for part in (endpoint, client, token))
    if (cluster is not None) + (options is not None) + in_parts > 1:
        raise UsageError.at(
            "the cluster is named twice: cluster= says all that options=, or endpoint=, client= and token= say",
            todo="pass cluster= alone: an address, an SDK client, or StoreOptions(endpoint, token)",
        )
    if in_parts:
        return resolve_options(client=client, endpoint=endpoint, token=token)
    whole = cluster if options is None else options
    if whole is None or isinstance(whole, StoreOptions):
        return whole
    if isinstance(whole, str):
        return resolve_options(endpoint=whole)
    return resolve_options(client=whole.client() if isinstance(whole, _Clients) else whole)


def cluster_options(cluster: Cluster = None, **named: Unpack[ClusterNames]) -> StoreOptions:
    """Return how to reach the cluster that a call names; what it leaves open is that of the environment.

    Args:
        cluster: See `Cluster`.
        **named: Parts of it instead, see `ClusterNames`.

    Raises:
        UsageError: It is none, or is named twice.
    """
    given = given_options(cluster, **named)
    if given is None:
        return resolve_options()
    return given if given.endpoint else replace(given, endpoint=resolve_options().endpoint)
