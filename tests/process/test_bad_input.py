"""What a new user gets wrong first: each is one clear error, under DataLoader2 with worker processes, in time.

"Clear" means: of this package's tree, naming the place (bucket, object, key) and what to do next, as the last
lines of the text, whatever traceback of a worker stands before them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import (
    AISFileLoader,
    AISSourceLister,
    MultiProcessingReadingService,
    Retry,
    StoreOptions,
    ais_loader,
)
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import (
    AISError,
    ConnectError,
    DecodeError,
    MissingFieldError,
    NotATarError,
    NotFoundError,
    TruncatedShardError,
    UsageError,
)
from torchdata_ais.testing import example_shards, shard_bytes

HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head></html>" * 20
OBJECTS = {
    "html.tar": HTML,
    "empty.tar": b"",
    "notes.txt": b"hello",
    "cut.tar": shard_bytes({"a.jpg": b"1" * 600, "b.jpg": b"2"})[:2500],
    "jpeg.tar": shard_bytes({"a.jpg": b"not a jpeg", "a.cls": b"1"}),
    "class.tar": shard_bytes({"d/a.cls": b"dog"}),
    "field.tar": shard_bytes({"a.txt": b"x", "a.cls": b"1"}),
}
FAST = Retry(attempts=2, backoff=0.01)


@pytest.fixture
def bucket(ais_bucket: Any) -> str:
    for name, content in OBJECTS.items():
        ais_bucket.object(name).get_writer().put_content(content)
    return str(ais_bucket.name)


def epoch(
    source: Any, endpoint: str, options: StoreOptions | None = None, specs: str = "jpg cls"
) -> list[Any]:
    """Run the basic chain under DataLoader2 with two workers."""
    pipe: Any = AISSourceLister(source, cluster=options or endpoint)
    chain = pipe.shuffle().load_tar().group_samples().decode("torchrgb8", size=32).to_tuple(specs).batched(4)
    with DataLoader2(chain, reading_service=MultiProcessingReadingService(2)) as loader:
        return list(loader)


def said(error: AISError) -> str:
    """The message without the worker's traceback."""
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    return str(error).rpartition(name)[2]


@pytest.mark.parametrize(
    ("source", "kind", "says", "todo"),
    [
        ("ais://no-such-bucket", NotFoundError, "no-such-bucket", "Check the spelling"),
        ("ais://{bucket}/train-", NotFoundError, "no object", "Check bucket and prefix"),
        ("ais://{bucket}/s-{{0..3}}.tar", NotFoundError, "does not exist", "Check the spelling"),
        ("aix://{bucket}", UsageError, "Unknown scheme 'aix'", "Use one of ais"),
        ("ais://", UsageError, "names no bucket", "Write ais://bucket"),
        ("ais:/{bucket}/s.tar", UsageError, "without slashes", "Write ais://"),
        ("ais://{bucket}/s-{{000..003.tar", UsageError, "braces", "Write name-{000..099}.tar"),
        ("ais://{bucket}/html.tar", NotATarError, "an HTML page", "regex="),
        ("ais://{bucket}/notes.txt", NotATarError, "plain text", "regex="),
        ("ais://{bucket}/empty.tar", TruncatedShardError, "an empty object", "write it again"),
        ("ais://{bucket}/cut.tar", TruncatedShardError, "ends at byte 2500", "write it again"),
        ("ais://{bucket}/class.tar", DecodeError, "Field 'cls' of sample 'd/a'", "on_error="),
        ("ais://{bucket}/jpeg.tar", DecodeError, "Field 'jpg' of sample 'a'", ""),
        ("ais://{bucket}/field.tar", MissingFieldError, "no field 'jpg', only ['cls', 'txt']", "alternatives"),
        (["ais://{bucket}/field.tar", 3], UsageError, "int is no source", "Pass an SDK bucket"),
    ],
)  # fmt: skip
def test_each_is_one_clear_error(
    ais_cluster: Any, bucket: str, source: Any, kind: type[AISError], says: str, todo: str
) -> None:
    sources = source if isinstance(source, list) else [source]
    sources = [item.format(bucket=bucket) if isinstance(item, str) else item for item in sources]
    with pytest.raises(kind) as caught:
        epoch(sources, ais_cluster.endpoint)
    text = said(caught.value)
    assert says in text
    assert todo in text
    if kind is not UsageError and "no such file" not in says:
        assert bucket in (caught.value.url or "") or "no-such-bucket" in (caught.value.url or "")


