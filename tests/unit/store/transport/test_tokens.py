"""Logins of URLs."""

from __future__ import annotations

from torchdata_ais.errors.redaction import clean
from torchdata_ais.store import StoreOptions
from torchdata_ais.store.transport.tokens import login_of


def test_the_password_of_a_url_is_hidden_from_then_on() -> None:
    url, origin, header = login_of("http://me:Un7ike1yPassw0rd@h:8080/x.tar", StoreOptions())
    assert url == "http://h:8080/x.tar"
    assert origin == ("http", "h", 8080)
    assert header["Authorization"].startswith("Basic ")
    assert "Un7ike1yPassw0rd" not in clean("it was Un7ike1yPassw0rd, they say")
