"""Callbacks for ``ais_loader(on_stats=...)`` that export its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torchdata_ais._util.versions import require
from torchdata_ais.observe.stats import Stats
from torchdata_ais.observe.stats_text import METRICS, Metric, values


def _scalars(report: Stats) -> Iterator[tuple[str, float]]:
    """Yield ``data/STAGE/METRIC`` and its value.

    A stage that is twice in a pipe has its number after its name.
    """
    names = [stage.name for stage in report.stages]
    for metric in METRICS:
        for value, labels in values(metric, report.stages):
            stage = labels["stage"]
            if names.count(stage) > 1:
                stage += f".{labels['number']}"
            yield "/".join(filter(None, ("data", stage, metric.name, labels.get("error")))), value


class TensorBoardStats:
    """Writes the counts to TensorBoard: ``on_stats=TensorBoardStats(writer)``.

    Args:
        writer: A ``SummaryWriter``; anything with its ``add_scalar``.
        step: Returns the step of training that the values belong to; default counts the calls.

    Example:
        >>> from torchdata_ais import AISSourceLister, ais_loader
        >>> from torchdata_ais.testing import example_shards
        >>> class Printer:
        ...     def add_scalar(self, name, value, step):
        ...         if name == "data/group_samples/items_total":
        ...             print(name, value, step)
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples()
        >>> with ais_loader(pipe, on_stats=TensorBoardStats(Printer())) as loader:
        ...     samples = len(list(loader))
        data/group_samples/items_total 6 1
    """

    def __init__(self, writer: Any, step: Callable[[], int] | None = None) -> None:
        self._writer = writer
        self._step = step
        self._calls = 0

    def __call__(self, report: Stats) -> None:
        """Write `report`."""
        self._calls += 1
        step = self._calls if self._step is None else self._step()
        for name, value in _scalars(report):
            self._writer.add_scalar(name, value, step)


class WandbStats:
    """Logs the counts to Weights & Biases: ``on_stats=WandbStats(run)``.

    The values are shown with the next ``run.log`` of the training loop: the steps are the loop's own.

    Args:
        run: The result of ``wandb.init()``; anything with its ``log``.

    Example:
        >>> from torchdata_ais import AISSourceLister, ais_loader
        >>> from torchdata_ais.testing import example_shards
        >>> class Printer:
        ...     def log(self, values, commit):
        ...         print(values["data/group_samples/items_total"], commit)
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples()
        >>> with ais_loader(pipe, on_stats=WandbStats(Printer())) as loader:
        ...     samples = len(list(loader))
        6 False
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, report: Stats) -> None:
        """Log `report`."""
        self._run.log(dict(_scalars(report)), commit=False)


class OpenTelemetryStats:
    """Exports the counts to OpenTelemetry: ``on_stats=OpenTelemetryStats()``.

    Metrics are called ``torchdata_ais.items_total`` and so on, with the attributes ``stage``, ``number`` and, of
    skipped items, ``error``; they are read whenever the SDK collects. Without an SDK nothing is done.

    Args:
        meter: An ``opentelemetry.metrics.Meter``; default the global provider's.
        **attributes: Put on every value, e.g. ``rank="0"``.

    Raises:
        MissingLibraryError: ``opentelemetry-api`` is not installed.
    """

    def __init__(self, meter: Any = None, **attributes: str) -> None:
        self._metrics = require("opentelemetry.metrics", "OpenTelemetryStats()", package="opentelemetry-api")
        self._attributes = attributes
        self._report: Stats | None = None
        meter = self._metrics.get_meter("torchdata_ais") if meter is None else meter
        kinds = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
        for metric in METRICS:
            name = f"torchdata_ais.{metric.name}"
            kinds[metric.kind](name, [partial(self._observe, metric)], description=metric.meaning)

    def __call__(self, report: Stats) -> None:
        """Show `report` from now on."""
        self._report = report

    def _observe(self, metric: Metric, _options: object) -> Iterator[object]:
        if self._report is not None:
            for value, labels in values(metric, self._report.stages):
                yield self._metrics.Observation(value, {**self._attributes, **labels})
