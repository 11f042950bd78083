"""Statistics as text and as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from torchdata_ais._util.formatting import count_text, html_table, text_table, with_lines
from torchdata_ais.store.transport.metadata import INSTALL_CRC32C

if TYPE_CHECKING:
    from torchdata_ais.observe.stats import StageReport


_HEAD = (
    "stage", "taken", "items", "items/s", "MB", "MB/s", "own s", "own", "wait", "blocked", "first byte", "held (max)",
    "retries", "skipped",
)  # fmt: skip
_SHOWN_EXAMPLES = 5
_IDLE_SHARE = 0.5
_SHORT_S = 1.0  # below, chance names the bottleneck

_MORE = {True: "more workers", False: "num_workers=2 or more"}
_KNOBS = {
    "decode": "use {threads}{more}; size= decodes smaller{fast}",
    "xdecode": "use {more}",
    "load_tar": "use {more}; members that nobody needs cost less with load_tar(select_files=...)",
    "group_samples": "use {more}",
    "list_ais": "narrow the prefix, or pass the shards as a brace template",
    "batched": "use {more}, or stack smaller values: decode(size=...) before batching",
}
_READS = {
    "load_tar": "open_shards=4",
    "load_objects": "open_objects=16",
    "read_samples": "prefetch_bytes=256 << 20",
}
_WITH_FUNCTION = frozenset(
    ["map_sample", "map_dict", "map_tuple", "associate", "select", "pipe_through", "map", "filter", "flatmap"]
)
_FUNCTION = "make its function faster, or use {more}"
_UNTIMED = "{names} included (.map_sample(f) is timed by itself); make its function faster, or use {more}"


def advice(stages: Sequence[StageReport], busy_s: float, sending_s: float, *, in_workers: bool) -> str:
    """Return the bottleneck of the pipeline as a sentence.

    `sending_s` are those seconds of all processes (`busy_s`) spent on handing items over.
    """
    measured = [stage for stage in stages if stage.metered]
    if busy_s <= 0.0 or not measured:
        return "nothing was read yet"
    sentence = _bottleneck(stages, measured, busy_s, sending_s, in_workers=in_workers)
    if busy_s < _SHORT_S:
        sentence += f"; only {busy_s:.1f} s were measured, ask again after some more"
    return sentence


def _bottleneck(
    stages: Sequence[StageReport],
    measured: Sequence[StageReport],
    busy_s: float,
    sending_s: float,
    *,
    in_workers: bool,
) -> str:
    whose = "worker time" if in_workers else "the time"
    more = _MORE[in_workers]
    blocked = max(0.0, measured[-1].blocked_s - sending_s) / busy_s
    if blocked > _IDLE_SHARE:
        where = "the workers waited for it" if in_workers else "the rest went into loading"
        part = f"{blocked:.0%} of {whose}" if in_workers else f"{blocked:.0%} of {whose} was its own"
        return f"loop-bound: {part}, {where}; loading is not the bottleneck, make the training step faster"
    candidates = [(stage.own_s / busy_s, _stage_bound(stage, measured), stage) for stage in measured]
    candidates += [
        (stage.network_s / busy_s, "network-bound", stage) for stage in measured if stage.network_s > 0
    ]
    share, name, stage = max(candidates, key=lambda candidate: candidate[0])
    if sending_s / busy_s > share:
        return (
            f"hand-over-bound: {sending_s / busy_s:.0%} of {whose}; batch in the workers with batched(n), and yield "
            "tensors or arrays instead of many small objects"
        )
    if name == "network-bound":
        return f"network-bound: {share:.0%} of {whose} waiting for {_network(stage, more)}"
    if stage.unmetered_above:
        names = ", ".join(stage.unmetered_above)
        return f"{name}: {share:.0%} of {whose}, {_UNTIMED.format(names=names, more=more)}"
    return f"{name}: {share:.0%} of {whose}; {_knob(stage, stages, more)}"


def _network(stage: StageReport, more: str) -> str:
    """Return what is waited for, first bytes or the rest, and the remedy."""
    knob = f"use {stage.name}({_READS[stage.name]}) or {more}" if stage.name in _READS else f"use {more}"
    if stage.retries:
        knob = f"{stage.retries} requests were made again: the log at level INFO says why; else {knob}"
    if stage.first_byte_ms is None:
        return f"bytes; {knob}"
    first = f"{stage.first_byte_ms:.0f} ms"
    if stage.first_byte_ms * stage.opened > 500 * stage.network_s:
        return f"bytes, most of it for the first byte of each object ({first}); {knob}, or larger objects"
    return f"bytes (first byte after {first}); {knob}; torchdata-ais bench tells what the network can do"


def _knob(stage: StageReport, stages: Sequence[StageReport], more: str) -> str:
    if stage.name == "shuffled":
        before = any(other.name == "decode" for other in takewhile(lambda one: one is not stage, stages))
        return f"use {more}" + (", or put it before decode, where items are small" if before else "")
    threads = "" if "threads=" in stage.text else "decode(threads=2) or "
    fast = "" if find_spec("simplejpeg") else "; pip install simplejpeg decodes JPEG faster"
    other = _FUNCTION if stage.name in _WITH_FUNCTION else "use {more}"
    return _KNOBS.get(stage.name, other).format(more=more, threads=threads, fast=fast)


def _stage_bound(stage: StageReport, measured: Sequence[StageReport]) -> str:
    same = [other for other in measured if other.name == stage.name]
    name = stage.name if len(same) == 1 else stage.text
    return "+".join([*stage.unmetered_above, name]) + "-bound"


def table(stages: Sequence[StageReport], processes: int, wall_s: float, sentence: str) -> str:
    """Return the stages as a table, the errors skipped, and `sentence`."""
    below = [line.replace("\n", "\n    ") for line in _below(stages, processes, wall_s, sentence)]
    return "\n".join([*text_table(_cells(stages, processes, wall_s)), *below])


def table_html(stages: Sequence[StageReport], processes: int, wall_s: float, sentence: str) -> str:
    """Return the same for a notebook."""
    head, *rows = _cells(stages, processes, wall_s)
    return with_lines(html_table(head, rows), _below(stages, processes, wall_s, sentence))


def _cells(stages: Sequence[StageReport], processes: int, wall_s: float) -> list[list[str]]:
    """Return the head and a row a stage, without empty columns."""
    begun = any(stage.metered for stage in stages)
    rows = [_HEAD, *(_row(stage, wall_s * processes, wall_s, "(counted below)" * begun) for stage in stages)]
    shown = [
        column
        for column in range(len(_HEAD))
        if column < 4 or any(row[column] not in ("", "0") for row in rows[1:])
    ]
    return [[row[column] for column in shown] for row in rows]


def _below(stages: Sequence[StageReport], processes: int, wall_s: float, sentence: str) -> list[str]:
    texts = [
        f"skipped by {stage.name}: {text}" for stage in stages for text in stage.examples[:_SHOWN_EXAMPLES]
    ]
    texts += [
        f"not verified by {stage.name}: {kind}, of {count_text(count, 'object')}"
        + (f": {INSTALL_CRC32C}" if kind == "crc32c" else "")
        for stage in stages
        for kind, count in stage.unverified.items()
    ]
    who = "1 process" if processes == 1 else f"{processes} processes"
    return [*texts, f"{who}, {wall_s:.1f} s{' each' * (processes > 1)}; {sentence}"]


def _row(stage: StageReport, busy_s: float, wall_s: float, unknown: str) -> tuple[str, ...]:
    known = stage.metered

    def share(seconds: float) -> str:
        return f"{seconds / busy_s:.0%}" if known and busy_s > 0 else ""

    rate = 1 / wall_s if wall_s > 0 else 0.0
    return (
        stage.name,
        f"{stage.taken}" if known and stage.sources else "",
        f"{stage.items}" if known else unknown,
        f"{stage.items * rate:.0f}" if known else "",
        f"{stage.bytes / 1e6:.1f}" if stage.bytes else "",
        f"{stage.bytes / 1e6 * rate:.1f}" if stage.bytes else "",
        f"{stage.own_s:.2f}" if known else "",
        share(stage.own_s),
        share(stage.wait_s),
        share(stage.blocked_s),
        "" if stage.first_byte_ms is None else f"{stage.first_byte_ms:.1f} ms",
        f"{stage.held / 1e6:.0f} ({stage.held_max / 1e6:.0f}) MB" if stage.held_max else "",
        f"{stage.retries}",
        f"{sum(stage.skipped.values())}",
    )


class Metric(NamedTuple):
    """A counter, which only grows, or a gauge, which may fall."""

    name: str
    kind: str
    meaning: str
    of: Callable[[StageReport], float | Mapping[str, int] | None]
    """Returns its value of a stage's report, or values by class of error."""


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


def values(metric: Metric, stages: Sequence[StageReport]) -> Iterator[tuple[float, dict[str, str]]]:
    """Yield values of `metric` and labels, the first stage first."""
    for number, stage in enumerate(stages):
        if stage.metered:
            place = {"stage": stage.name, "number": str(number)}
            value = metric.of(stage)
            if isinstance(value, Mapping):
                yield from ((count, {**place, "error": name}) for name, count in value.items())
            elif value is not None:
                yield value, place


def prometheus(stages: Sequence[StageReport], labels: Mapping[str, str]) -> str:
    """Return the counters in Prometheus's text form, `labels` on every line."""
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
