"""Promise 8: the token goes to the cluster, to nobody else, and into no text."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import subprocess
import sys
import tempfile
from base64 import b64encode
from dataclasses import replace

import pytest
from aistore.sdk import Client
from helpers.raw_server import RawServer, redirect, status, whole
from typer.testing import CliRunner

import torchdata_ais.webdataset as wds
from torchdata_ais import AISFileLoader, AISObjectLoader, AISSourceLister, ObjectURL
from torchdata_ais.cli import app
from torchdata_ais.errors import AISError, AuthError, UsageError
from torchdata_ais.pipes.base.pipe import as_pipe
from torchdata_ais.store import (
    ObjectCache,
    Retry,
    StoreOptions,
    delete_object,
    head_object,
    list_objects,
    open_blocks,
    put_object,
    resolve_options,
)
from torchdata_ais.store.transport import tokens
from torchdata_ais.store.transport.tokens import origin
from torchdata_ais.testing import shard_bytes
from torchdata_ais.writing.sources.shards import read_samples

BODY = b"body"
TOKEN = "very-secret-token"
QUICK = Retry(attempts=2, backoff=0.0)


def smap(*urls):
    tmap = {url: {"public_net": {"direct_url": url}, "intra_data_net": None} for url in urls}
    return status(200, body=json.dumps({"tmap": tmap, "pmap": {}}).encode())


def of_cluster(*nodes, location):
    """A proxy that knows its map and redirects everything else."""

    def script(request):
        (smap(*nodes) if "what=smap" in request.target else redirect(location))(request)

    return script


def read(url, options):
    with open_blocks(url, options) as source:
        return b"".join(source)


def shown(server):
    return [
        request.headers.get("authorization") for request in server.requests if "smap" not in request.target
    ]


def test_nodes_of_the_cluster_get_the_token_and_the_map_is_read_once():
    with RawServer(whole(BODY)) as target:
        with RawServer(of_cluster(target.endpoint, location=target.url())) as proxy:
            options = StoreOptions(endpoint=proxy.endpoint, token=TOKEN)
            assert read("ais://b/s.tar", options) == BODY
            assert read("ais://b/s.tar", options) == BODY
            assert shown(proxy) == shown(target) == [f"Bearer {TOKEN}"] * 2
            assert sum("smap" in request.target for request in proxy.requests) == 1


@pytest.mark.parametrize("kind", ["tmap", "pmap"])
@pytest.mark.parametrize("net", ["public_net", "intra_control_net", "intra_data_net"])
def test_a_node_gets_the_token_by_each_of_its_nets(kind, net):
    with RawServer(whole(BODY)) as target:
        others = {"public_net": {"direct_url": "http://127.0.0.1:9"}, "intra_data_net": None}
        nodes = {"tmap": {}, "pmap": {}, kind: {"n": others | {net: {"direct_url": target.endpoint}}}}

        def script(request):
            smap = status(200, body=json.dumps(nodes).encode())
            (smap if "what=smap" in request.target else redirect(target.url()))(request)

        with RawServer(script) as proxy:
            assert read("ais://b/s.tar", StoreOptions(endpoint=proxy.endpoint, token=TOKEN)) == BODY
        assert shown(target) == [f"Bearer {TOKEN}"]


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


def test_a_node_that_joins_later_gets_the_token_and_the_map_is_read_at_most_every_ten_seconds(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(tokens, "time", clock)
    nodes = []

    def maps():
        return sum("smap" in request.target for request in proxy.requests)

    with RawServer(whole(BODY)) as target:

        def script(request):
            (smap(*nodes) if "what=smap" in request.target else redirect(target.url()))(request)

        with RawServer(script) as proxy:
            options = StoreOptions(endpoint=proxy.endpoint, token=TOKEN)
            for later, read_so_far in ((0.0, 1), (9.5, 1), (0.5, 2)):
                clock.now += later
                assert read("ais://b/s.tar", options) == BODY
                assert maps() == read_so_far
                nodes[:] = [target.endpoint]
            assert read("ais://b/s.tar", options) == BODY
            clock.now += 1000.0  # a node that is known is not looked up again
            assert read("ais://b/s.tar", options) == BODY
            assert maps() == 2
        assert shown(target) == [None, None, *[f"Bearer {TOKEN}"] * 3]


def test_the_nodes_of_one_cluster_are_not_those_of_another():
    """Each endpoint, and each token, has a map of its own."""
    with RawServer(whole(BODY)) as target:
        with RawServer(of_cluster(target.endpoint, location=target.url())) as mine:
            assert read("ais://b/s.tar", StoreOptions(endpoint=mine.endpoint, token=TOKEN)) == BODY
        with RawServer(of_cluster("http://127.0.0.1:9", location=target.url())) as other:
            assert read("ais://b/s.tar", StoreOptions(endpoint=other.endpoint, token=TOKEN)) == BODY
        assert shown(target) == [f"Bearer {TOKEN}", None]


def test_other_hosts_do_not_get_the_token():
    with RawServer(whole(BODY)) as other:
        with RawServer(of_cluster("http://127.0.0.1:9", location=other.url())) as proxy:
            assert read("ais://b/s.tar", StoreOptions(endpoint=proxy.endpoint, token=TOKEN)) == BODY
        assert shown(other) == [None]


@pytest.mark.parametrize(
    "answer", [status(500), status(200, body=b"<html>"), status(200, body=b'{"tmap": 3}')]
)
def test_without_a_map_only_the_endpoint_gets_the_token(answer, caplog):
    def script(request):
        (answer if "what=smap" in request.target else redirect(other.url()))(request)

    with RawServer(whole(BODY)) as other, RawServer(script) as proxy:
        assert read("ais://b/s.tar", StoreOptions(endpoint=proxy.endpoint, token=TOKEN)) == BODY
        assert shown(other) == [None]
        assert shown(proxy) == [f"Bearer {TOKEN}"]
    assert "cluster map" in caplog.text
    assert TOKEN not in caplog.text


def test_an_object_of_another_cluster_does_not_get_the_token():
    with RawServer(smap()) as mine, RawServer(whole(BODY)) as other:
        assert read(other.url(), StoreOptions(endpoint=mine.endpoint, token=TOKEN)) == BODY
        assert shown(other) == [None]
        # Nor without an endpoint: the host of a URL is data.
        assert read(other.url(), StoreOptions(token=TOKEN)) == BODY
        assert shown(other) == [None, None]


def test_web_files_do_not_get_the_token():
    with RawServer(whole(BODY)) as server:
        assert read(f"{server.endpoint}/s.tar", StoreOptions(token=TOKEN)) == BODY
        assert read(f"{server.endpoint}/s.tar", StoreOptions(endpoint=server.endpoint, token=TOKEN)) == BODY
        assert shown(server) == [None, None]


def test_a_password_in_a_url_goes_to_its_host_only_and_into_no_message():
    with RawServer(status(404)) as other, RawServer(redirect(other.url())) as server:
        url = f"{server.endpoint}/s.tar".replace("//", "//me:pass%40word@")
        with pytest.raises(FileNotFoundError) as caught:
            read(url, StoreOptions(retry=QUICK))
        assert shown(server) == ["Basic bWU6cGFzc0B3b3Jk"]
        assert shown(other) == [None]
    assert "pass" not in str(caught.value)


def test_the_token_is_in_no_text(caplog):
    caplog.set_level(logging.DEBUG)
    with RawServer(status(401, body=b"who are you")) as server:
        options = replace(resolve_options(endpoint=server.endpoint, token=TOKEN), retry=QUICK)
        with pytest.raises(AuthError) as caught:
            read("ais://b/s.tar", options)
    assert "who are you" in str(caught.value)
    for text in (repr(options), str(options), str(caught.value), repr(caught.value), caplog.text):
        assert TOKEN not in text
    assert pickle.loads(pickle.dumps(options)) == options


ELSEWHERE = """
import pickle, sys
from torchdata_ais.errors.redaction import clean
options, text = pickle.load(sys.stdin.buffer)
print(clean(text))
if options.token:
    options.bearer  # of a file or a function: read here
