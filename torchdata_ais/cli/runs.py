"""watch, simulate and trace-step."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchdata_ais._util.formatting import bytes_text, count_text, span_text
from torchdata_ais.cli._output import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, options_of
from torchdata_ais.errors import UsageError

if TYPE_CHECKING:
    from torchdata_ais.cli.checks.simulate import Simulation
    from torchdata_ais.index import IndexedSamples, Mixture, Schedule
    from torchdata_ais.observe.diagnosis.rank_table import Readiness


_MOST_RANKS = 32


@command("torchdata_ais.observe.diagnosis.rank_table")
def watch(
    run_dir: str,
    every: Annotated[float, typer.Option(min=0)] = 0.0,
    page: str = "",
    as_json: AsJson = False,
) -> None:
    """Show the status of each rank of a running job, and the slowest one.

    A sentence names the rank that delays the others, and the reason. The ranks write their status every 5 s in small
    files; no request is sent to them. Of many ranks those are shown that waited most.

    Args:
        run_dir (FOLDER): The run_dir= that the program passes to ais_loader.
        every: Look again every so many seconds; 0: once.
        page (FILE): Also write a page with plots there.
        as_json: Print one JSON object a look.

    Examples:
        torchdata-ais watch runs/7
        torchdata-ais watch runs/7 --every 5
        torchdata-ais watch runs/7 --page run.html
    """
    from torchdata_ais.cli._output import check_new_file
    from torchdata_ais.observe.diagnosis.rank_table import readiness_of
    from torchdata_ais.observe.diagnosis.run_folder import read_run, write_page

    check_new_file(Path(page) if page else None)
    while True:
        found = readiness_of(*read_run(run_dir))
        if as_json:
            echo_json(_plain(found))
        else:
            _show(found)
        if page:
            write_page(found, Path(page))
        if not every:
            return
        time.sleep(every)


def _plain(found: Readiness) -> dict[str, object]:
    from torchdata_ais.observe.diagnosis.rank_table import row_of

    head = ("rank", "node", "step", "wait_p50", "wait_p99", "loop_p50", "waited", "worker", "skipped")
    verdict = found.verdict
    return {
        "sentence": found.sentence,
        "cause": verdict.cause,
        "rank": verdict.rank,
        "place": verdict.place,
        "missing": found.missing,
        "notes": found.notes,
        "ranks": [dict(zip(head, row_of(one), strict=True)) for one in found.ranks],
    }


def _show(found: Readiness) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from torchdata_ais.cli._output import shown_line
    from torchdata_ais.observe.diagnosis.rank_table import HEAD, row_of

    table = Table(box=None, pad_edge=False)
    for name in HEAD:
        table.add_column(name, justify="left" if name == "node" else "right")
    most = sorted(found.ranks, key=lambda one: -one.wait.total_s)[:_MOST_RANKS]
    for one in sorted(most, key=lambda one: one.rank):
        style = "bold yellow" if one.rank == found.verdict.rank else ""
        table.add_row(*(Text(shown_line(cell), style) for cell in row_of(one)))
    Console(highlight=False).print(table)
    if len(found.ranks) > _MOST_RANKS:
        echo(f"{len(found.ranks)} ranks; shown are the {_MOST_RANKS} that waited longest")
    echo(*(f"note: {note}" for note in found.notes), found.sentence)


@command()
def simulate(
    shards: Annotated[str, typer.Option()],
    samples: Annotated[str, typer.Option()],
    ranks: Annotated[int, typer.Option(min=1)] = 1,
    workers: Annotated[int, typer.Option(min=0)] = 0,
    global_batch: Annotated[int | None, typer.Option(min=1)] = None,
    sample_bytes: str = "110000",
    schedule: str = "",
    shuffle: Literal["samples", "runs", "none"] = "samples",
    proof: Literal["bytes", "headers"] = "bytes",
    as_json: AsJson = False,
) -> None:
    """Show the cost of a training by index, and of streaming the shards.

    It is computed by the code that plans real runs; no request is sent. Requests of large runs are counted for some
    workers, and estimated from that for all.

    Args:
        shards (N): Shards: 1000000, or 1e6.
        samples (N): Samples in all of them.
        ranks: Ranks.
        workers: Workers of each rank.
        global_batch: Samples a step, over all ranks. Default: 256 a rank.
        sample_bytes (N): Bytes of a sample, with the headers of the tar.
        schedule (FILE): Changes by step, as JSON (`Schedule.to_json`).
        shuffle (HOW): samples, runs or none.
        proof (HOW): Of the index: bytes (built by reading) or headers (by the cluster).

    Examples:
        torchdata-ais simulate --ranks 10000 --workers 8 --shards 1e6 --samples 1e9
        torchdata-ais simulate --ranks 64 --shards 2000 --samples 2e6 --shuffle runs
        torchdata-ais simulate --json --global-batch 512 --shards 100 --samples 1e5
    """
    from torchdata_ais.cli.checks.simulate import simulated

    found = simulated(
        ranks=ranks,
        workers=workers,
        shards=_whole("--shards", shards),
        samples=_whole("--samples", samples),
        sample_bytes=_whole("--sample-bytes", sample_bytes),
        global_batch=global_batch,
        schedule=_schedule_in(schedule),
        shuffle=None if shuffle == "none" else shuffle,
        proof=proof,
    )
    if as_json:
        echo_json(asdict(found) | {"traffic": found.traffic._asdict()}, indent=1)
    else:
        echo(*_lines(found))


def _schedule_in(path: str) -> Schedule | None:
    """Return the schedule that a file holds as JSON; None without a file."""
    from torchdata_ais.index import Schedule

    if not path:
        return None
    try:
        return Schedule.from_json(Path(path).read_bytes())
    except OSError as error:
        raise UsageError.at(f"--schedule {path}: {error.strerror}", todo="name a file with JSON") from None


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


@command("torchdata_ais.loaders.loader")
def trace_step(
    indexes: list[str],
    step: Annotated[int, typer.Option(min=0)],
    global_batch: Annotated[int, typer.Option(min=1)],
    seed: int = 0,
    shuffle: Literal["samples", "runs", "none"] = "none",
    weights: str = "",
    stop: Literal["first", "all", "never"] = "first",
    tail: Literal["short", "drop", "pad"] = "short",
    epoch_steps: Annotated[int | None, typer.Option(min=1)] = None,
    schedule: str = "",
    shards_from: Annotated[list[str] | None, typer.Option("--shards-from")] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Show key and shard of each sample in a step of a run by index.

    It is computed from index, seed and step; no shard is read. Give the arguments that the program gives to
    AISSampleReader and ais_loader. Of a run whose batch, weights or sources were changed at a resume, the steps before
    the change are those of the program before it.

    Args:
        indexes (INDEX...): The place of the index, or shards that have it next to them: ais://bucket/prefix, a folder.
        step: Which step, counted over the whole run, from 0.
        global_batch: Samples a step, over all ranks.
        seed: Seed of the loader.
        shuffle (HOW): samples, runs or none.
        weights (W,W,...): Of a mixture, one an index: 0.7,0.3. Default: the indexes one after the other.
        stop (WHEN): Of a mixture, the end of an epoch: first, all or never.
        tail (HOW): The treatment of an epoch's remainder: short, drop or pad.
        epoch_steps: Steps of an epoch, where the program sets them.
        schedule (FILE): Changes by step, as JSON (`Schedule.to_json`).
        shards_from (PLACE): A bucket or folder whose shards the indexes may name, too. May be repeated.

    Examples:
        torchdata-ais trace-step ais://pets/ --step 9 --global-batch 512 --seed 7
        torchdata-ais trace-step a/ b/ --weights 7,3 --step 0 --global-batch 64
        torchdata-ais trace-step --json /data/shards --step 12 --global-batch 256
    """
    from torchdata_ais.index import IndexedSamples
    from torchdata_ais.loaders import ais_loader
    from torchdata_ais.pipes import AISSampleReader

    options = options_of(indexes, endpoint)
    opened = [IndexedSamples.open(where, shards_from=shards_from, cluster=options) for where in indexes]
    source = _mixed(opened, weights, stop) if weights else IndexedSamples.concat(opened)
    reader = AISSampleReader(source, shuffle=None if shuffle == "none" else shuffle)
    with ais_loader(
        reader,
        seed=seed,
        global_batch=global_batch,
        tail=tail,
        epoch_steps=epoch_steps,
        schedule=_schedule_in(schedule),
        rank=0,
        world_size=1,
    ) as loader:
        found = loader.samples_of(step)
    if as_json:
        samples = [{"key": key, "shard": shard} for key, shard in found]
        echo_json({"step": step, "seed": seed, "global_batch": global_batch, "samples": samples}, indent=1)
        return
    for key, shard in found:
        echo(f"{key}\t{shard}")
    shards = len({shard for _, shard in found})
    echo(f"step {step}: {count_text(len(found), 'sample')} of {count_text(shards, 'shard')}", err=True)


def _mixed(opened: list[IndexedSamples], weights: str, stop: Literal["first", "all", "never"]) -> Mixture:
    from torchdata_ais.index import Mixture

    try:
        numbers = [int(word) if word.strip().isdecimal() else float(word) for word in weights.split(",")]
    except ValueError:
        raise UsageError.at(f"--weights {weights}", todo="pass numbers such as 0.7,0.3") from None
    if len(numbers) != len(opened):
        raise UsageError.at(f"--weights {weights} for {len(opened)} indexes", todo="pass one weight an index")
    return Mixture(dict(zip(opened, numbers, strict=True)), stop)
