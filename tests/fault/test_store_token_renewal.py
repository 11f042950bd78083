"""Tokens that expire: one of a function or a file is read again once after a 401."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.raw_server import RawServer, Request

from torchdata_ais.errors import AuthError, UsageError
from torchdata_ais.store import Retry, StoreOptions, head_object, list_objects, put_object, resolve_options
from torchdata_ais.store.objects.sdk import make_bucket, sdk_client
from torchdata_ais.urls import parse_url

OLD, NEW = "token-of-yesterday-1", "token-of-today-2"
EXPIRED = b'{"message":"token expired","status":401}'


def accepts(token: str) -> RawServer:
    """Answer requests with this token, and 401 to all others."""

    def script(request: Request) -> bool:
        left = int(request.headers.get("content-length", 0))
        while left > 0 and (data := request.sock.recv(left)):
            left -= len(data)
        fine = request.headers.get("authorization") == f"Bearer {token}"
        status, body = (200, b"") if fine else (401, b"" if request.method == "HEAD" else EXPIRED)
        more = "Ais-Version: 1\r\n" if fine else ""
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
        request.send(head.encode() + body)
        return False

    return RawServer(script)


def options(server: RawServer, token: object) -> StoreOptions:
    return StoreOptions(server.endpoint, token, retry=Retry(2, backoff=0.0, deadline=15.0))  # type: ignore[arg-type]


def sent(server: RawServer) -> list[str]:
    return [one.headers.get("authorization", "").removeprefix("Bearer ") for one in server.requests]


def in_turn(*tokens: str) -> Callable[[], str]:
    left = list(tokens)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def yesterday() -> str:
    return OLD


def test_a_function_is_asked_again_once(caplog: pytest.LogCaptureFixture) -> None:
    with accepts(NEW) as server:
        store = options(server, in_turn(OLD, NEW))
        assert put_object("ais://b/o", b"12345", store).size == 5
        assert sent(server) == [OLD, NEW]
        head_object("ais://b/o", store)
        assert sent(server) == [OLD, NEW, NEW]
        assert OLD not in repr(store) + caplog.text


def test_a_file_is_read_again_as_text_and_as_the_command_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "auth.token"
    file.write_text(json.dumps({"token": OLD}))
    with accepts(NEW) as server:
        monkeypatch.setenv("AIS_AUTHN_TOKEN_FILE", str(file))
        store = resolve_options(endpoint=server.endpoint)
        assert store.bearer == OLD
        file.write_text(f"{NEW}\n")
        head_object("ais://b/o", store)
        assert sent(server) == [OLD, NEW]
        monkeypatch.setenv("AIS_AUTHN_TOKEN", "more-important")
        assert resolve_options(endpoint=server.endpoint).bearer == "more-important"


def test_requests_of_the_sdk_are_sent_again() -> None:
    with accepts(NEW) as server:
        store = options(server, in_turn(OLD, NEW))
        with sdk_client(store) as client:
            make_bucket(client, parse_url("ais://b"), store)
        assert sent(server) == [OLD, NEW]


@pytest.mark.parametrize("token", [OLD, yesterday], ids=["text", "function"])
def test_an_expired_token_is_reported_as_expired(token: object) -> None:
    with accepts(NEW) as server:
        store = options(server, token)
        for call in (
            lambda: put_object("ais://b/o", b"1", store),
            lambda: list_objects("ais://b", options=store),
        ):
            with pytest.raises(AuthError, match=r"token expired.*[Gg]et a new one") as caught:
                call()
            assert OLD not in str(caught.value)
        assert sent(server) == [OLD, OLD]  # the same again is not sent again
    assert pickle.loads(pickle.dumps(store)) == store


def test_files_that_are_none_are_errors_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").write_text("\n")
    with accepts(NEW) as server:
        for name, says in (
            ("missing", "cannot be read"),
            ("fifo", "is not a regular file"),
            ("empty", "gives no token"),
        ):
            with pytest.raises(AuthError, match=says):
                head_object("ais://b/o", options(server, tmp_path / name))
        with pytest.raises(AuthError, match=r"function of token= failed \(ZeroDivisionError\)"):
            head_object("ais://b/o", options(server, lambda: str(1 // 0)))
        with pytest.raises(UsageError, match="line break"):
            head_object("ais://b/o", options(server, lambda: "a\nb"))
        assert not server.requests
