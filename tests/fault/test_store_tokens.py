"""Promise 8: the token goes to the cluster, to nobody else, and into no text."""

from __future__ import annotations

import json
import logging
import pickle

import pytest
from store_rawserver import RawServer, redirect, status, whole

from torchdata_ais.errors import AuthError
from torchdata_ais.store import Retry, StoreOptions, open_blocks, resolve_options

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
        options = resolve_options(endpoint=server.endpoint, token=TOKEN, retry=QUICK)
        with pytest.raises(AuthError) as caught:
            read("ais://b/s.tar", options)
    assert "who are you" in str(caught.value)
    for text in (repr(options), str(options), str(caught.value), repr(caught.value), caplog.text):
        assert TOKEN not in text
    assert pickle.loads(pickle.dumps(options)) == options
