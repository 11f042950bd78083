from __future__ import annotations

import io
import random
from dataclasses import replace

import pytest
import xxhash

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import ConnectError, NotFoundError, ReadError, UsageError
from torchdata_ais.store import (
    Retry,
    StoreOptions,
    delete_object,
    head_object,
    object_exists,
    open_blocks,
    put_object,
    resolve_options,
    with_neighbours,
)
from torchdata_ais.testing import shard_bytes

BODY = random.Random(0).randbytes(3_000_000)


class Forward(io.RawIOBase):
    """A stream that cannot be read again."""

    def __init__(self, data):
        self._data = io.BytesIO(data)

    def readable(self):
        return True

    def read(self, size=-1):
        return self._data.read(size)


@pytest.fixture
def store(ais_cluster):
    return replace(resolve_options(endpoint=ais_cluster.endpoint), retry=Retry(attempts=3, backoff=0.0))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda body: body, id="bytes"),
        pytest.param(memoryview, id="view"),
        pytest.param(io.BytesIO, id="file"),
        pytest.param(Forward, id="stream"),
        pytest.param(
            lambda body: (body[at : at + 70_000] for at in range(0, len(body), 70_000)), id="blocks"
        ),
    ],
)
@pytest.mark.parametrize("size", [0, 1, len(BODY)])
def test_what_is_put_comes_back(ais_bucket, store, make, size):
    body = BODY[:size]
    url = put_object(f"ais://{ais_bucket.name}/a b?.bin", make(body), store, size=size)
    assert url.size == size
    known = head_object(url, store)
    assert (known.size, known.checksum, known.version) == (size, url.checksum, "1")
    with open_blocks(known, store) as source:
        assert b"".join(source) == body
        assert source.verified is True


def test_a_file_is_put_from_where_it_stands(ais_bucket, store):
    file = io.BytesIO(b"0123456789")
    file.seek(4)
    url = put_object(f"ais://{ais_bucket.name}/f", file, store)
    with open_blocks(url, store) as source:
        assert b"".join(source) == b"456789"


class Counted(io.BytesIO):
    came = 0

    def read(self, size=-1):
        data = super().read(size)
        self.came += len(data)
        return data


def test_what_was_hashed_before_is_read_once(ais_bucket, store):
    checksum = xxhash.xxh64_hexdigest(BODY)
    file = Counted(BODY)
    url = put_object(f"ais://{ais_bucket.name}/f", file, store, size=len(BODY), checksum=checksum)
    assert head_object(url, store).checksum == url.checksum == checksum
    nobody = replace(store, endpoint="http://127.0.0.1:1", retry=Retry(1))
    for known, before in (("", len(BODY)), (checksum, 0)):
        file = Counted(BODY)
        with pytest.raises(ConnectError):
            put_object("ais://b/f", file, nobody, size=len(BODY), checksum=known)
        assert file.came == before


def test_promise_1_a_file_that_changed_after_it_was_hashed_is_not_stored(ais_bucket, store):
    checksum = xxhash.xxh64_hexdigest(BODY)
    changed = io.BytesIO(BODY[:-1] + b"?")
    with pytest.raises(ReadError, match="CHECKSUM"):
        put_object(f"ais://{ais_bucket.name}/f", changed, store, size=len(BODY), checksum=checksum)
    assert not object_exists(f"ais://{ais_bucket.name}/f", store)


def test_deleting_and_asking(ais_bucket, store):
    name = f"ais://{ais_bucket.name}/o"
    assert not object_exists(name, store)
    put_object(name, b"x", store)
    assert object_exists(name, store)
    delete_object(name, store)
    assert not object_exists(name, store)
    delete_object(name, store, missing_ok=True)
    with pytest.raises(NotFoundError, match="404"):
        delete_object(name, store)
    with pytest.raises(NotFoundError):
        head_object(name, store)


