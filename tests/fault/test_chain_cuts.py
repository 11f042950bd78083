"""Promises 1 and 2 over the whole chain: shards stored cut, and shards that break off on the wire.

The stored ones have the right length and the right checksum for what they are; on the wire, the length that was
promised says more than what comes.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, Retry, StoreOptions
from torchdata_ais.errors import NotATarError, ReadError, TruncatedShardError
from torchdata_ais.local import Cut, LocalCluster, Reset
from torchdata_ais.testing import shard_bytes

KEYS = ["000000", "000001", "000002"]


def members_of(shard: str) -> list[tuple[str, bytes]]:
    return [
        (f"{key}.{field}", f"{shard} {key} {field} ".encode() * (5 + 20 * place))
        for key in KEYS
        for place, field in enumerate(("cls", "txt"))
    ]


def archive(shard: str) -> bytes:
    """An archive with its two blocks of zeros and no further padding."""
    content = sum(512 + len(data) + -len(data) % 512 for _, data in members_of(shard))
    return shard_bytes(members_of(shard))[: content + 1024]


DATA = archive("cut")
CUTS = sorted(
    {at + step for at in range(0, len(DATA), 512) for step in (-1, 0, 1, 200) if 0 <= at + step < len(DATA)}
)
SAMPLES = {
    shard: [(key, *(data for name, data in members_of(shard) if name.startswith(key))) for key in KEYS]
    for shard in ("cut", "whole")
}


def arrived(cut: int) -> list[Any]:
    """The samples of a shard that ends at `cut` that are known whole."""
    with tarfile.open(fileobj=io.BytesIO(DATA)) as tar:
        first = [info for info in tar.getmembers() if info.name.endswith(".cls")]
    proof = [info.offset_data + info.size + -info.size % 512 for info in first[1:]] + [len(DATA) - 512]
    return [sample for sample, needed in zip(SAMPLES["cut"], proof, strict=True) if cut >= needed]


BETWEEN = {
    "fused": None,
    "map": lambda pipe: pipe.map(lambda item: item),
    "filter": lambda pipe: pipe.filter(lambda item: True),
}
# What the README's command runs of all: each policy, action and way between comes once at least.
STORED = [("raise", "fused"), ("warn", "map"), ("skip", "filter")]
WIRE = [("raise", Cut, "fused"), ("skip", Reset, "map")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as cluster:
        bucket = cluster.client().bucket("cuts").create()
        bucket.object("a.tar").get_writer().put_content(DATA)
        bucket.object("b.tar").get_writer().put_content(archive("whole"))
        for cut in CUTS:
            bucket.object(f"stored/{cut:05d}/a.tar").get_writer().put_content(DATA[:cut])
        yield cluster


def chain(
    cluster: LocalCluster, first: str, *, attempts: int = 1, between: Any = None, **options: Any
) -> Any:
    store = StoreOptions(cluster.endpoint, retry=Retry(attempts, backoff=0.0), stall_timeout=2.0)
    urls = [url for name in (first, "b.tar") for url in AISSourceLister(f"ais://cuts/{name}", cluster=store)]
    pipe = AISSourceLister(urls).load_tar(cluster=store, **options)
    return (between(pipe) if between else pipe).group_samples()


def collect(pipe: Any) -> tuple[dict[str, list[Any]], Exception | None]:
    """What came of the two shards, and the error at the end."""
    got: dict[str, list[Any]] = {"cut": [], "whole": []}
    error = None
    try:
        for sample in pipe:
            key, _, *fields = sample.values()
            got[fields[0].split()[0].decode()].append((key, *fields))
    except Exception as caught:
        error = caught
    return got, error


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("policy", "between"),
    [
        pytest.param(*case, marks=() if case in STORED else pytest.mark.ci)
        for case in itertools.product(("raise", "warn", "skip"), BETWEEN)
    ],
)
def test_promise_2_a_shard_stored_cut(cluster: LocalCluster, policy: str, between: str) -> None:
    for number, cut in enumerate(CUTS):
        pipe = chain(
            cluster,
            f"stored/{cut:05d}/a.tar",
            on_error=policy,
            between=BETWEEN[between],
            open_shards=1 + number % 4,
        )
        got, error = collect(pipe)
        assert got["cut"] == arrived(cut), cut
        if cut >= len(DATA) - 512:
            assert error is None
            assert got["whole"] == SAMPLES["whole"]
        elif policy == "raise":
            assert isinstance(
                error, TruncatedShardError if cut >= 6 else (NotATarError, TruncatedShardError)
            ), cut
            assert f"stored/{cut:05d}/a.tar" in error.url
            assert got["whole"] == SAMPLES["whole"][: len(got["whole"])]
        else:
            assert error is None
            assert got["whole"] == SAMPLES["whole"], cut


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("policy", "action", "between"),
    [
        pytest.param(*case, marks=() if case in WIRE else pytest.mark.ci)
        for case in itertools.product(("raise", "skip"), (Cut, Reset), BETWEEN)
    ],
)
def test_promise_2_a_shard_that_breaks_off_on_the_wire(
    cluster: LocalCluster, policy: str, action: Any, between: str
) -> None:
    for number, cut in enumerate(CUTS):
        rule = cluster.faults.add(action(cut), object="a.tar")
        pipe = chain(cluster, "a.tar", on_error=policy, between=BETWEEN[between], open_shards=1 + number % 4)
        got, error = collect(pipe)
        cluster.faults.clear(rule)
        # The block that was cut short is passed on, too: what came of it is what the response had.
        assert got["cut"] == SAMPLES["cut"][: len(got["cut"])], cut
        assert len(got["cut"]) <= len(arrived(cut)), cut
        if policy == "raise":
            assert isinstance(error, ReadError), cut
            assert f"broke off at byte {cut} of {len(DATA)}" in str(error)
            assert error.offset == cut
            assert error.attempt == 1
        else:
            assert error is None
            assert got["whole"] == SAMPLES["whole"], cut


@pytest.mark.parametrize("action", [Cut, pytest.param(Reset, marks=pytest.mark.ci)])
def test_promise_1_a_shard_that_breaks_off_once_is_read_on(cluster: LocalCluster, action: Any) -> None:
    for cut in CUTS:
        rule = cluster.faults.add(action(cut), object="a.tar", nth=1)
        got, error = collect(chain(cluster, "a.tar", attempts=2))
        assert cluster.faults.fired(rule) == 1
        cluster.faults.clear(rule)
        assert error is None, cut
        assert got == SAMPLES, cut
