"""What a run of a pipe that reads by index will do, told before it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import DENOMINATOR, Run, Tail
from torchdata_ais.reading.forecast import Traffic, traffic_of
from torchdata_ais.reading.requests import Request
from torchdata_ais.shown import bytes_text, span_text
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.slots import SlotBatcher, not_steps
from torchdata_ais.stage.upstream import upstream
from torchdata_ais.urls import parse_url


@dataclass(frozen=True)
class PlannedSource:
    """A source of a planned run.

    Attributes:
        samples: How many it has.
        weight: Its weight at the beginning of the run, as rounded.
        drawn: How many samples the first epoch takes of it.
        proof: ``"bytes"`` or ``"headers"``; see `SampleIndex`.
        digest: Of its index.
    """

    samples: int
    weight: float
    drawn: int
    proof: str
    digest: str


@dataclass(frozen=True)
class PlannedRun:
    """What the first epoch of a run by index will do.

    Attributes:
        samples: Samples that it gives, those not counted that come twice to fill up the remainder.
        sources: Where they come from.
        steps: Batches of each rank.
        global_batch: Samples a step, over all ranks.
        batch: Samples of a rank's whole batch: the fewest and the most.
        repeated: Samples that come twice.
        traffic: What is asked for, without retries.
        proof: ``"bytes"`` if that of all sources is.
        order: How the order is made, in words.
        state: Whether states can be taken, in words.
    """

    samples: int
    sources: list[PlannedSource]
    steps: int
    global_batch: int
    batch: tuple[int, int]
    repeated: int
    traffic: Traffic
    proof: str
    order: str
    state: str

    def lines(self, ranks: int, workers: int) -> list[str]:
        """Return sentences for people."""
        batches = f"{span_text(self.batch)} samples a batch, {self.global_batch} over all ranks"
        about = "" if self.traffic.exact else "about "
        lines = [
            f"data: {self.samples} samples an epoch, {about}{bytes_text(self.traffic.bytes)}, proof {self.proof}",
            *(
                f"source {number}: {one.drawn} of {one.samples} samples an epoch{_often(one)}, weight {one.weight:.5f},"
                f" proof {one.proof}, index {one.digest}"
                for number, one in enumerate(self.sources)
            ),
            f"steps: {self.steps} on each of {ranks} ranks, with {workers} workers each; {batches}",
            *(f"proof: {sentence}" for sentence in _proofs(self.sources)),
            f"requests: {about}{self.traffic.ranges} ranges an epoch, in {self.traffic.requests} requests"
            + ("" if self.proof == "bytes" else ", and a listing of the shards before the first"),
            f"order: {self.order}",
        ]
        if self.repeated:
            lines.append(
                f"remainder: {self.repeated} samples come twice in an epoch, so that all ranks step alike"
            )
        return [*lines, self.state]


def planned_run(
    pipe: IterDataPipe[Any], reader: AISSampleReader, workers: int, ranks: int, global_batch: int | None
) -> PlannedRun:
    """Return what the first epoch of a pipe will do; no shard is read.

    Args:
        pipe: The last stage.
        reader: The stage of it that reads by index.
        workers: Of each rank.
        ranks: How many there are.
        global_batch: Samples a step; None: what the pipe batches, for each rank.
    """
    batchers = [stage for stage in upstream(pipe) if isinstance(stage, SlotBatcher)][-1:]
    for stage in batchers:
        stage.say_to(reader)
    size = batchers[0].batchsize if batchers else reader.batch_size
    if global_batch is None and size is None and ranks * workers > 1:
        raise UsageError.at(
            f"{ranks} ranks of {workers} workers share batches, and nothing says what a batch is",
            todo="put .batched(n) below .read_samples(), or pass global_batch=",
        )
    batch = global_batch or (size or 1) * ranks
    sources, mixture = reader.data.sources_with(), reader.data.mixture
    weights = sources.weights_at(0)
    run = Run.begun(sources, 0, batch, ranks).checked()
    epoch = run.epoch(0)
    given = min(epoch.slots.length, len(epoch.slots) * batch)
    options = reader.stored_options()
    window = max(one.prefetch_bytes for one in options)
    why = not_steps(pipe, max(1, batch // ranks))
    return PlannedRun(
        samples=given,
        sources=[
            PlannedSource(samples, weight / DENOMINATOR, drawn, index.proof, index.digest)
            for samples, weight, drawn, index in zip(
                sources.samples, weights, run.counts(given), mixture.sources, strict=True
            )
        ],
        steps=len(epoch.slots),
        global_batch=batch,
        batch=(batch // ranks, -(-batch // ranks)),
        repeated=epoch.slots.repeated(),
        traffic=traffic_of(
            run, epoch, workers, lambda positions: reader.data.look_up(run, positions), window, _group
        ),
        proof="bytes" if all(index.proof == "bytes" for index in mixture.sources) else "headers",
        order=_order(sources.shuffle, sources.tail),
        state="checkpoints: the same small state on all ranks, at every batch, for any number of ranks and workers"
        if why is None
        else f"checkpoints: between epochs only: {why}",
    )


def _group(request: Request) -> Hashable | None:
    """Take it that clusters answer many ranges at once."""
    return request.source if parse_url(request.shard.name).kind == "object" else None


def _often(source: PlannedSource) -> str:
    if source.drawn > source.samples:
        return f" ({source.drawn / source.samples:.1f} times each)"
    return (
        " (never drawn: an epoch is too short for its weight)" if source.weight and not source.drawn else ""
    )


def _proofs(sources: list[PlannedSource]) -> list[str]:
    """Return what the proofs of indexes compare, and what they do not."""
    said = {
        "bytes": 'of "bytes" the XXH64 of every sample is compared',
        "headers": 'of "headers" keys, names and sizes are compared, and a listing of objects before the first sample; '
        "other bytes of the same sizes are not noticed in local files, nor in objects that change after the listing",
    }
    return [said[proof] for proof in dict.fromkeys(source.proof for source in sources)]


def _order(shuffle: str | None, tail: Tail) -> str:
    said = {
        "samples": "all samples in another order each epoch, by seed and position alone",
        "runs": "runs of adjacent samples, in another order each epoch, by seed, position and first global batch alone",
        None: 'as stored, in every epoch; .read_samples(shuffle="samples") mixes',
    }[shuffle]
    rest = {
        "short": "is dealt evenly over the ranks",
        "drop": "is left out",
        "pad": "is filled up from the start of the epoch",
    }[tail]
    return f"{said}; the same for any ranks and workers; the remainder of an epoch {rest}"