def test_an_error_of_a_sample_names_object_key_field_and_offset(ais_cluster: Any, bucket: str) -> None:
    with pytest.raises(DecodeError) as caught:
        epoch(f"ais://{bucket}/jpeg.tar", ais_cluster.endpoint)
    error = caught.value
    assert (error.key, error.field, error.offset) == ("a", "jpg", 0)
    assert error.url is not None
    assert error.url == f"ais://{bucket}/jpeg.tar"


def test_an_error_inside_a_member_names_it(ais_cluster: Any, bucket: str) -> None:
    with pytest.raises(TruncatedShardError) as caught:
        epoch(f"ais://{bucket}/cut.tar", ais_cluster.endpoint)
    assert (caught.value.offset, "inside" in said(caught.value)) == (2500, True)


def test_a_cluster_that_is_not_there_is_named(bucket: str) -> None:
    options = StoreOptions(endpoint="http://127.0.0.1:9", retry=FAST)
    for source in (f"ais://{bucket}", f"ais://{bucket}/html.tar"):
        with pytest.raises(ConnectError) as caught:
            epoch(source, "", options)
        assert "no connection to" in said(caught.value)
        assert "127.0.0.1:9" in said(caught.value)
        assert "AIS_ENDPOINT" in said(caught.value)
        assert caught.value.attempt == 2


def test_no_cluster_named_at_all_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(UsageError) as caught:
        epoch("ais://pets", "")
    assert "AIS_ENDPOINT" in said(caught.value)


def test_a_malformed_endpoint_and_an_unknown_spec_fail_when_the_chain_is_built() -> None:
    with pytest.raises(UsageError, match="no address of a cluster"):
        AISSourceLister("ais://pets", cluster="not a url")
    pipe: Any = AISSourceLister("ais://pets", cluster="http://h:1")
    with pytest.raises(UsageError, match="Did you mean torchrgb"):
        pipe.load_tar().group_samples().decode("tochrgb")


LAMBDA = """
import sys
sys.modules["dill"] = None  # with dill, lambdas travel
import warnings
warnings.filterwarnings("ignore", message="(Lambda|Local) function is not supported")
from torchdata_ais import AISFileLoader
from torchdata_ais import ais_loader
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders import ais_loader
from torchdata_ais.testing import example_shards

pipe = AISFileLoader(example_shards()).group_samples().map(lambda sample: sample)
try:
    with ais_loader(pipe, num_workers=2, multiprocessing_context="spawn") as loader:
        list(loader)
except UsageError as error:
    print(error)
"""


@pytest.mark.filterwarnings("ignore:Lambda function is not supported")
def test_a_lambda_under_worker_processes_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dill", None)  # with dill, lambdas travel
    pipe: Any = AISFileLoader(example_shards(tmp_path)).group_samples().map(lambda sample: sample)
    with pytest.raises(UsageError, match="The pipe cannot be sent to worker processes: ") as caught:
        with ais_loader(pipe, num_workers=2, multiprocessing_context="spawn") as loader:
            list(loader)
    assert "pip install dill" in str(caught.value)


@pytest.mark.ci
def test_a_lambda_in_a_program_says_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", LAMBDA], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("The pipe cannot be sent to worker processes: "), done.stderr
    assert "pip install dill" in done.stdout