def test_a_put_that_fails_is_sent_again(ais_bucket, store, ais_faults):
    from torchdata_ais.local import Status

    for kind in (lambda: BODY, lambda: Forward(BODY)):
        rule = ais_faults.add(Status(503), verb="PUT", nth={1, 2})
        url = put_object(f"ais://{ais_bucket.name}/again", kind(), store)
        assert ais_faults.fired(rule) == 2
        with open_blocks(url, store) as source:
            assert b"".join(source) == BODY
        ais_faults.clear()
    ais_faults.add(Status(503), verb="PUT")
    with pytest.raises(ReadError, match="tried 3 times"):
        put_object(f"ais://{ais_bucket.name}/never", b"x", store)


def test_an_unknown_bucket_is_named(store):
    with pytest.raises(NotFoundError, match="no-such-bucket"):
        put_object("ais://no-such-bucket/o", BODY, store)
    assert not object_exists("ais://no-such-bucket/o", store)


def test_calls_that_cannot_work_are_refused(store):
    for url in ("ais://b", "/file", "http://h/x", "-"):
        with pytest.raises(UsageError):
            put_object(url, b"", store)
    with pytest.raises(UsageError, match="size"):
        put_object("ais://b/o", b"123", store, size=4)
    with pytest.raises(UsageError, match="AIS_ENDPOINT"):
        put_object("ais://b/o", b"", StoreOptions())


@pytest.mark.parametrize("name", ["a\tb", "a\n", "\x7f", "a\udcff", "../a", "a/./b", "a" * 5000])
def test_names_that_no_object_can_have_are_not_stored(ais_bucket, store, name):
    def never():
        raise AssertionError("the data is not asked for")
        yield b""

    with pytest.raises(UsageError, match=r"No object can be called .* Choose another name"):
        put_object(f"ais://{ais_bucket.name}/{name}", never(), store)


@pytest.mark.parametrize(
    ("numbers", "wanted", "told"),
    [
        (["0", "1", "2", "4"], "t-{0..4}", r"1 number is missing between 0 and 4: t-3\.tar\. Name all"),
        (
            ["1", "2", "10"],
            "t-{1..10}",
            r"7 numbers are missing between 1 and 10: t-3\.tar, t-4\.tar, t-5\.tar and",
        ),
        (
            ["000", "003"],
            "t-{000..003}",
            r"2 numbers are missing between 0 and 3: t-001\.tar, t-002\.tar\. Name",
        ),
        (["9", "10"], "t-{9..12}", r"Name only what is there, t-9\.tar to t-10\.tar"),
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_a_gap_in_the_numbers_of_shards_names_the_missing_ones(
    ais_cluster, ais_bucket, tmp_path, numbers, wanted, told, local
):
    base = str(tmp_path) if local else f"ais://{ais_bucket.name}"
    for number in numbers:
        data = shard_bytes({f"{number}.txt": b"1"})
        if local:
            (tmp_path / f"t-{number}.tar").write_bytes(data)
        else:
            ais_bucket.object(f"t-{number}.tar").get_writer().put_content(data)
    with pytest.raises(NotFoundError, match=told.replace("t-", f"{base}/t-" if local else "t-")) as caught:
        list(AISSourceLister(f"{base}/{wanted}.tar", cluster=ais_cluster).load_tar())
    if " by " in caught.value.todo:  # what the message says is done
        named = caught.value.todo.rpartition(" by ")[2]
        pipe = AISSourceLister(named, cluster=ais_cluster).load_tar()
        assert len(list(pipe)) == len(numbers)


@pytest.mark.parametrize(
    "name", ["http://h/my%20data.tar", "http://h/a%2d.tar", "/none/all%done.tar", "/none/a.tar"]
)
def test_a_percent_sign_alone_is_not_a_placeholder(name: str) -> None:
    error = NotFoundError.at("it is not there", url=name)
    assert with_neighbours(error, name, StoreOptions()) is error


@pytest.mark.parametrize(
    "name", ["/none/s-%06d.tar", "/none/s-%d.tar", "/none/s-{i}.tar", "/none/s-{i:03d}.tar"]
)
def test_a_placeholder_is_named(name: str) -> None:
    error = NotFoundError.at("it is not there", url=name)
    assert "is a placeholder" in str(with_neighbours(error, name, StoreOptions()))
