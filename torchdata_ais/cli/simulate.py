"""``torchdata-ais simulate``: what a run of any size would do."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, command
from torchdata_ais.errors import UsageError
from torchdata_ais.shown import bytes_text, span_text

if TYPE_CHECKING:
    from torchdata_ais.checking.simulate import Simulation


@command()
def simulate(
    shards: Annotated[str, typer.Option()],
    samples: Annotated[str, typer.Option()],
    ranks: Annotated[int, typer.Option(min=1)] = 1,
    workers: Annotated[int, typer.Option(min=0)] = 0,
    global_batch: Annotated[int | None, typer.Option(min=1)] = None,
    sample_bytes: str = "110000",
    shuffle: Literal["samples", "runs", "none"] = "samples",
    proof: Literal["bytes", "headers"] = "bytes",
    as_json: AsJson = False,
) -> None:
    """Show what a training by index would do and need, and what streaming the same shards would cost.

    It is computed by the code that plans real runs; no cluster is asked. Requests of large runs are counted for some
    workers, and estimated from that for all.

    Args:
        shards (N): Shards: 1000000, or 1e6.
        samples (N): Samples in all of them.
        ranks: Ranks.
        workers: Workers of each rank.
        global_batch: Samples a step, over all ranks. Default: 256 a rank.
        sample_bytes (N): Bytes of a sample, with the headers of the tar.
        shuffle (HOW): samples, runs or none.
        proof (HOW): Of the index: bytes (built by reading) or headers (by the cluster).

    Examples:
        torchdata-ais simulate --ranks 10000 --workers 8 --shards 1e6 --samples 1e9
        torchdata-ais simulate --ranks 64 --shards 2000 --samples 2e6 --shuffle runs
        torchdata-ais simulate --json --global-batch 512 --shards 100 --samples 1e5
    """
    from torchdata_ais.checking.simulate import simulated

    found = simulated(
        ranks=ranks,
        workers=workers,
        shards=_whole("--shards", shards),
        samples=_whole("--samples", samples),
        sample_bytes=_whole("--sample-bytes", sample_bytes),
        global_batch=global_batch,
        shuffle=None if shuffle == "none" else shuffle,
        proof=proof,
    )
    if as_json:
        echo_json(asdict(found) | {"traffic": found.traffic._asdict()}, indent=1)
    else:
        echo(*_lines(found))


def _whole(option: str, text: str) -> int:
    """Return a whole number that may be written as 1e6."""
    with suppress(ValueError, OverflowError):
        if text.strip().isdecimal():
            return int(text)
        number = float(text)
        if int(number) == number:
            return int(number)
    raise UsageError.at(f"{option} {text}", todo="pass a whole number such as 1000000 or 1e6")


def _lines(run: Simulation) -> list[str]:
    traffic, stream = run.traffic, run.stream
    about = "" if traffic.exact else "about "
    rows = [
        ("", "by index", "as a stream"),
        ("steps of a rank", f"{run.steps}", span_text(stream.steps)),
        ("samples of a rank's batch", span_text(run.batch), ""),
        ("samples that come twice", f"{run.repeated}", ""),
        ("idle workers", f"{run.idle_workers}", f"{stream.idle_workers}"),
        ("requests an epoch", f"{about}{traffic.requests}", f"{stream.requests}"),
        ("ranges in them", f"{about}{traffic.ranges}", ""),
        ("bytes an epoch", f"{about}{bytes_text(traffic.bytes)}", "the same"),
        ("connections, at most", f"{run.connections}", f"{stream.connections}"),
        ("pages listed before", f"{run.listing_pages}", f"{stream.listing_pages}"),
        ("memory of a worker", bytes_text(run.worker_memory), bytes_text(stream.worker_memory)),
        ("state of all ranks", bytes_text(run.state_bytes), bytes_text(stream.state_bytes)),
        ("index read to begin", f"{bytes_text(run.index_bytes)} a process", ""),
        ("first batch planned", f"{1000 * run.plan_s:.0f} ms", ""),
        ("shards in a rank's batch", f"{run.rank_shards}", f"at most {stream.rank_shards}"),
        ("shards in a global batch", f"{run.batch_shards}", ""),
    ]
    start = run.start
    rows += [
        ("ranks begin within", f"{start.spread_s:.0f} s", "the same"),
        ("first requests a second", f"{start.requests_a_second:.0f}", "the same"),
        ("of them at the same time", f"{start.peak_requests}", "the same"),
        ("redirects an epoch", f"{about}{traffic.requests}", f"{stream.requests}"),
        ("connections to the store", f"{start.store_connections}", f"up to {2 * start.store_connections}"),
        ("requests to it, training", f"{start.store_requests_a_second:.0f} a second", "the same"),
        ('with "shortest" or "pad"', "", f"and {start.step_store_requests} a step"),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{what:<{widths[0]}}  {one:>{widths[1]}}  {other}".rstrip() for what, one, other in rows]
