"""Options of the cluster that the argument ``cluster=`` names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torchdata_ais.store.options import StoreOptions
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


def given_options(cluster: Cluster = None) -> StoreOptions | None:
    """Return the options of the cluster that an argument names; None if it names none.

    Args:
        cluster: See `Cluster`.

    Raises:
        UsageError: The argument names no cluster.

    Example:
        >>> given_options("h:51080").endpoint, given_options()
        ('http://h:51080', None)
    """
    if cluster is None or isinstance(cluster, StoreOptions):
        return cluster
    if isinstance(cluster, str):
        return resolve_options(endpoint=cluster)
    return resolve_options(client=cluster.client() if isinstance(cluster, _Clients) else cluster)


def cluster_options(cluster: Cluster = None) -> StoreOptions:
    """Return the options of the cluster that an argument names, or of the environment.

    Args:
        cluster: See `Cluster`. An endpoint that it leaves open is that of the environment.

    Raises:
        UsageError: The argument names no cluster.
    """
    given = given_options(cluster)
    if given is None:
        return resolve_options()
    return given if given.endpoint else replace(given, endpoint=resolve_options().endpoint)
