"""Resolution of cluster options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torchdata_ais.errors import UsageError
from torchdata_ais.store.transport.options import StoreOptions, Token


def resolve_options(
    *, client: object = None, endpoint: str | None = None, token: Token = None
) -> StoreOptions:
    """Return the resolved options.

    An argument given counts most, then `client`, then the environment, then the default.

    Args:
        client: An SDK ``Client``, or a bucket or object group: its endpoint, token, TLS settings, timeouts.
        endpoint: The cluster; else that of `client`, else ``AIS_ENDPOINT``, else ``""``.
        token: Bearer token; else that of `client`, else ``AIS_AUTHN_TOKEN``, else that in the file
            ``AIS_AUTHN_TOKEN_FILE``.

    Raises:
        UsageError: A malformed endpoint, or a malformed environment variable.

    Example:
        >>> resolve_options(endpoint="http://h:51080", token="secret")  # doctest: +ELLIPSIS
        StoreOptions(endpoint='http://h:51080', ca_cert=...
    """
    values = _from_environment(os.environ)
    for layer in (_from_client(client), {"endpoint": endpoint, "token": token}):
        values.update((name, value) for name, value in layer.items() if value is not None)
    for name in ("connect_timeout", "first_byte_timeout", "stall_timeout"):
        if name in values and values[name] == 0:
            values[name] = None
    return StoreOptions(**values)


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the options in the SDK's variables, and in two CA variables."""
    token_file = env.get("AIS_AUTHN_TOKEN_FILE")
    values: dict[str, Any] = {
        "endpoint": env.get("AIS_ENDPOINT"),
        "token": env.get("AIS_AUTHN_TOKEN") or (Path(token_file) if token_file else None),
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
    """Return the options of an SDK object, or one with the same attributes."""
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
    # (3, 20) is the default of every SDK client: then our defaults are better.
    if (connect, read) != (3, 20):
        values["connect_timeout"] = connect or 0
        values["first_byte_timeout"] = values["stall_timeout"] = read or 0
    return values


Cluster: TypeAlias = "str | StoreOptions | Any | None"
"""Address, SDK ``Client``, `LocalCluster` or `StoreOptions`.

An address is ``http://proxy:51080``. `StoreOptions` also have token, TLS, timeouts and retries. None:
``AIS_ENDPOINT`` and the SDK's other variables.
"""


def given_options(cluster: Cluster = None) -> StoreOptions | None:
    """Return the options of a cluster argument; None if it names none.

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
    makes_clients = hasattr(cluster, "endpoint") and hasattr(cluster, "client")  # a LocalCluster, for one
    return resolve_options(client=cluster.client() if makes_clients else cluster)


def cluster_options(cluster: Cluster = None) -> StoreOptions:
    """Return the options of a cluster argument or of the environment.

    Args:
        cluster: See `Cluster`. An endpoint that it leaves open is that of the environment.

    Raises:
        UsageError: The argument names no cluster.
    """
    given = given_options(cluster)
    if given is None:
        return resolve_options()
    return given if given.endpoint else replace(given, endpoint=resolve_options().endpoint)
