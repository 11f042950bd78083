"""`Stats` as metrics: the counters that Prometheus, OpenTelemetry and training logs are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torchdata_ais.observe.report import StageReport


class Metric(NamedTuple):
    """What is counted; a counter only grows, a gauge may fall."""

    name: str
    kind: str
    meaning: str
    of: Callable[[StageReport], float | Mapping[str, int] | None]
    """Takes it from what a stage did; by class of error where it is of several."""


class Value(NamedTuple):
    """What a stage has counted of it, with labels that say which stage (and which error) it is."""

    value: float
    labels: dict[str, str]


def _first_byte_s(stage: StageReport) -> float | None:
    return None if stage.first_byte_ms is None else stage.first_byte_ms / 1000


METRICS = (
    Metric("items_total", "counter", "Items given out.", attrgetter("items")),
    Metric("bytes_total", "counter", "Bytes read.", attrgetter("bytes")),
    Metric("own_seconds_total", "counter", "Time the stage itself worked.", attrgetter("own_s")),
    Metric(
        "wait_seconds_total",
        "counter",
        "Time it waited for stages above it and for bytes.",
        attrgetter("wait_s"),
    ),
    Metric("blocked_seconds_total", "counter", "Time it was not asked for an item.", attrgetter("blocked_s")),
    Metric("retries_total", "counter", "Requests made again.", attrgetter("retries")),
    Metric(
        "refetched_total",
        "counter",
        "Damaged files of the cache that were fetched again.",
        attrgetter("refetched"),
    ),
    Metric("skipped_total", "counter", "Items given up, by class of error.", attrgetter("skipped")),
    Metric("first_byte_seconds", "gauge", "Average time to the first byte of an object.", _first_byte_s),
    Metric("held_bytes", "gauge", "Bytes fetched ahead and held.", attrgetter("held")),
)


def values(metric: Metric, stages: Sequence[StageReport]) -> Iterator[Value]:
    """Yield what the stages have counted of `metric`, the first stage first."""
    for number, stage in enumerate(stages):
        if stage.metered:
            place = {"stage": stage.name, "number": str(number)}
            value = metric.of(stage)
            if isinstance(value, Mapping):
                yield from (Value(count, {**place, "error": name}) for name, count in value.items())
            elif value is not None:
                yield Value(value, place)


def prometheus(stages: Sequence[StageReport], labels: Mapping[str, str]) -> str:
    """Return the counters of `stages` in Prometheus's text form.

    Args:
        stages: The stages.
        labels: Put on every line.
    """
    lines = []
    for metric in METRICS:
        name = f"torchdata_ais_{metric.name}"
        lines += [f"# HELP {name} {metric.meaning}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{_labels({**labels, **more})} {value!r}" for value, more in values(metric, stages)]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
