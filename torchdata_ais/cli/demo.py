"""demo and serve."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdata_ais._util.formatting import bytes_text, count_text
from torchdata_ais.cli._output import echo
from torchdata_ais.cli._run import command, options_for
from torchdata_ais.errors import ConnectError, LoaderError
from torchdata_ais.urls import bucket_place

if TYPE_CHECKING:
    from torchdata_ais.cli._objects import Bucket
    from torchdata_ais.store import StoreOptions


_TRAIN_SHARDS, _HELD_OUT_SHARDS = 12, 3
_BATCH = 32
_TIMES_CHANCE = 3.0
"""The held-out accuracy must be at least so many times that of guessing."""


@command("torchdata_ais.loaders.loader", "rich.progress")
def demo(
    samples: Annotated[int, typer.Option(min=100)] = 3000,
    epochs: Annotated[int, typer.Option(min=1)] = 4,
    workers: Annotated[int, typer.Option(min=0)] = 2,
    seed: int = 0,
    endpoint: str = "",
    keep: bool = False,
) -> None:
    """Train a model on shards in AIStore; check that each sample came once.

    Draws a data set of pets, stores it as tar shards of uneven size in a cluster, and trains a small network on it
    under DataLoader2 with worker processes. Fails if a sample was lost or doubled, or if nothing was learned.

    Args:
        samples: Samples to draw; a fifth of them is held out.
        epochs: Passes over the training shards.
        workers: Worker processes; 0 loads in this process.
        seed: For data, order and model.
        endpoint: A real cluster, as http://host:51080. Default: an embedded one.
        keep: Leave the data there; the embedded cluster stays up until Ctrl-C.

    Examples:
        torchdata-ais demo
        torchdata-ais demo --samples 400 --epochs 2
        torchdata-ais demo --endpoint http://host:51080 --keep
    """
    started = time.perf_counter()
    with _cluster(endpoint) as options, _bucket(options, fresh=bool(endpoint), keep=keep) as bucket:
        held_out = samples // 5
        _store_pets(bucket, samples, held_out, seed)
        accuracy = _train(bucket, samples, held_out, epochs=epochs, workers=workers, seed=seed)
        _judge(accuracy, count_text(epochs, "epoch"), time.perf_counter() - started)
        if keep:
            _stay(bucket, wait=not endpoint)


@contextmanager
def _cluster(endpoint: str) -> Iterator[StoreOptions]:
    if endpoint:
        echo(f"cluster   {endpoint}")
        yield options_for(endpoint)
        return
    from torchdata_ais.local import LocalCluster

    with LocalCluster(targets=2) as cluster:
        echo(f"cluster   {cluster.endpoint}, embedded, 2 targets")
        yield options_for(cluster.endpoint)


@contextmanager
def _bucket(options: StoreOptions, *, fresh: bool, keep: bool) -> Iterator[Bucket]:
    """Make a bucket, unused by others if `fresh`, and remove it at the end."""
    from torchdata_ais.cli._objects import Bucket

    name = f"pets-demo-{uuid.uuid4().hex[:8]}" if fresh else "pets"
    bucket = Bucket(options, bucket_place(name))
    bucket.create()
    try:
        yield bucket
    finally:
        if fresh and not keep:
            bucket.delete()


def _store_pets(bucket: Bucket, samples: int, held_out: int, seed: int) -> None:
    """Draw the samples and PUT them as shards, the last ones for measuring."""
    from torchdata_ais.cli._output import progress
    from torchdata_ais.examples.pets import make_shards, uneven_sizes

    begin = time.perf_counter()
    trained = samples - held_out
    parts = {
        "train": (0, uneven_sizes(trained, _TRAIN_SHARDS, seed)),
        "held-out": (trained, uneven_sizes(held_out, _HELD_OUT_SHARDS, seed)),
    }
    stored = 0
    with progress("draw and store", "sample", samples) as advance:
        for part, (start, sizes) in parts.items():
            for index, shard in enumerate(make_shards(sizes, seed, start)):
                bucket.put(f"{part}-{index:03d}.tar", shard)
                stored += len(shard)
                advance(sizes[index])
    smallest, *_, largest = sorted(parts["train"][1])
    echo(
        f"data      {samples} samples drawn, {bytes_text(stored)} stored in {bucket.uri} as {_TRAIN_SHARDS} + "
        f"{_HELD_OUT_SHARDS} shards of {smallest} to {largest} samples, {time.perf_counter() - begin:.1f} s"
    )


def _train(bucket: Bucket, samples: int, held_out: int, *, epochs: int, workers: int, seed: int) -> float:
    """Train, print a line an epoch, and return the held-out accuracy."""
    import torch

    from torchdata_ais.cli._output import progress
    from torchdata_ais.dataloader2 import DataLoader2
    from torchdata_ais.examples.pets import CLASSES
    from torchdata_ais.examples.train import SmallCNN, pets_pipe, run_epoch
    from torchdata_ais.loaders import MultiProcessingReadingService
    from torchdata_ais.observe.stats import stats

    keys = [f"sample_{index:06d}" for index in range(samples)]
    train_keys, held_out_keys = keys[: samples - held_out], keys[samples - held_out :]
    endpoint = bucket.options.endpoint
    train = pets_pipe(f"{bucket.uri}/train-", shuffle=True, cluster=endpoint, batchsize=_BATCH)
    measure = pets_pipe(f"{bucket.uri}/held-out-", shuffle=False, cluster=endpoint, batchsize=_BATCH)
    echo(f"chain     {_chain(train)}")

    # More threads than free cores spend their time waiting for each other.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - workers))
    torch.manual_seed(seed)
    model = SmallCNN(len(CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.004)
    # Each worker ends with a separate batch that may be smaller, hence the spare steps.
    steps = epochs * (len(train_keys) // _BATCH + max(1, workers) + 1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.004, total_steps=steps)
    accuracy = 0.0
    with (
        DataLoader2(train, reading_service=MultiProcessingReadingService(workers)) as train_loader,
        DataLoader2(measure, reading_service=MultiProcessingReadingService(workers)) as held_out_loader,
    ):
        train_loader.seed(seed)
        for epoch in range(epochs):
            with progress(f"epoch {epoch + 1}/{epochs}", "sample", len(train_keys)) as advance:
                trained = run_epoch(model, train_loader, optimizer, scheduler, advance)
            measured = run_epoch(model, held_out_loader)
            _check_once("training", epoch, trained.keys, train_keys)
            _check_once("held-out", epoch, measured.keys, held_out_keys)
            accuracy = measured.accuracy
            echo(
                f"epoch {epoch + 1}/{epochs} loss {trained.mean_loss:.3f}, held-out accuracy {accuracy:.3f}, "
                f"{trained.samples_per_second:.0f} samples/s, "
                f"{len(train_keys)} + {len(held_out_keys)} samples each exactly once"
            )
        echo("", "what the stages did on the training shards:", *str(stats(train_loader)).splitlines(), "")
    return accuracy


def _chain(pipe: object) -> str:
    """Return the stages of a chain in a line."""
    from torchdata_ais.pipes.base.upstream import upstream

    stages = [repr(stage).removesuffix("IterDataPipe") for stage in upstream(pipe)]  # type: ignore[arg-type]
    return " . ".join(reversed(stages))


def _check_once(part: str, epoch: int, keys: Sequence[str], expected: Sequence[str]) -> None:
    from torchdata_ais.examples.train import once_each

    wrong = once_each(keys, expected)
    if wrong:
        raise LoaderError.at(f"epoch {epoch + 1}, {part} shards: {wrong}", todo="please report this as a bug")


def _judge(accuracy: float, epochs: str, seconds: float) -> None:
    """Raise if the model has not learned; else print the result."""
    from torchdata_ais.examples.pets import CLASSES

    chance = 1 / len(CLASSES)
    if accuracy < _TIMES_CHANCE * chance:
        raise LoaderError.at(
            f"the accuracy {accuracy:.3f} on held-out shards is not far above chance ({chance:.3f})",
            todo="try more --epochs or --samples; with the defaults, please report this as a bug",
        )
    echo(
        f"passed    accuracy {accuracy:.3f} on shards the model never saw (chance {chance:.3f}), "
        f"every sample exactly once in {epochs}, {seconds:.0f} s"
    )


def _stay(bucket: Bucket, *, wait: bool) -> None:
    """Print how to look at the data; wait while an embedded cluster is needed."""
    echo(
        "",
        f"{'The cluster stays up until Ctrl-C' if wait else 'The bucket stays'}. Look at it from another shell:",
        f"  export AIS_ENDPOINT={bucket.options.endpoint}",
        f"  torchdata-ais ls {bucket.uri}",
        f"  torchdata-ais inspect {bucket.uri}/train-000.tar",
    )
    with suppress(KeyboardInterrupt):
        while wait:
            time.sleep(1)


_LIVENESS_S = 0.5


@command("torchdata_ais.local")
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 51080,
    root: Path | None = None,
    targets: Annotated[int, typer.Option(min=1)] = 2,
    etl: bool = False,
) -> None:
    """Run an AIStore cluster on this machine until Ctrl-C.

    It is embedded, in pure Python, for tests and trials. Use it in another shell by the lines it prints.
    AIS_AUTHN_TOKEN is for making and changing transforms (--etl), which run code as you: keep it to yourself.

    Args:
        port: Port of the proxy on 127.0.0.1; 0 takes a free one.
        root: Folder for the data, kept. Default: a temporary one, removed at the end.
        targets: Number of targets.
        etl: Run transforms: they may do all that you may.

    Examples:
        torchdata-ais serve
        torchdata-ais serve --root /data/ais --port 0
    """
    from torchdata_ais.local import LocalCluster

    with LocalCluster(targets=targets, root=root, port=port, etl=etl) as cluster:
        echo(f"export AIS_ENDPOINT={cluster.endpoint}")
        typer.echo(f"export AIS_AUTHN_TOKEN={cluster.token}")  # echo would hide it
        echo(f"data in {cluster.root}; stop with Ctrl-C", err=True)
        try:
            while cluster.running:
                time.sleep(_LIVENESS_S)
        except KeyboardInterrupt:
            return
    raise ConnectError.at(
        "the cluster's process has ended", todo=f"look at {root or 'the temporary folder'}/server.log"
    )
