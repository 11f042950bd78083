"""Pytest fixtures with an AIStore cluster.

- ``ais_cluster``: the session's cluster, with an ``.endpoint``. A `LocalCluster` with two targets, or, when
  ``AIS_ENDPOINT`` is set, the real cluster there.
- ``ais_client``: an SDK client of it.
- ``ais_bucket``: a new empty SDK bucket for each test, removed afterwards.
- ``ais_faults``: the fault rules of the embedded cluster, cleared after each test; skips on a real cluster.

Opt in by ``pytest_plugins = ["torchdata_ais.pytest_plugin"]``. A test that takes ``ais_local_cluster`` instead gets a
`LocalCluster` even when ``AIS_ENDPOINT`` is set.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from torchdata_ais.local import LocalCluster
from torchdata_ais.local.cluster import Faults

__all__ = ["RealCluster", "ais_bucket", "ais_client", "ais_cluster", "ais_faults", "ais_local_cluster"]


@dataclass(frozen=True)
class RealCluster:
    """An existing cluster, as the fixtures need it."""

    endpoint: str

    # The options are those of the SDK's class, in each of its versions.
    def client(self, **options: object) -> Any:
        """Return a new `aistore.sdk.Client` of this cluster."""
        from aistore.sdk import Client

        return Client(self.endpoint, **options)


@pytest.fixture(scope="session")
def ais_local_cluster() -> Iterator[LocalCluster]:
    """The session's embedded cluster."""
    with LocalCluster(targets=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ais_cluster(request: pytest.FixtureRequest) -> LocalCluster | RealCluster:
    """The real cluster of ``AIS_ENDPOINT``, or the session's embedded one."""
    endpoint = os.environ.get("AIS_ENDPOINT")
    if endpoint:
        return RealCluster(endpoint.rstrip("/"))
    local: LocalCluster = request.getfixturevalue("ais_local_cluster")
    return local


@pytest.fixture
def ais_client(ais_cluster: LocalCluster | RealCluster) -> Any:
    """An SDK client of the cluster."""
    return ais_cluster.client()


@pytest.fixture
def ais_bucket(ais_client: Any) -> Iterator[Any]:
    """An empty bucket that no other test sees."""
    bucket = ais_client.bucket(f"test-{uuid.uuid4().hex[:12]}").create()
    yield bucket
    bucket.delete(missing_ok=True)


@pytest.fixture
def ais_faults(ais_cluster: LocalCluster | RealCluster) -> Iterator[Faults]:
    """The fault rules of the embedded cluster, none at the start and the end."""
    if not isinstance(ais_cluster, LocalCluster):
        pytest.skip("faults can be had from the embedded cluster only")
    ais_cluster.faults.clear()
    yield ais_cluster.faults
    ais_cluster.faults.clear()
