"""Promise 9: an error that comes home from a worker process still says class, object, key and offset.

Loaders rebuild exceptions from their text. Every way a worker may be started is tried, with torch's DataLoader and
with torchdata's DataLoader2 under our service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from torchdata_ais import AISSourceLister, MultiProcessingReadingService, Retry, Safety, StoreOptions
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import (
    AISError,
    AuthError,
    ChecksumError,
    ConnectError,
    DecodeError,
    DuplicateFieldError,
    MissingFieldError,
    NonAdjacentKeyError,
    NotATarError,
    NotFoundError,
    ObjectChangedError,
    ReadError,
    SampleError,
    StallError,
    TruncatedShardError,
)
from torchdata_ais.local import Cut, DeadRedirect, FlipBit, LocalCluster, NewVersion, Stall, Status
from torchdata_ais.testing import shard_bytes

BUCKET = "errors"
GOOD = shard_bytes({"a.cls": b"1", "a.json": b"{}", "b.cls": b"2", "b.json": b"{}"})
SHARDS = {
    "good.tar": GOOD,
    "cut.tar": GOOD[:2560],
    "html.tar": b"<html>not found</html>" * 100,
    "twice.tar": shard_bytes([("a.cls", b"1"), ("b.cls", b"2"), ("b.CLS", b"3")]),
    "torn.tar": shard_bytes([("a.cls", b"1"), ("b.cls", b"2"), ("a.json", b"3")]),
    "lacking.tar": shard_bytes([("a.cls", b"1"), ("a.json", b"1"), ("b.cls", b"2")]),
    "unreadable.tar": shard_bytes([("a.json", b"1"), ("b.json", b"{")]),
    "large.tar": shard_bytes([("a.cls", b"1"), ("b.cls", bytes(3000))]),
    **{
        f"{name}.tar": GOOD
        for name in ("absent", "denied", "busy", "broken", "stalled", "dead", "flipped", "changed")
    },
}
RULES = [
    ("absent.tar", Status(404)),
    ("denied.tar", Status(403)),
    ("busy.tar", Status(503)),
    ("broken.tar", Cut(0)),
    ("stalled.tar", Stall(0)),
    ("dead.tar", DeadRedirect()),
    ("flipped.tar", FlipBit(at=520)),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as cluster:
        bucket = cluster.client().bucket(BUCKET).create()
        for name, data in SHARDS.items():
            bucket.object(name).get_writer().put_content(data)
        for name, action in RULES:
            cluster.faults.add(action, object=name)
        cluster.faults.add(Cut(1024), object="changed.tar")
        cluster.faults.add(NewVersion(), object="changed.tar")
        yield cluster


def plain(pipe: Any) -> Any:
    return pipe.group_samples()


def strict(pipe: Any) -> Any:
    return pipe.group_samples(require="cls json").decode()


def decoded(pipe: Any) -> Any:
    return pipe.group_samples().decode()


CASES: dict[str, tuple[type[AISError], Callable[[Any], Any], dict[str, Any], dict[str, Any]]] = {
    "cut": (TruncatedShardError, plain, {}, {"offset": 2560, "key": None}),
    "html": (NotATarError, plain, {}, {"offset": 0}),
    "twice": (
        DuplicateFieldError,
        plain,
        {},
        {"key": "b", "field": "cls", "member": "b.CLS", "offset": 2048},
    ),
    "torn": (NonAdjacentKeyError, plain, {}, {"key": "a", "offset": 2048}),
    "lacking": (MissingFieldError, strict, {}, {"key": "b", "field": "json", "offset": 2048}),
    "unreadable": (DecodeError, decoded, {}, {"key": "b", "field": "json", "offset": 1024}),
    "large": (SampleError, plain, {"safety": Safety(max_sample_bytes=2000)}, {"key": "b", "member": "b.cls"}),
    "absent": (NotFoundError, plain, {}, {"attempt": 1}),
    "denied": (AuthError, plain, {}, {"attempt": 1}),
    "busy": (ReadError, plain, {}, {"attempt": 2, "offset": 0}),
    "broken": (ReadError, plain, {}, {"attempt": 2, "offset": 0}),
    "stalled": (StallError, plain, {}, {"attempt": 2, "offset": 0}),
    "dead": (ConnectError, plain, {}, {"attempt": 2}),
    "flipped": (ChecksumError, plain, {}, {"attempt": 1, "offset": len(GOOD)}),
    "changed": (ObjectChangedError, plain, {}, {"attempt": 2, "offset": 1024}),
}


def make_pipe(cluster: LocalCluster, case: str, token: str | None = None) -> Any:
    _, finish, options, _ = CASES[case]
    stall_timeout = 0.3 if case == "stalled" else 20.0
    store = StoreOptions(
        cluster.endpoint, token, stall_timeout=stall_timeout, retry=Retry(attempts=2, backoff=0.0)
    )
    return finish(
        AISSourceLister(f"ais://{BUCKET}/{case}.tar", cluster=store).load_tar(cluster=store, **options)
    )


def check(error: BaseException, cluster: LocalCluster, case: str) -> None:
    kind, _, _, fields = CASES[case]
    assert type(error) is kind, repr(error)
    assert isinstance(error, AISError)
    assert error.url == f"ais://{BUCKET}/{case}.tar"
    for name, value in fields.items():
        assert getattr(error, name) == value, name


def cases(context: str) -> list[str]:
    """Starting anew is slow: one case shows the way home, which is the same for all."""
    return list(CASES) if context == "fork" else ["unreadable"]


METHODS = ["fork", *(pytest.param(method, marks=pytest.mark.ci) for method in ("spawn", "forkserver"))]


def test_promise_9_in_process(cluster: LocalCluster) -> None:
    for case in CASES:
        with pytest.raises(AISError) as caught:
            list(make_pipe(cluster, case))
        check(caught.value, cluster, case)


@pytest.mark.ci
@pytest.mark.parametrize("context", METHODS)
def test_promise_9_out_of_the_worker_processes_of_a_reading_service(
    cluster: LocalCluster, context: str
) -> None:
    for case in cases(context):
        service = MultiProcessingReadingService(1, multiprocessing_context=context)
        with DataLoader2(make_pipe(cluster, case), reading_service=service) as loader:
            with pytest.raises(AISError) as caught:
                list(loader)
        check(caught.value, cluster, case)


@pytest.mark.ci
@pytest.mark.parametrize("context", METHODS)
def test_promise_9_out_of_the_worker_processes_of_a_data_loader(cluster: LocalCluster, context: str) -> None:
    for case in cases(context):
        loader: Any = DataLoader(
            make_pipe(cluster, case), batch_size=None, num_workers=1, multiprocessing_context=context
        )
        with pytest.raises(AISError) as caught:
            list(loader)
        check(caught.value, cluster, case)


def test_promise_8_no_error_shows_the_token(cluster: LocalCluster) -> None:
    secret = "s3cr3t-token"
    for case in CASES:
        pipe = make_pipe(cluster, case, token=secret)
        with pytest.raises(AISError) as caught:
            list(pipe)
        check(caught.value, cluster, case)
        error: BaseException | None = caught.value
        while error is not None:
            assert secret not in f"{error!r} {error}"
            error = error.__cause__ or error.__context__
        assert secret not in repr(pipe)
