"""What the start of a large job costs a cluster: so many loaders begin at once, and the embedded cluster counts.

    python benchmarks/start.py [--loaders 1000] [--processes 10] [--busy-above 64] [--service-ms 20]

Every loader is one rank of a job, in a thread of one of a few processes: the ranks meet over a store of torch, rank 0
lists, and each takes its first batch out of a shard of its own. An answer takes `--service-ms` at the cluster, and a
node that has more than `--busy-above` requests under way answers 429. Three ways to begin:

    each for itself     every loader lists, none knows of the others
    together, at once   one listing for all; all ask for their first shard at the same moment
    together, spread    the same, each at its rank's moment (start_spread_s=)

Threads of one process are no processes: they share its connections, and their requests come at most as fast as one
interpreter makes them. Compare the counts, not the seconds.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else the store tells of every connection
# It asks for the name of each peer: a resolver that is slow to say that there is none would take minutes.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

import torch.distributed as dist

from torchdata_ais import AISSourceLister, Retry, StoreOptions, ais_loader
from torchdata_ais.local import Busy, Delay, LocalCluster
from torchdata_ais.testing import shard_bytes

WAYS = ("each for itself", "together, at once", "together, spread")


@dataclass
class Cost:
    """What one way cost.

    Attributes:
        listings: Pages of listings.
        redirects: Requests that the proxy sent on to a target.
        connections: Sockets that the cluster accepted.
        peak: Requests under way at the same time.
        refused: Answers 429.
        failed: Loaders that got no batch.
        first_batch_s: Until the median and the last loader had one.
    """

    listings: int
    redirects: int
    connections: int
    peak: int
    refused: int
    failed: list[str]
    first_batch_s: tuple[float, float]


def measured(cluster: LocalCluster, way: str, loaders: int, processes: int, spread_s: float) -> Cost:
    """Begin the loaders in one way, and count."""
    context = multiprocessing.get_context("fork")
    gate = context.Event()
    begun = []
    for first in range(processes):
        ours, theirs = context.Pipe()
        ranks = range(first, loaders, processes)
        given = (cluster.endpoint, way, ranks, loaders, spread_s, gate, theirs)
        process = context.Process(target=_begin, args=given)
        process.start()
        theirs.close()
        begun.append((process, ours))
    # After the forks: a process that is forked beside the store's thread may wait for ever for a lock that thread held.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, ours in begun:
        ours.send(store.port)
    for _, ours in begun:
        ours.recv()
    cluster.reset_stats()
    gate.set()
    parts: list[tuple[list[float], list[str]]] = []
    for process, ours in begun:
        try:
            parts.append(ours.recv())
        except EOFError:
            process.join()
            parts.append(([], [f"a process ended with {process.exitcode}"]))
        process.join()
    took = [seconds for some, _ in parts for seconds in some]
    failed = [text for _, some in parts for text in some]
    stats = cluster.stats()
    listings = sum(
        "/v1/buckets/start" in record.url and record.status == 200 for record in cluster.requests()
    )
    return Cost(
        listings,
        stats.count(role="proxy", status=301) + stats.count(role="proxy", status=307),
        stats.connections,
        stats.peak_requests,
        stats.count(status=429),
        failed,
        (statistics.median(took), max(took)) if took else (0.0, 0.0),
    )


def _begin(
    endpoint: str,
    way: str,
    ranks: range,
    loaders: int,
    spread_s: float,
    gate: Any,
    told: Connection,
) -> None:
    """Begin some of the loaders, each in a thread, once the gate is open."""
    options = StoreOptions(endpoint, retry=Retry(attempts=20))
    port = told.recv()
    took: list[float] = []
    failed: list[str] = []
    spread = spread_s if way == WAYS[2] else 0.0

    def one(rank: int, more: dict[str, Any]) -> None:
        gate.wait()
        begin = time.monotonic()
        try:
            pipe: Any = AISSourceLister("ais://start/s-", cluster=options).load_tar().group_samples()
            pipe = pipe.decode().to_tuple("cls").batched(1)
            with ais_loader(
                pipe, rank=rank, world_size=loaders, epoch_steps=1, start_spread_s=spread, **more
            ) as loader:
                for _ in loader:
                    took.append(time.monotonic() - begin)
        except Exception as error:  # noqa: BLE001 - counted
            failed.append(f"{type(error).__name__}: {error}")

    stores: list[dict[str, Any]] = [{} for _ in ranks]
    if way != WAYS[0]:  # a job has its store before it has a loader
        stores = [{"store": dist.TCPStore("127.0.0.1", port, is_master=False)} for _ in ranks]
    threads = [threading.Thread(target=one, args=given) for given in zip(ranks, stores, strict=True)]
    for thread in threads:
        thread.start()
    told.send(None)
    for thread in threads:
        thread.join()
    told.send((took, failed))


def started(
    loaders: int, processes: int, busy_above: int, service_s: float, spread_s: float
) -> Iterator[tuple[str, Cost]]:
    """Yield what each way costs."""
    with LocalCluster(targets=2) as cluster:
        bucket = cluster.client().bucket("start").create()
        for shard in range(loaders):
            content = shard_bytes({f"{shard:05}.cls": b"1"})
            bucket.object(f"s-{shard:05}.tar").get_writer().put_content(content)
        cluster.faults.add(Delay(service_s), at_proxy=False)
        cluster.faults.add(Busy(busy_above, retry_after=1.0), at_proxy=False)
        for way in WAYS:
            yield way, measured(cluster, way, loaders, processes, spread_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loaders", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--busy-above", type=int, default=64)
    parser.add_argument("--service-ms", type=float, default=20.0)
    parser.add_argument("--spread-s", type=float, default=20.0)
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # of each rank that compares with nobody
    print(f"{given.loaders} loaders, 429 above {given.busy_above} requests at a node")
    print(f"{'':18}  listings  redirects  sockets  peak requests  429s  failed  first batch (median, last)")
    service_s = given.service_ms / 1000
    for way, cost in started(
        given.loaders, min(given.processes, given.loaders), given.busy_above, service_s, given.spread_s
    ):
        median_s, last_s = cost.first_batch_s
        print(
            f"{way:18}  {cost.listings:8}  {cost.redirects:9}  {cost.connections:7}  {cost.peak:13}  {cost.refused:4}  "
            f"{len(cost.failed):6}  {median_s:.1f} s, {last_s:.1f} s",
            flush=True,
        )
        for text, times in Counter(cost.failed).most_common(2):
            print(f"  {times} x {text}")


if __name__ == "__main__":
    main()
