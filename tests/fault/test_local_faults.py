"""Faults by rule: each does what it says, to the requests it names, and to no others."""

from __future__ import annotations

import http.client
import io
import socket
import tarfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import xxhash

from torchdata_ais.local import (
    Action,
    Bandwidth,
    Cut,
    CutSlow,
    DeadRedirect,
    Delay,
    DropEntry,
    EmptyEntry,
    EndBatch,
    Fault,
    FlipBit,
    LocalCluster,
    NewVersion,
    Placeholder,
    Reset,
    Stall,
    Status,
    SwapEntries,
    WholeObject,
    WrongChecksum,
)

BODY = bytes(range(256)) * 12_000  # 3 MB: more than the sockets hold


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as running:
        bucket = running.client().bucket("b").create()
        bucket.object("big").get_writer().put_content(BODY)
        bucket.object("small").get_writer().put_content(b"0123456789")
        yield running


@pytest.fixture(autouse=True)
def no_faults_left(cluster: LocalCluster) -> Iterator[None]:
    yield
    cluster.faults.clear()


def get(cluster: LocalCluster, name: str = "small", **headers: str) -> requests.Response:
    return requests.get(f"{cluster.endpoint}/v1/objects/b/{name}", headers=headers, timeout=60)


def read_until_broken(cluster: LocalCluster, name: str) -> tuple[int, bytes, Exception | None]:
    """The promised length, what came, and how it ended."""
    place = get_location(cluster, name)
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    connection.request("GET", f"{place.path}?{place.query}")
    response = connection.getresponse()
    length = int(response.headers["Content-Length"])
    assert response.fp is not None
    got = bytearray()
    try:
        while data := response.fp.read1(65536):
            got += data
            if len(got) >= length:
                break
    except OSError as error:
        return length, bytes(got), error
    finally:
        connection.close()
    return length, bytes(got), None


def get_location(cluster: LocalCluster, name: str) -> Any:
    answer = requests.get(f"{cluster.endpoint}/v1/objects/b/{name}", allow_redirects=False, timeout=60)
    return urlsplit(answer.headers["Location"])


@pytest.mark.parametrize("name", ["small", "big"])
@pytest.mark.parametrize("at", [0, 1, 9, -1])
def test_cut_promises_all_and_sends_exactly_the_first_bytes(
    cluster: LocalCluster, name: str, at: int
) -> None:
    body = BODY if name == "big" else b"0123456789"
    cluster.faults.add(Cut(at), object=name)
    length, got, error = read_until_broken(cluster, name)
    assert (length, got, error) == (len(body), body[:at], None)


@pytest.mark.parametrize("at", [0, 5, 1_000_000, -1])
def test_reset_breaks_the_connection_after_exactly_the_first_bytes(cluster: LocalCluster, at: int) -> None:
    name, body = ("small", b"0123456789") if at == 5 else ("big", BODY)
    cluster.faults.add(Reset(at), object=name)
    length, got, error = read_until_broken(cluster, name)
    assert (length, got) == (len(body), body[:at])
    assert isinstance(error, ConnectionResetError)


