"""TLS: certificates are checked, also those of clients, and a body that breaks off is continued."""

from __future__ import annotations

import random
import shutil
import ssl
import subprocess

import pytest
from helpers.raw_server import RawServer, cut, redirect, silent, stall, whole

from torchdata_ais.errors import ConnectError
from torchdata_ais.store import Retry, StoreOptions, list_objects, open_blocks, put_object

BODY = random.Random(0).randbytes(100_000)
QUICK = Retry(attempts=2, backoff=0.0)

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate that signs itself, its key, and both in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*command.split(), *names], cwd=folder, check=True, capture_output=True, timeout=60)
    (folder / "both.pem").write_bytes((folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes())
    return folder


@pytest.fixture
def tls(files):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "cert.pem", files / "key.pem")
    return context


def read(url, options):
    with open_blocks(url, options) as source:
        return b"".join(source)


def test_a_body_is_read_and_continued(files, tls):
    options = StoreOptions(ca_cert=str(files / "cert.pem"), retry=QUICK)
    with RawServer(cut(BODY, 50_000), whole(BODY), tls=tls) as server:
        assert read(server.url(), options) == BODY
        assert server.requests[1].offset > 0


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(files, tls):
    with RawServer(whole(BODY), tls=tls) as server:
        with pytest.raises(ConnectError, match="ca_cert=") as caught:
            read(server.url(), StoreOptions(retry=QUICK))
        assert caught.value.attempt == 1
        with pytest.raises(ConnectError, match="ca_cert="):
            list_objects("ais://b", options=StoreOptions(endpoint=server.endpoint, retry=QUICK))
        assert read(server.url(), StoreOptions(skip_verify=True, retry=QUICK)) == BODY


def test_the_certificate_of_the_client_is_shown(files, tls):
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(files / "cert.pem")
    ca = str(files / "cert.pem")
    pair = (ca, str(files / "key.pem"))
    with RawServer(whole(BODY), tls=tls) as server:
        for client_cert in (pair, str(files / "both.pem")):
            assert read(server.url(), StoreOptions(ca_cert=ca, client_cert=client_cert, retry=QUICK)) == BODY
        with pytest.raises(ConnectError, match=r"TLS with 127\.0\.0\.1:") as caught:
            read(server.url(), StoreOptions(ca_cert=ca, retry=QUICK))
        assert caught.value.url == "ais://b/s.tar"


@pytest.mark.parametrize("script", [silent, stall(BODY, 1000)])
def test_close_ends_a_wait(files, tls, script):
    with RawServer(script, tls=tls) as server:
        source = open_blocks(server.url(), StoreOptions(ca_cert=str(files / "cert.pem")))
        while not server.requests:
            pass
        source.close()
        assert not source._channel._thread.is_alive()


def test_an_object_is_put_where_the_proxy_says(files, tls):
    stored = []

    def store(request):
        body = b""
        while len(body) < int(request.headers["content-length"]):
            body += request.sock.recv(65536)
        stored.append(body)
        whole(b"")(request)

    options = StoreOptions(ca_cert=str(files / "cert.pem"), retry=QUICK)
    with RawServer(store, tls=tls) as target, RawServer(redirect(target.url(), 307), tls=tls) as proxy:
        put_object(proxy.url(), BODY, options)
    assert stored == [BODY]
