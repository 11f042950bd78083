from __future__ import annotations

import os
import sys

import pytest

from torchdata_ais.errors import UsageError
from torchdata_ais.store import Retry, StoreOptions, resolve_options
from torchdata_ais.store.transport import pools
from torchdata_ais.store.transport.attempts import Attempts
from torchdata_ais.store.transport.pools import Cancel


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("AIS_") or name.lower().endswith("_proxy") or name.endswith("_CA_BUNDLE"):
            monkeypatch.delenv(name)


def sdk_client(*args, **kwargs):
    from aistore.sdk import Client

    return Client(*args, **kwargs)


def test_argument_before_client_before_environment(monkeypatch):
    monkeypatch.setenv("AIS_ENDPOINT", "http://env:1")
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "env")
    assert (resolve_options().endpoint, resolve_options().token) == ("http://env:1", "env")
    client = sdk_client("http://client:2", token="client")
    found = resolve_options(client=client)
    assert (found.endpoint, found.token) == ("http://client:2", "client")
    found = resolve_options(client=client, endpoint="http://given:3", token="given")
    assert (found.endpoint, found.token) == ("http://given:3", "given")


def test_buckets_and_groups_stand_for_their_client():
    bucket = sdk_client("http://client:2", token="t").bucket("b")
    for source in (bucket, bucket.client, bucket.objects(obj_names=["o"])):
        assert resolve_options(client=source).endpoint == "http://client:2"


def test_the_variables_of_the_sdk_count(monkeypatch):
    for name, value in {
        "AIS_CLIENT_CA": "/ca",
        "AIS_CRT": "/crt",
        "AIS_CRT_KEY": "/key",
        "AIS_SKIP_VERIFY_CRT": "true",
        "AIS_CONNECT_TIMEOUT": "7",
        "AIS_READ_TIMEOUT": "0",
        "AIS_MAX_CONN_POOL": "5",
    }.items():
        monkeypatch.setenv(name, value)
    found = resolve_options()
    assert (found.ca_cert, found.client_cert, found.skip_verify) == ("/ca", ("/crt", "/key"), True)
    assert (found.connect_timeout, found.first_byte_timeout, found.stall_timeout) == (7.0, None, None)
    assert found.pool_size == 5


def test_timeouts_and_tls_of_a_client_count_unless_they_are_its_defaults():
    found = resolve_options(client=sdk_client("https://h", timeout=(1, 2), ca_cert="/ca", client_cert="/pem"))
    assert (found.connect_timeout, found.stall_timeout, found.ca_cert, found.client_cert) == (
        1,
        2,
        "/ca",
        "/pem",
    )
    assert (
        resolve_options(client=sdk_client("http://h")).first_byte_timeout == StoreOptions().first_byte_timeout
    )


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("http://h:51080/", "http://h:51080"),
        ("h:51080", "http://h:51080"),
        ("https://h/v1", "https://h"),
        ("http://[::1]:51080", "http://[::1]:51080"),
        ("  ", ""),
    ],
)
def test_endpoints_are_cleaned(given, endpoint):
    assert resolve_options(endpoint=given).endpoint == endpoint


@pytest.mark.parametrize(
    "given", ["ftp://h", "http://", "http://h:x", "http://h:99999", "http://h?x=1", "a b"]
)
def test_malformed_endpoints_are_refused(given):
    with pytest.raises(UsageError, match="AIS_ENDPOINT"):
        resolve_options(endpoint=given)


@pytest.mark.parametrize(("name", "value"), [("AIS_READ_TIMEOUT", "soon"), ("AIS_CONNECT_TIMEOUT", "-1")])
def test_malformed_variables_are_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=name):
        resolve_options()


def test_bad_options_are_refused():
    for make in (
        lambda: resolve_options(client=3),
        lambda: StoreOptions(block_bytes=0),
        lambda: Retry(attempts=0),
        lambda: Retry(backoff=-1),
        lambda: Retry(deadline=0),
    ):
        with pytest.raises(UsageError):
            make()


def test_pauses_double_up_to_the_longest():
    retry = Retry(backoff=1.0, max_backoff=5.0)
    for failures, full in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (5000, 5.0)):
        assert full / 2 <= retry.delay(failures) <= full


def test_proxies_come_from_the_environment_but_never_for_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("https_proxy", "proxy:3129")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert pools.proxy_for("http://far.example/x") == "http://proxy:3128"
    assert pools.proxy_for("https://far.example/x") == "http://proxy:3129"
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "[::1]", "a.localhost", "inside.example"):
        assert pools.proxy_for(f"http://{host}:80/x") is None


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_each_name_of_a_proxy_counts(monkeypatch, name):
    for one in pools._PROXIES:
        monkeypatch.delenv(one, raising=False)
    assert pools.proxy_for("http://far.example/x") is None
    monkeypatch.setenv(name, "http://proxy:3128")
    assert pools.proxy_for("http://far.example/x") == "http://proxy:3128"


@pytest.mark.skipif(sys.platform != "linux", reason="others have settings of the system, too")
def test_a_request_does_not_look_at_each_variable(monkeypatch):
    for one in pools._PROXIES:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setattr(pools, "getproxies", None)
    assert pools.proxy_for("http://far.example/x") is None


def test_certificate_files_that_are_none_are_named(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    for options in (
        StoreOptions(ca_cert=str(tmp_path / "ca.pem")),
        StoreOptions(ca_cert="/none"),
        StoreOptions(client_cert="/none"),
    ):
        with pytest.raises(UsageError, match="TLS files"):
            pools.pool_for("https://h/", options)


def test_every_mebibyte_that_arrives_adds_a_second_to_the_deadline() -> None:
    """A large shard on a slow line is not cut off; what is waited counts, and without a deadline nothing does."""
    attempts = Attempts(Retry(deadline=5.0), Cancel(), "o", "http://h/o")
    attempts.waited(4.0)
    assert attempts.left_s() == 1.0
    attempts.progress(3 << 20)
    assert attempts.left_s() == 4.0
    assert attempts.bound(20.0) == 4.0
    assert attempts.bound(2.0) == 2.0
    endless = Attempts(Retry(deadline=None), Cancel(), "o", "http://h/o")
    endless.waited(1e9)
    assert (endless.left_s(), endless.bound(None), endless.bound(3.0)) == (float("inf"), None, 3.0)
