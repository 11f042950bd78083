"""Sources and transport settings of a stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdata_ais.errors import AISError, UsageError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.store import (
    Cluster,
    Retry,
    StoreOptions,
    cluster_options,
    given_options,
    held_now,
    options_with,
    resolve_options,
)
from torchdata_ais.urls import redact


class StageTransport:
    """The transport arguments of one stage, resolved when an iteration starts.

    The order: what the stage was given, else what the nearest stage upstream was given, else ``AIS_ENDPOINT`` and the
    SDK's environment variables. Single settings (`overrides`, fields of `StoreOptions`) apply on top unless they are
    None. Only plain options are kept, no client: the stage pickles, and each process makes its own connections.

    Attributes:
        on_node: How many processes share what a node may have.
    """

    def __init__(self, given: StoreOptions | None, **overrides: Any) -> None:
        self.given = given
        self._overrides = {name: value for name, value in overrides.items() if value is not None}
        self.on_node = 1
        if not isinstance(self._overrides.get("retry", Retry()), Retry):
            raise UsageError.at(
                f"retry={overrides['retry']!r:.60}", todo="pass Retry(attempts=3) or the like"
            )
        try:
            replace(StoreOptions(), **self._overrides)
        except TypeError as error:
            shown = ", ".join(f"{name}={value!r:.60}" for name, value in self._overrides.items())
            raise UsageError.at(f"{shown}: {error}", todo="pass numbers for sizes and times") from None

    def sizes(self, pipe: IterDataPipe[object]) -> tuple[int, int]:
        """Return ``prefetch_bytes`` and ``block_bytes``, also without endpoint."""
        try:
            options = self.resolve(pipe)
        except AISError:
            options = StoreOptions(**self._overrides)
        return options.prefetch_bytes, options.block_bytes

    def resolve(self, pipe: IterDataPipe[object]) -> StoreOptions:
        """Return the settings for `pipe`, the stage that holds this object."""
        known = (transport.given for transport in [self, *_transports(pipe)])
        return self._resolved(next((given for given in known if given is not None), None))

    def resolve_over(self, known: StoreOptions) -> StoreOptions:
        """Return the settings of the stage, else those of `known`."""
        given = self.given if self.given is not None else known if known.endpoint else None
        return self._resolved(given)

    def _resolved(self, given: StoreOptions | None) -> StoreOptions:
        options, changes = cluster_options(given), dict(self._overrides)
        if self.on_node > 1:
            requests = changes.get("node_requests", options.node_requests)
            changes["node_requests"] = max(1, requests // self.on_node)
        return replace(options, **changes) if changes else options  # the check of all values takes 0.1 ms


def share_node(pipe: IterDataPipe[object], processes: int) -> None:
    """Divide the limits of a node among so many processes."""
    for transport in _transports(pipe):
        transport.on_node = processes


def _transports(pipe: IterDataPipe[object]) -> list[StageTransport]:
    """Return those of the stages of `pipe`, nearest first."""
    stages = (stage for stage in upstream(pipe) if isinstance(stage, Stage))
    return [stage.transport for stage in stages if stage.transport is not None]


def place_named(source: object, prefix: str, template: str | None) -> str:
    """Return a source and what was said of it as one place."""
    if isinstance(source, (str, Path)):
        text = str(source)
    else:  # a bucket of the SDK
        text = f"{getattr(source, 'provider', 'ais')}://{getattr(source, 'name', source)}"
    more = template or prefix
    return f"{text.rstrip('/')}/{more}" if more else text


def key_of(source: object) -> str | None:
    """Return a source's identity, equal in every process; None if not known."""
    if isinstance(source, (str, Path)):
        return str(source)
    if type(source).__name__ == "Bucket":
        return f"{getattr(source, 'provider', '')}://{getattr(source, 'namespace', '')}/{getattr(source, 'name', '')}"
    return None


def options_of(sources: list[Any], cluster: Cluster) -> StoreOptions | None:
    """Return the options of the cluster, completed by those of an SDK bucket."""
    given = given_options(cluster)
    bucket = next((source for source in sources if hasattr(source, "client")), None)
    if bucket is None or (given is not None and given.endpoint):
        return given
    return resolve_options(client=bucket.client) if given is None else options_with(bucket.client, given)


def describe(source: object) -> str:
    """Return what `repr` shows of a source."""
    if isinstance(source, (str, Path)):
        return repr(redact(str(source)))
    name = getattr(source, "name", None)
    return f"{type(source).__name__}({name!r})" if name else type(source).__name__


def held_stats() -> StageStats:
    """Return stats that count only the bytes that this process holds.

    They are made here and not in `StageStats`: a stage without storage does not import the package for it.
    """
    held, held_max = held_now()
    return StageStats(held=held, held_max=held_max)