@pytest.mark.ci
def test_who_takes_no_byte_for_too_long_is_cut_off_and_who_takes_some_is_not(cluster: LocalCluster) -> None:
    cluster.faults.add(CutSlow(0.3), object="big")
    assert get(cluster, "big").content == BODY
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        place = get_location(cluster, "big")
        sock.settimeout(10)
        sock.connect((place.hostname, place.port))
        sock.sendall(f"GET {place.path}?{place.query} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        got = sock.recv(100)
        time.sleep(1.0)
        try:
            while piece := sock.recv(1 << 20):
                got += piece
        except ConnectionResetError:
            pass
        else:
            pytest.fail("the connection was not cut")
    assert len(got) < len(BODY)


def test_stall_goes_on_after_its_time(cluster: LocalCluster) -> None:
    cluster.faults.add(Stall(at=4, seconds=0.5))
    begun = time.monotonic()
    assert get(cluster).content == b"0123456789"
    assert time.monotonic() - begun >= 0.5


def test_stall_without_end_lasts_until_the_client_leaves(cluster: LocalCluster) -> None:
    number = cluster.faults.add(Stall(at=4), nth=1)
    url = f"{cluster.endpoint}/v1/objects/b/small"
    with pytest.raises(requests.RequestException):
        requests.get(url, timeout=1.0).content  # noqa: B018
    assert cluster.faults.fired(number) == 1
    assert get(cluster).content == b"0123456789"


@pytest.mark.parametrize(("at", "bit"), [(0, 0), (5, 7), (-1, 3), (2_000_000, 1)])
def test_flip_bit_flips_that_bit_only(cluster: LocalCluster, at: int, bit: int) -> None:
    cluster.faults.add(FlipBit(at, bit), object="big")
    expected = bytearray(BODY)
    expected[at] ^= 1 << bit
    answer = get(cluster, "big")
    assert answer.content == bytes(expected)
    assert answer.headers["Ais-Checksum-Value"] == xxhash.xxh64_hexdigest(BODY)


def test_offsets_count_in_the_body_of_that_answer(cluster: LocalCluster) -> None:
    cluster.faults.add(FlipBit(0))
    assert get(cluster, Range="bytes=2-4").content == bytes([ord("2") ^ 1]) + b"34"


def test_an_offset_behind_the_end_does_nothing(cluster: LocalCluster) -> None:
    cluster.faults.add(Cut(11))
    cluster.faults.add(FlipBit(10))
    assert get(cluster).content == b"0123456789"


def test_status_answers_with_it_and_its_retry_after(cluster: LocalCluster) -> None:
    cluster.faults.add(Status(503, retry_after=2), times=1)
    answer = get(cluster)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.json()["message"].endswith("injected fault")
    assert get(cluster).status_code == 200


def test_a_put_met_by_a_status_leaves_the_connection_usable(cluster: LocalCluster) -> None:
    cluster.faults.add(Status(429), verb="PUT", times=1)
    with requests.Session() as session:
        url = f"{cluster.endpoint}/v1/objects/b/new"
        assert session.put(url, data=b"x" * 2_000_000, timeout=60).status_code == 429
        assert session.get(url, timeout=60).status_code == 404
        assert session.put(url, data=b"x" * 2_000_000, timeout=60).status_code == 200


def test_delay_waits_before_the_answer(cluster: LocalCluster) -> None:
    cluster.faults.add(Delay(0.3))
    begun = time.monotonic()
    assert get(cluster).status_code == 200
    assert time.monotonic() - begun >= 0.3


def test_bandwidth_is_not_exceeded(cluster: LocalCluster) -> None:
    cluster.faults.add(Bandwidth(6_000_000), object="big")
    begun = time.monotonic()
    assert get(cluster, "big").content == BODY
    # What the last pause leaves over may be under way at once.
    assert time.monotonic() - begun >= len(BODY) / 6_000_000 * 0.9


def test_wrong_checksum_changes_the_header_only(cluster: LocalCluster) -> None:
    cluster.faults.add(WrongChecksum())
    answer = get(cluster)
    assert answer.content == b"0123456789"
    assert answer.headers["Ais-Checksum-Value"] != xxhash.xxh64_hexdigest(answer.content)
    assert len(answer.headers["Ais-Checksum-Value"]) == 16


@pytest.mark.parametrize("same_bytes", [False, True])
def test_new_version_meets_the_next_request(cluster: LocalCluster, same_bytes: bool) -> None:
    cluster.client().bucket("b").object("new-version").get_writer().put_content(b"\x00\x0f")
    cluster.faults.add(NewVersion(same_bytes=same_bytes), object="new-version", nth=1)
    first, second = get(cluster, "new-version"), get(cluster, "new-version")
    before = int(first.headers["Ais-Version"])
    assert first.content == b"\x00\x0f"
    assert int(second.headers["Ais-Version"]) == before + 1
    assert second.content == (b"\x00\x0f" if same_bytes else b"\xff\xf0")
    assert second.headers["Ais-Checksum-Value"] == xxhash.xxh64_hexdigest(second.content)


def test_a_cut_and_a_new_version_are_an_object_replaced_in_mid_read(cluster: LocalCluster) -> None:
    cluster.client().bucket("b").object("mid").get_writer().put_content(b"0123456789")
    cluster.faults.add(Cut(4), object="mid", nth=1)
    cluster.faults.add(NewVersion(), object="mid", nth=1)
    _, got, _ = read_until_broken(cluster, "mid")
    rest = get(cluster, "mid", Range="bytes=4-")
    assert got == b"0123"
    assert rest.content == bytes(255 - value for value in b"456789")


def test_dead_redirect_leads_to_a_refused_connection(cluster: LocalCluster) -> None:
    cluster.faults.add(DeadRedirect(), nth=1)
    with pytest.raises(requests.ConnectionError, match="refused"):
        get(cluster)
    assert get(cluster).status_code == 200


def test_drop_entry_loses_one_name_of_a_page(cluster: LocalCluster) -> None:
    bucket = cluster.client().bucket("listed").create()
    for number in range(6):
        bucket.object(f"s-{number}").get_writer().put_content(b"x")
    cluster.faults.add(DropEntry("s-4"), verb="LIST", bucket="listed", nth=2)
    names = [entry.name for entry in bucket.list_all_objects(page_size=3)]
    assert names == ["s-0", "s-1", "s-2", "s-3", "s-5"]
    bucket.delete()


def test_rules_meet_only_what_they_name(cluster: LocalCluster) -> None:
    cluster.faults.add(Status(500), object="s*")
    cluster.faults.add(Status(501), verb="HEAD")
    cluster.faults.add(Status(502), bucket="other")
    assert get(cluster, "small").status_code == 500
    assert get(cluster, "big").status_code == 200
    url = f"{cluster.endpoint}/v1/objects/b/big"
    assert requests.head(url, allow_redirects=True, timeout=60).status_code == 501


def test_nth_times_and_clear(cluster: LocalCluster) -> None:
    number = cluster.faults.add(Status(500), nth={2, 4})
    assert [get(cluster).status_code for _ in range(5)] == [200, 500, 200, 500, 200]
    assert cluster.faults.fired(number) == 2
    cluster.faults.clear(number)
    cluster.faults.add(Status(500), times=2)
    assert [get(cluster).status_code for _ in range(3)] == [500, 500, 200]


def test_probability_is_reproducible(cluster: LocalCluster) -> None:
    def outcomes(seed: int) -> list[int]:
        cluster.faults.clear()
        cluster.faults.add(Status(500), probability=0.5, seed=seed)
        return [get(cluster).status_code for _ in range(20)]

    first = outcomes(1)
    assert set(first) == {200, 500}
    assert outcomes(1) == first
    assert outcomes(2) != first


def test_rules_can_act_at_the_proxy(cluster: LocalCluster) -> None:
    cluster.faults.add(Status(503), at_proxy=True, times=1)
    cluster.reset_stats()
    assert get(cluster).status_code == 503
    assert cluster.stats().requests == {("proxy", "GET", 503): 1}


def test_batches_and_archives_can_be_cut_without_a_false_end(cluster: LocalCluster) -> None:
    cluster.faults.add(Cut(600), verb="BATCH")
    client = cluster.client(retry_config=None)
    body: Any = {
        "in": [{"objname": "small"}, {"objname": "big"}],
        "mime": ".tar",
        "coer": False,
        "strm": True,
    }
    url = f"{client._request_client.base_url}/ml/moss/b"
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        requests.get(url, json=body, timeout=60).content  # noqa: B018


def batch(cluster: LocalCluster) -> bytes:
    entries = [{"objname": "small", "start": 1, "length": 2}, {"objname": "small", "start": 3, "length": 4}]
    body: Any = {"in": entries, "mime": ".tar", "coer": True, "onob": True, "strm": True}
    return requests.get(f"{cluster.endpoint}/v1/ml/moss/b?provider=ais", json=body, timeout=60).content


FIRST, SECOND = ("small", b"12"), ("small", b"3456")


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (EndBatch(0), []),
        (EndBatch(1), [FIRST]),
        (EndBatch(2), [FIRST, SECOND]),
        (EndBatch(-1), [FIRST]),
        (WholeObject(1), [FIRST, ("small", b"0123456789")]),
        (WholeObject(-2), [("small", b"0123456789"), SECOND]),
        (WholeObject(2), [FIRST, SECOND]),
        (Placeholder(0), [("__404__/small", b""), SECOND]),
        (EmptyEntry(0), [("small", b""), SECOND]),
        (SwapEntries(), [SECOND, FIRST]),
        (SwapEntries(0, 2), [FIRST, SECOND]),
    ],
)
def test_a_batch_answers_what_was_not_asked_for(
    cluster: LocalCluster, action: Action, expected: list[tuple[str, bytes]]
) -> None:
    cluster.faults.add(action, verb="BATCH", times=1)
    with tarfile.open(fileobj=io.BytesIO(batch(cluster))) as tar:
        assert [(item.name, tar.extractfile(item).read()) for item in tar] == expected  # type: ignore[union-attr]
    assert len(batch(cluster)) == 3072


@pytest.mark.parametrize(("at", "expected"), [(0, 0), (700, 700), (-1, 3071), (-1024, 2048)])
def test_a_batch_is_cut_where_the_fault_says_from_its_end_too(
    cluster: LocalCluster, at: int, expected: int
) -> None:
    cluster.faults.add(Cut(at), verb="BATCH")
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        batch(cluster)
    assert cluster.requests()[-1].bytes_sent == expected


def test_faults_can_be_there_from_the_start() -> None:
    rules = [Fault(Status(418), verb="*", bucket="tea", at_proxy=False)]
    with LocalCluster(targets=1, faults=rules) as cluster:
        assert requests.head(f"{cluster.endpoint}/v1/buckets/tea", timeout=60).status_code == 418
        cluster.reset()
        assert requests.head(f"{cluster.endpoint}/v1/buckets/tea", timeout=60).status_code == 404
