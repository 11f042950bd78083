"""Requests with redirects and tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import ConnectError, ReadError, UsageError
from torchdata_ais.store.transport import tokens
from torchdata_ais.store.transport.attempts import Attempts, Failed
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.exchange import drain, refusal, refused, send_once
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.store.transport.pools import IdleLostError
from torchdata_ais.urls import Location, redact

_REDIRECTS = 8
_SHOWN = 200  # letters of an address that the server made up
_NODE = "look at the node that sent it"
_MOVED = (301, 302, 303, 307, 308)
_BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND = 400, 401, 404


def send(
    method: str,
    url: str,
    options: StoreOptions,
    attempts: Attempts,
    *,
    with_token: bool = True,
    headers: Mapping[str, str] | None = None,
    body: Callable[[], Iterator[bytes]] | None = None,
    follow: bool = True,
) -> BaseHTTPResponse:
    """Send a request, follow redirects, and return the unread response.

    The token goes to the cluster only (see `tokens`), and not where `with_token` says that the URL is none of AIStore.
    One of a function or a file is read again once after a 401. A redirect is followed for this request alone. The next
    request goes to the proxy again, which avoids a dead target. `body` gives its blocks once for each address that a
    redirect names. The deadline of `attempts` bounds the timeouts.
    """
    token = options.bearer if with_token and options.endpoint else None
    response = _sent(method, url, options, attempts, with_token, headers, body, follow)
    if response.status == _UNAUTHORIZED and options.renew(token):
        drain(response)
        response = _sent(method, url, options, attempts, with_token, headers, body, follow)
    return response


def _sent(
    method: str,
    url: str,
    options: StoreOptions,
    attempts: Attempts,
    with_token: bool,
    headers: Mapping[str, str] | None,
    body: Callable[[], Iterator[bytes]] | None,
    follow: bool,
) -> BaseHTTPResponse:
    url, login_origin, login = tokens.login_of(url, options)
    if login_origin is None:
        raise UsageError.at("no usable address", todo="correct the URL", url=url)
    begin = time.monotonic()
    sender = ""  # the node that sent us on
    for _ in range(_REDIRECTS):
        connect_s = attempts.bound(options.connect_timeout)
        answer_s = attempts.bound(options.first_byte_timeout)
        attempts.expect(connect_s, answer_s)  # the cluster map may have to be fetched
        attempts.record.host = urlsplit(url).netloc.rpartition("@")[2]
        sent = {"Accept-Encoding": "identity", "User-Agent": "torchdata-ais", **(headers or {})}
        if with_token:
            sent.update(tokens.authorization(url, options))
        if login and tokens.origin(url) == login_origin:
            sent.update(login)
        kept = options.token is not None and "Authorization" not in sent
        attempts.token_kept_from = "{}://{}".format(*urlsplit(url)[:2]) if kept else ""
        timeout = urllib3.Timeout(connect=connect_s, read=answer_s)
        try:
            while True:
                attempts.expect(connect_s, answer_s)
                blocks = None if body is None else _sent_in_time(body(), options, attempts)
                with suppress(IdleLostError):  # one idle connection fewer each time
                    response = send_once(method, url, options, timeout, headers=sent, body=blocks)
                    break
        except Failed as failed:
            attempts.expect()
            attempts.check_interrupted(failed)
            if sender and issubclass(failed.kind, ConnectError):  # the endpoint itself is right, and up
                failed.what += f" (the storage target that {sender} named)"
                failed.todo = "start that node again, or wait until the cluster does without it"
            raise
        except UsageError as error:
            if not sender:
                raise
            raise Failed(ReadError, f"redirected by {sender}: {error.args[0]}", _NODE) from error
        location = response.headers.get("Location")
        if not follow or response.status not in _MOVED or not location:
            attempts.record.first_byte_s = time.monotonic() - begin
            attempts.answered_by = url
            return response
        drain(response)
        sender = urlsplit(url).netloc.rpartition("@")[2]
        url = tokens.login_of(_joined(url, location), options)[0]  # a redirect brings no login
    raise Failed(
        ReadError, f"redirected more than {_REDIRECTS} times, last to {redact(url)[:_SHOWN]}", again=False
    )


def refused_read(
    response: BaseHTTPResponse, place: Location, options: StoreOptions, attempts: Attempts
) -> Failed:
    """Return the meaning of an error status in response to a GET of an object.

    In a bucket with erasure coding, AIStore answers 400 for an object that is not there, since it cannot be recovered
    from slices either. A HEAD then decides between a missing object and a broken one.
    """
    failed = refused(response, options, attempts)
    if failed.status != _BAD_REQUEST or failed.again or place.kind != "object":
        return failed
    with suppress(Failed):  # the first answer is reported then
        head = send("HEAD", replace(place, params={}).url(), options, attempts)
        drain(head)
        if head.status == _NOT_FOUND:
            return refusal(_NOT_FOUND, f"to HEAD, after {failed.what}", options)
        if head.status < _BAD_REQUEST and "EC-recover" in failed.what:
            failed.todo = (
                "look at the storage targets: too many slices of the object are missing; or store it again"
            )
    return failed


def send_message(
    url: str, text: bytes, options: StoreOptions, attempts: Attempts, **headers: str
) -> BaseHTTPResponse:
    """Send ``GET`` with a message in JSON, and return the response.

    AIStore takes queries like this; see `send`.
    """
    headers |= {"Content-Type": "application/json", "Content-Length": str(len(text))}
    return send("GET", url, options, attempts, headers=headers, body=lambda: iter([text]))


def _joined(url: str, location: str) -> str:
    """Return where `location` leads; `Failed` if to no web address."""
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0:
            return target
        shown = repr(redact(target)[:_SHOWN])
    except ValueError:
        shown = "what is no URL"  # nor can its secrets be found
    raise Failed(ReadError, f"redirected to {shown}, which is no web address", _NODE)


def _sent_in_time(blocks: Iterator[bytes], options: StoreOptions, attempts: Attempts) -> Iterator[bytes]:
    """Yield the blocks of a body, with a timeout for each and the answer."""
    Cancel.current().set_timeout(attempts.bound(options.stall_timeout))
    for block in blocks:
        attempts.expect(attempts.bound(options.stall_timeout))
        yield block
    attempts.expect(attempts.bound(options.first_byte_timeout))
