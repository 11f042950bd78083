"""explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais._util.device import DeviceName, device_memory
from torchdata_ais._util.formatting import bytes_text, count_text, span_text, with_lines
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.index import Schedule
from torchdata_ais.observe.collect import Counts, counts_of, report_of
from torchdata_ais.observe.draw import draw, html
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.torch_pipes import deepcopy_pipe
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import parents, upstream
from torchdata_ais.pipes.checkpoint.ledger import chain_of
from torchdata_ais.pipes.checkpoint.load_state import url_of
from torchdata_ais.pipes.checkpoint.shard_order import find_sharder, unsharded
from torchdata_ais.pipes.planned.batches import SlotBatcher, check_planned, not_steps
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import DENOMINATOR, Run, Tail
from torchdata_ais.ranks.intervals import spread_of
from torchdata_ais.ranks.listing import Listing, list_pipe
from torchdata_ais.reading.planned import Traffic, traffic_of
from torchdata_ais.reading.requests import Request
from torchdata_ais.store.transport.metadata import INSTALL_CRC32C, unverifiable
from torchdata_ais.urls import ObjectURL, parse_url


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
    """Forecast of the first epoch of a run by index.

    Attributes:
        samples: Samples that it gives, those not counted that come twice to fill up the remainder.
        sources: Where they come from.
        steps: Batches of each rank.
        global_batch: Samples a step, over all ranks.
        batch: Samples of a rank's whole batch: the fewest and the most.
        repeated: Samples that come twice.
        traffic: The requests, without retries.
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
    pipe: IterDataPipe[object],
    reader: AISSampleReader,
    workers: int,
    ranks: int,
    global_batch: int | None,
    schedule: Schedule,
) -> PlannedRun:
    """Return the forecast of the first epoch of a pipe; no shard is read."""
    batchers = [stage for stage in upstream(pipe) if isinstance(stage, SlotBatcher)][-1:]
    for stage in batchers:
        stage.say_to(reader)
    size = batchers[0].batchsize if batchers else reader.batch_size
    global_batch = dict(schedule.batches).get(0, global_batch)
    if global_batch is None and size is None and ranks * workers > 1:
        raise UsageError.at(
            f"{ranks} ranks of {workers} workers share batches, and nothing says what a batch is",
            todo="put .batched(n) below .read_samples(), or pass global_batch=",
        )
    batch = global_batch or (size or 1) * ranks
    sources, mixture = reader.data.sources_with(schedule=schedule), reader.data.mixture
    run = Run.begun(sources, 0, batch, ranks).checked()
    epoch = run.epoch(0)
    given = run.length(epoch)
    options = reader.stored_options()
    window = max(one.prefetch_bytes for one in options)
    why = not_steps(pipe, max(1, batch // ranks))
    return PlannedRun(
        samples=given,
        sources=[
            PlannedSource(samples, weight / DENOMINATOR, drawn, index.proof, index.digest)
            for samples, weight, drawn, index in zip(
                sources.samples, sources.weights_at(0), run.counts(given), mixture.sources, strict=True
            )
        ],
        steps=epoch.steps,
        global_batch=batch,
        batch=(batch // ranks, -(-batch // ranks)),
        repeated=run.repeated(epoch),
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
    """Return the scope and the limits of the proofs of indexes, as text."""
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


@dataclass
class Explanation:
    """Forecast of a run; `print` shows it as text.

    Attributes:
        shards: Shards in an epoch, or objects.
        bytes: Their size together; None if the listing has no sizes.
        instances: Worker processes of all ranks.
        world: Ranks.
        shards_each: Shards of the workers with the fewest and with the most.
        shards_each_rank: Shards of the ranks with the fewest and with the most: they differ by at most one.
        idle_workers: Workers that get none.
        requests: GETs an epoch, all workers together, without retries.
        digest: Identifies these shards (names, sizes, versions): the same on all ranks, and in a checkpoint.
        memory_bytes: Upper bound of the data that reading stages fetch ahead, for all workers of one rank together.
        notes: Sentences: order, memory, checkpoints.
        picture: The stages, as `draw` gives them.
        table: The same for a notebook.
        plan: Of a pipe that reads by index: samples, steps, sources. None for a stream. Any worker of such a pipe may
            read of any shard, and one is idle only if there are fewer steps.
        start_spread_s: Over how many seconds the ranks start by default.
        device: How many batches the device and the host hold, in a sentence; "" for the CPU.
        counts: Items that each stage took and returned so far in this process, by its text; empty before.
    """

    shards: int
    bytes: int | None
    instances: int
    shards_each: tuple[int, int]
    idle_workers: int
    requests: int
    memory_bytes: int
    notes: list[str] = field(default_factory=list)
    picture: str = ""
    world: int = 1
    shards_each_rank: tuple[int, int] = (0, 0)
    digest: str = ""
    table: str = ""
    plan: PlannedRun | None = None
    start_spread_s: float = 0.0
    device: str = ""
    counts: Counts = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join([self.picture, *self._counted(), "", *self._lines()])

    def _repr_html_(self) -> str:
        return with_lines(self.table, [*self._counted(), *self._lines()])

    def _lines(self) -> list[str]:
        memory = f"memory: at most {self.memory_bytes / (1 << 20):.0f} MiB fetched ahead a rank, and the buffers above"
        device = [self.device] if self.device else []
        if self.plan is not None:
            told = f"digest: {self.digest}, the same on all ranks that read these indexes alike"
            lines = self.plan.lines(self.world, self.instances // self.world)
            return [*lines, memory, *device, *self._start(), told]
        size = "of unknown size" if self.bytes is None else f"of {self.bytes / 1e6:.1f} MB together"
        shards, workers = count_text(self.shards, "shard"), count_text(self.instances, "worker")
        lines = [
            f"data: {shards} {size}, {span_text(self.shards_each)} for each of {workers}",
            f"requests: {self.requests} GETs an epoch, and the listing",
            memory,
            *device,
            *self.notes,
        ]
        if self.world > 1:
            lines.append(
                f"ranks: {span_text(self.shards_each_rank)} shards for each of {self.world}; steps differ with what "
                "the shards hold: in training pass epoch_steps=N to ais_loader"
            )
        lines += self._start()
        if self.digest:
            lines.append(f"digest: {self.digest}, the same on all ranks that see these shards")
        if self.idle_workers:
            lines.append(
                f"idle: {self.idle_workers} of {self.instances} workers get no shard; use fewer workers or more, "
                "smaller shards"
            )
        return lines

    def _counted(self) -> list[str]:
        if not self.counts:
            return []
        each = [f"{text} took {taken}, returned {given}" for text, (taken, given) in self.counts.items()]
        return [f"counts so far in this process: {'; '.join(each)}"]

    def _start(self) -> list[str]:
        spread = self.start_spread_s
        return [f"start: the ranks begin within {spread:.1f} s (start_spread_s=)"] if spread else []

    __repr__ = __str__


@checked
def explain(
    pipe: IterDataPipe[object],
    *,
    num_workers: int = 0,
    world: int = 1,
    global_batch: int | None = None,
    schedule: Schedule | Mapping[str, object] | None = None,
    device: DeviceName = None,
) -> Explanation:
    """Return the forecast of a run of `pipe`; reads no shard.

    Lists the shards, or opens their index.

    Args:
        pipe: The last stage of a pipe.
        num_workers: Worker processes of each rank; 0 is none.
        world: Ranks.
        global_batch: As for `ais_loader`, of a pipe that reads by index.
        schedule: As for `ais_loader`; the forecast is of the first epoch.
        device: As for `ais_loader`; it need not exist here.

    Raises:
        UsageError: No stage of the pipe reads shards or objects; by index, the batch size is unknown; no device.
        TransportError: The listing failed.

    Example:
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> run = explain(AISSourceLister(example_shards()).load_tar().group_samples(), num_workers=4)
        >>> run.shards, run.shards_each, run.idle_workers
        (3, (0, 1), 1)
        >>> from torchdata_ais import AISSampleReader, SampleIndex
        >>> index = SampleIndex.build(example_shards(counts=(30, 50, 20)))
        >>> run = explain(AISSampleReader(index, shuffle="samples").batched(4), num_workers=4, world=2)
        >>> run.plan.samples, run.plan.global_batch, run.plan.steps, run.idle_workers
        (100, 8, 13, 0)
    """
    if not isinstance(pipe, IterDataPipe):
        raise UsageError.at(
            f"this is no pipe, but a {type(pipe).__name__}",
            todo="pass the last stage of the chain, not the loader",
        )
    if num_workers < 0 or world < 1:
        raise UsageError.at(f"num_workers={num_workers}, world={world}", todo="use 0 or more, and 1 or more")
    planned, on_device = check_planned(pipe), device_memory(device)
    if isinstance(planned, AISSampleReader):
        return _planned(
            pipe, planned, max(1, num_workers), world, global_batch, Schedule.of(schedule), on_device
        )
    if global_batch is not None or schedule:
        raise UsageError.at(
            "global_batch= or schedule= of a stream",
            todo="begin the pipe with .read_samples(), or leave it out",
        )
    readers = [stage for stage in upstream(pipe) if stage_of(stage).reads]
    if not readers:
        raise UsageError.at("no stage of the pipe reads anything", todo="put .load_tar() behind .list_ais()")
    workers = max(1, num_workers)
    instances = world * workers
    listing = list_pipe(pipe)
    urls = [url_of(item) for reader in readers for item in _all_items(pipe, reader, listing)]
    sizes = [url.size if isinstance(url, ObjectURL) else None for url in urls]
    known = [size for size in sizes if size is not None]
    shards = len(urls)
    return Explanation(
        shards=shards,
        bytes=sum(known) if len(known) == shards else None,
        instances=instances,
        shards_each=(shards // instances, -(-shards // instances)),
        idle_workers=max(0, instances - shards),
        requests=shards,
        memory_bytes=workers * sum(stage_of(reader).memory_bound().ahead for reader in readers),
        notes=[
            *_on_size(known, shards, instances),
            *_on_checksums(urls),
            *_on_order(pipe, readers, shards // instances),
            _on_state(pipe),
        ],
        picture=draw(pipe),
        table=html(pipe),
        world=world,
        shards_each_rank=(shards // world, -(-shards // world)),
        digest=listing.digest,
        start_spread_s=spread_of(world, workers),
        device=on_device,
        counts=_counts_of(pipe),
    )


def _counts_of(pipe: IterDataPipe[object]) -> Counts:
    return {text: counts for text, counts in counts_of([report_of(pipe)]).items() if any(counts)}


def _planned(
    pipe: IterDataPipe[object],
    reader: AISSampleReader,
    workers: int,
    world: int,
    global_batch: int | None,
    schedule: Schedule,
    on_device: str,
) -> Explanation:
    run = planned_run(pipe, reader, workers, world, global_batch, schedule)
    shards = sum(1 for index in reader.data.mixture.sources for _ in index.selected())
    return Explanation(
        shards=shards,
        bytes=run.traffic.bytes,
        instances=world * workers,
        shards_each=(shards, shards),
        idle_workers=world * max(0, workers - run.steps),
        requests=run.traffic.requests,
        memory_bytes=workers * reader.memory_bound().ahead,
        picture=draw(pipe),
        table=html(pipe),
        world=world,
        shards_each_rank=(shards, shards),
        digest=list_pipe(pipe).digest,
        plan=run,
        start_spread_s=spread_of(world, workers),
        device=on_device,
        counts=_counts_of(pipe),
    )


def _all_items(
    pipe: IterDataPipe[object], reader: IterDataPipe[object], listing: Listing
) -> Iterator[object]:
    with listing.on(pipe):
        source = deepcopy_pipe(parents(reader)[0])  # iterating the user's would count as an epoch
    yield from unsharded(source, find_sharder(source))


def _on_size(sizes: list[int], shards: int, instances: int) -> list[str]:
    if len(sizes) < shards or not sizes or max(sizes) < 2 * sum(sizes) / len(sizes):
        return []
    times = max(sizes) * len(sizes) / sum(sizes)
    text = f"sizes: the largest shard has {max(sizes) / 1e6:.1f} MB, {times:.1f} times the average"
    return [f"{text}: its worker ends last; even shards keep all {instances} workers busy"]


def _on_checksums(urls: list[Any]) -> list[str]:
    """Return a sentence on listed checksums that cannot be computed here."""
    kinds = Counter(unverifiable(url.checksum) for url in urls if isinstance(url, ObjectURL))
    return [
        f"not verified: {kind}, the checksum of {count_text(count, 'shard')}"
        + (f": {INSTALL_CRC32C}" if kind == "crc32c" else "")
        for kind, count in kinds.items()
        if kind
    ]


def _on_order(pipe: IterDataPipe[object], readers: list[IterDataPipe[object]], shards_each: int) -> list[str]:
    above = [stage for reader in readers for stage in upstream(parents(reader)[0])]
    shards = any(stage_of(stage).effect().mixes for stage in above)
    buffers = [stage for stage in upstream(pipe) if _mixes_samples(stage, above)]
    if not shards and not buffers:
        return [
            "order: the same in every epoch; .shuffle() before load_tar and .shuffled(n) behind group_samples mix"
        ]
    opened = max(stage_of(reader).reads for reader in readers)
    order = "a new order" if shards else "the same order"
    text = f"order: shards in {order} each epoch, {opened} read at the same time in a worker"
    batches = bool(buffers) and _takes_batches(buffers[0])
    text += (
        f", {'batches' if batches else 'samples'} mixed in a buffer of {stage_of(buffers[0]).memory_bound().text}"
        if buffers
        else ", samples in the shard's order"
    )
    if batches:
        text += "; .shuffled(n) before .batched() would mix the samples of a batch, too"
    elif not buffers:
        text += "; .shuffled(1000) behind group_samples would mix neighbours"
    elif opened == 1 and shards_each > 1:
        text += "; where a shard holds more than the buffer, load_tar(open_shards=4) mixes shards as well"
    return [text]


def _on_state(pipe: IterDataPipe[object]) -> str:
    try:
        stages, _ = chain_of(pipe)
    except StateError as error:
        return f"checkpoints: none can be taken: {error}"
    for index, stage in enumerate(stages):
        dropping = next((above for above in stages[index + 1 :] if not above.effect().keeps_place), None)
        if stage.effect().mixes and dropping is not None:
            return (
                f"checkpoints: none can be taken: {stage.describe()} holds items of {dropping.describe()}, which do"
                " not know their place in the data set. put it before that stage"
            )
    return "checkpoints: can be taken at every batch, with ais_loader"


def _takes_batches(pipe: IterDataPipe[object]) -> bool:
    """Report whether batches made upstream come to a stage, still whole."""
    gives = (stage_of(stage).effect().gives for stage in upstream(parents(pipe)[0]))
    return next((one for one in gives if one in ("batches", "more")), "") == "batches"


def _mixes_samples(stage: IterDataPipe[object], above: list[IterDataPipe[object]]) -> bool:
    effect = stage_of(stage).effect()
    return isinstance(stage, Pipe) and effect.mixes and effect.holds and stage not in above