print(clean(text))
"""


def in_another_process(options, text):
    """Return `text` as a process shows it that was sent `options`, before and after it reads the token."""
    given = pickle.dumps((options, text))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=given, capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode().splitlines()


def test_promise_8_a_worker_process_knows_what_is_secret(tmp_path):
    """Workers get the options, and see nothing of what the main process has hidden."""
    token, password = "very-secret-of-a-worker", "pass-of-a-worker"
    text = f"no user {token}, {b64encode(token.encode()).decode()} or {password}"
    assert (
        in_another_process(StoreOptions("http://h:1"), text) == [text] * 2
    )  # it is not known from elsewhere
    options = StoreOptions(f"http://me:{password}@h:1", token=token)
    assert in_another_process(options, text) == ["no user ***, *** or ***"] * 2
    file = tmp_path / "token"
    file.write_text(token)
    shown = in_another_process(StoreOptions("http://h:1", token=file), text)
    assert shown == [text, f"no user ***, *** or {password}"]


# A URL is data: whatever way it comes, its host gets no token unless program or environment named it.

SHARD = shard_bytes({"a.txt": b"1"})


def samples_of_load_tar(url, **given):
    return list(AISFileLoader([url], **given).group_samples())


WAYS = {
    "open_blocks": lambda url: read(url, resolve_options()),
    "open_blocks, token=": lambda url: read(url, StoreOptions(token=TOKEN)),
    "head_object": lambda url: head_object(url, resolve_options()),
    "head_object, token=": lambda url: head_object(url, StoreOptions(token=TOKEN)),
    "put_object": lambda url: put_object(url, b"x", resolve_options()),
    "delete_object": lambda url: delete_object(url, resolve_options()),
    "load_tar": samples_of_load_tar,
    "load_tar, token=": lambda url: samples_of_load_tar(url, cluster=StoreOptions(token=TOKEN)),
    "load_tar, dict": lambda url: samples_of_load_tar({"url": url}),
    "load_objects": lambda url: list(AISObjectLoader([url])),
    "lister": lambda url: list(AISSourceLister(url).load_tar()),
    "lister, token=": lambda url: list(AISSourceLister(url, cluster=StoreOptions(token=TOKEN)).load_tar()),
    "lister of a pipe, token=": lambda url: list(
        AISSourceLister(as_pipe([url]), cluster=StoreOptions(token=TOKEN)).load_tar()
    ),
    "facade": lambda url: list(wds.WebDataset([url], shardshuffle=False)),
    "facade, pipe:curl": lambda url: list(wds.WebDataset([f"pipe:curl -s '{url}'"], shardshuffle=False)),
    "facade, gopen": lambda url: wds.gopen(url).read(),
    "convert": lambda url: list(read_samples(url, resolve_options())),
    "cache": lambda url: ObjectCache(tempfile.mkdtemp(), 1 << 20).fetch(ObjectURL(url), resolve_options()),
    "inspect": lambda url: CliRunner().invoke(app, ["inspect", url]),
    "lint": lambda url: CliRunner().invoke(app, ["lint", url]),
    "put": lambda url: CliRunner().invoke(app, ["put", __file__, url.replace("s.tar", "t.tar")]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("named", ["", "http://127.0.0.1:9"])
def test_the_host_of_a_url_gets_no_token_by_any_way(way, named, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("AIS_AUTHN_TOKEN", TOKEN)
    monkeypatch.setenv("AIS_ENDPOINT", named) if named else monkeypatch.delenv("AIS_ENDPOINT", raising=False)

    def script(request):
        (status(204, "Ais-Version: 1") if request.method in ("PUT", "DELETE", "POST") else whole(SHARD))(
            request
        )

    with RawServer(script) as server:
        WAYS[way](server.url())
        assert server.requests
        assert [request.headers.get("authorization") for request in server.requests] == [None] * len(
            server.requests
        )


@pytest.mark.parametrize("path", ["/page/v1/objects/b/s.tar", "/v1/objects/b/s.tar?x=/v1/objects/", "/s.tar"])
def test_a_web_page_that_looks_like_an_object_gets_no_token(path, monkeypatch):
    monkeypatch.setenv("AIS_AUTHN_TOKEN", TOKEN)
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with RawServer(whole(SHARD)) as server:
        samples_of_load_tar(f"{server.endpoint}{path}")
        assert shown(server) == [None]


@pytest.mark.parametrize("how", ["environment", "client", "options", "lister"])
def test_the_host_that_program_or_environment_named_gets_the_token(how, monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with RawServer(whole(SHARD)) as server:
        url = server.url()
        if how == "environment":
            monkeypatch.setenv("AIS_AUTHN_TOKEN", f"  {TOKEN}\n")
            monkeypatch.setenv("AIS_ENDPOINT", server.endpoint)
            samples_of_load_tar(url)
        elif how == "client":
            samples_of_load_tar(url, cluster=Client(server.endpoint, token=TOKEN))
        elif how == "options":
            samples_of_load_tar(url, cluster=StoreOptions(endpoint=server.endpoint, token=f"\t{TOKEN}\r\n"))
        else:
            list(AISSourceLister(url, cluster=StoreOptions(server.endpoint, TOKEN)).load_tar())
        assert shown(server) == [f"Bearer {TOKEN}"]


def test_a_lister_of_urls_of_two_hosts_names_none(monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with RawServer(whole(SHARD)) as one, RawServer(whole(SHARD)) as other:
        list(AISSourceLister([one.url(), other.url()], cluster=StoreOptions(token=TOKEN)).load_tar())
        assert shown(one) == shown(other) == [None]


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_401_says_what_to_set(token, monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with RawServer(status(401)) as server:
        with pytest.raises(AuthError) as caught:
            read(server.url(), StoreOptions(token=token))
        assert ("AIS_AUTHN_TOKEN" in str(caught.value)) == (token is None)
        assert "cluster=" in str(caught.value)
        assert "AIS_ENDPOINT" in str(caught.value)
        assert token is None or f"if {server.endpoint} is yours" in str(caught.value)
        with pytest.raises(AuthError, match="Check that the token is valid"):
            read(server.url(), StoreOptions(endpoint=server.endpoint, token=TOKEN))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://h", "http://h:80", True),
        ("https://h", "HTTPS://H:443/v1/objects/b/x", True),
        ("http://h.", "http://H:80/x", True),
        ("http://[::1]:80", "http://[0:0:0:0:0:0:0:1]", True),
        ("http://h", "http://me:pass@h", True),
        ("http://h", "https://h", False),
        ("http://h", "http://h:81", False),
        ("https://h", "http://h:443", False),
        ("http://h", "http://h.evil", False),
        ("http://h", "http://h@evil", False),
        ("http://h", "http://evil#@h/", False),
        ("http://h", "http://evil?@h/", False),
        ("http://h", "http://evil\\@h/", False),
        ("http://h", "http://evil/@h/", False),
        ("http://h", "//h", False),
    ],
)
def test_which_hosts_are_the_same(one, other, same):
    assert (origin(one) == origin(other)) is same


@pytest.mark.usefixtures("no_known_secrets")  # a port is hidden here, which a later server may get
@pytest.mark.parametrize(
    "url", ["http://{good}\\@{evil}/x", "http://{evil}\\@{good}/x", "http://{good}@{evil}/x"]
)
def test_no_parser_is_tricked_into_sending_the_token_elsewhere(url):
    with RawServer(whole(BODY)) as good, RawServer(whole(BODY)) as evil:
        hosts = {"good": good.endpoint[7:], "evil": evil.endpoint[7:]}
        url = url.format(**hosts).replace("/x", "/v1/objects/b/x?provider=ais")
        with contextlib.suppress(AISError):
            read(url, StoreOptions(endpoint=good.endpoint, token=TOKEN, retry=QUICK))
        assert all(TOKEN not in str(request.headers) for request in evil.requests)


@pytest.mark.parametrize("method", ["GET", "PUT", "LIST"])
def test_user_and_password_of_the_endpoint_work_and_go_nowhere_else(method):
    with RawServer(whole(BODY)) as target:

        def script(request):
            listing = "buckets" in request.target
            (status(500) if listing else redirect(target.url()))(request)
            return not listing  # which has a body, that nobody here reads

        with RawServer(script) as proxy:
            options = StoreOptions(endpoint=proxy.endpoint.replace("//", "//me:p%40ss-w0rd@"), retry=QUICK)
            assert options.endpoint == proxy.endpoint
            assert pickle.loads(pickle.dumps(options)) == options
            with contextlib.suppress(AISError):
                if method == "GET":
                    assert read("ais://b/s.tar", pickle.loads(pickle.dumps(options))) == BODY
                elif method == "PUT":
                    put_object("ais://b/s.tar", b"x", options)
                else:
                    list_objects("ais://b/", options=options)
            assert shown(proxy)
            assert set(shown(proxy)) == {"Basic bWU6cEBzcy13MHJk"}
        assert set(shown(target)) <= {None}


def test_the_proxy_is_not_told_the_login_in_a_url(monkeypatch):
    with RawServer(whole(BODY)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.endpoint.replace("//", "//prx:päss€@"))
        read("http://me:s3cr3t-pass@far.example/s.tar", StoreOptions(retry=QUICK))
        (request,) = proxy.requests
    assert request.target == "http://far.example/s.tar"
    assert request.headers["proxy-authorization"].startswith("Basic ")
    assert request.headers["authorization"] == "Basic " + b64encode(b"me:s3cr3t-pass").decode()


BAD = ["a\nb", "a\r\nX-Evil: 1", "a\x00b", "a\x7fb", "a b", "a\u2028b", "a\u20acb", "a\x85b", "\x01"]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("how", ["environment", "client", "options"])
def test_a_token_that_no_header_carries_is_refused_in_words_that_do_not_quote_it(bad, how, monkeypatch):
    token = f"s3cr3t{bad}s3cr3t"
    if how == "environment" and "\x00" in bad:
        pytest.skip("no environment has it")
    ways = {
        "environment": lambda: list(AISSourceLister("ais://b/", cluster="http://127.0.0.1:9")),
        "client": lambda: AISFileLoader(["ais://b/x"], cluster=Client("http://h", token=token)),
        "options": lambda: StoreOptions(token=token),
    }
    if how == "environment":
        monkeypatch.setenv("AIS_AUTHN_TOKEN", token)
    with pytest.raises(UsageError, match="The token has") as caught:
        ways[how]()
    assert "s3cr3t" not in f"{caught.value}{caught.value!r}{caught.value.__context__!r}"
    assert "AIS_AUTHN_TOKEN" in str(caught.value)


@pytest.mark.parametrize("blank", ["\n", "\r\n", " ", "\t", "\u2028", "\x0b"])
def test_white_space_around_a_token_is_dropped(blank):
    assert StoreOptions(token=f"{blank}{TOKEN}{blank}").token == TOKEN
    assert StoreOptions(token=blank).token is None
