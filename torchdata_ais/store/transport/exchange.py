"""One HTTP exchange with one host."""

from __future__ import annotations

import email.utils
import json
import re
import ssl
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from urllib.parse import urlsplit

import urllib3
from urllib3 import exceptions as fault
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import AuthError, ConnectError, NotFoundError, ReadError, StallError, UsageError
from torchdata_ais.errors.redaction import LONGEST, clean, quiet, with_causes, without_values_of
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.store.transport.attempts import PARTS_LOST, Attempts, Failed
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.store.transport.pools import pool_for
from torchdata_ais.urls import redact

# Exceptions of libraries for unexpected bytes; OverflowError and UnicodeError are among them.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

CHECK_TLS = Remedy(
    in_programs("check ca_cert= (AIS_CLIENT_CA) and that the endpoint speaks https"),
    in_commands("check AIS_CLIENT_CA and that the endpoint speaks https"),
)
_PASS_TOKEN = in_programs("pass cluster=StoreOptions(endpoint, token)")
_SMALL = 64 << 10  # larger or slower rests of unused bodies are not read
_SOON_S = 2.0
_TRANSIENT = {408, 409, 425, 429}
_NO_SPACE = 507
_NO_SUCH = {404, 405, 501}  # what other servers answer to requests of AIStore
_PERMANENT_5XX = {501, 505, _NO_SPACE}
_BETWEEN_NODES = re.compile(r'[A-Z][a-z]+ "https?://[^"]*": ')  # Go's message of a failed request by the node
_EXPIRED = re.compile(r"\bexpired\b", re.IGNORECASE)
_EXPIRED_TODO = Remedy(
    "the token has expired: get a new one",
    in_programs(
        "pass StoreOptions(token=) a function or the pathlib.Path of a file, which is read again after a 401"
    ),
    in_commands("set AIS_AUTHN_TOKEN_FILE to a file that is kept up to date"),
)
_DAMAGED = "ErrLmetaCorrupted"
# Of the metadata, and of the file on the disk.
_SIZE_DIFFERS = re.compile(r"errsize \(\d{1,20} != \d{1,20}\)")
_NO_TEXT = ("style", "script", "title")
_LONGEST_WAIT_S = 86_400.0  # longer waits of a server are not meant


def send_once(
    method: str,
    url: str,
    options: StoreOptions,
    timeout: urllib3.Timeout,
    *,
    headers: Mapping[str, str],
    body: object = None,
) -> BaseHTTPResponse:
    """Send one request and return its response, with any status.

    `IdleLostError` if it is to be sent again, which does not count; else `Failed` without a response.
    """
    host = urlsplit(url).netloc.rpartition("@")[2]
    try:
        return pool_for(url, options).urlopen(
            method,
            url,
            body=body,
            headers=dict(headers),
            timeout=timeout,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )
    except UsageError:
        raise
    except fault.SSLError as error:
        again = not isinstance(root(error), ssl.SSLCertVerificationError)
        raise Failed(ConnectError, f"TLS with {host} failed: {root(error)}", CHECK_TLS, again) from error
    except (fault.NewConnectionError, fault.ConnectTimeoutError, fault.ProxyError) as error:
        raise Failed(
            ConnectError,
            f"no connection to {host}: {root(error)}",
            "check that the cluster is up and that cluster= or AIS_ENDPOINT is right"
            if "/v1/" in url
            else f"check the URL: is {host} right, and is its server up?",
        ) from error
    except fault.ReadTimeoutError as error:
        raise Failed(
            StallError,
            f"{host} sent no answer for {_seconds(timeout.read_timeout)}",
            Remedy("look at the load and the log of that node", "raise first_byte_timeout="),
        ) from error
    except fault.LocationValueError as error:
        raise UsageError.at(f"no usable address: {error}", todo="correct the URL", url=url) from quiet(error)
    except (fault.HTTPError, HTTPException, OSError) as error:
        raise Failed(
            ReadError, f"the connection to {host} broke before an answer: {root(error)}", "look at that node"
        ) from error
    except UNREADABLE as error:
        # Without the error's text: it may quote a header of ours.
        what = f"the answer of {host} cannot be understood ({type(error).__name__})"
        raise Failed(ReadError, what, "look at that node") from error


def root(error: BaseException) -> BaseException:
    """Return the innermost cause: the one with the errno."""
    return deque(with_causes(error), maxlen=1)[0]


def _seconds(value: object) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else "long"


def drain(response: BaseHTTPResponse) -> None:
    """Read a rest, if it is small and fast, to use the connection again."""
    _read_small(response)
    if response.closed:
        response.release_conn()
    else:
        response.close()


def _read_small(response: BaseHTTPResponse) -> bytes:
    """Return the body, or as much of it as comes at once."""
    data = b""
    deadline = time.monotonic() + _SOON_S
    Cancel.current().set_timeout(_SOON_S)
    with suppress(fault.HTTPError, HTTPException, OSError, *UNREADABLE):
        while len(data) < _SMALL and time.monotonic() < deadline:
            more = response.read1(_SMALL - len(data))
            if not more:
                break
            data += more
    return data


def _message_of(response: BaseHTTPResponse) -> tuple[str, bytes]:
    """Return the server's message about its error, and the body."""
    data = _read_small(response)
    drain(response)
    headers = response.headers
    said = data.decode("utf-8", "replace") or headers.get("Ais-Error") or headers.get("Hdr-Error") or ""
    return message_in(without_values_of(response.geturl() or "", said)), data


def message_in(text: str) -> str:
    """Return the message in AIStore's JSON, or `text`, as one bounded line."""
    with suppress(*UNREADABLE):
        fields = json.loads(text)
        text = str(fields.get("message") or text)
        if fields.get("tcode") == _DAMAGED:
            text = f"{_DAMAGED}: {text}"
    if text.lstrip()[:1] == "<":
        text = _text_in_page(text)
    text = "".join(c if c.isprintable() else " " for c in text[: 4 * LONGEST])
    text = clean(" ".join(text.split()))  # then cut: not in a secret
    return text if len(text) <= 300 else f"{text[:300]}..."


def _text_in_page(page: str) -> str:
    """Return the text of an HTML page.

    Tags, styles, scripts and the title are left out.

    Example:
        >>> _text_in_page("<title>t</title><b>busy</b> <style>b {}</style>now<br")
        '   busy    now '
    """
    found, at, lower = [], 0, page.lower()
    while (begin := page.find("<", at)) >= 0:
        found.append(page[at:begin])
        end = page.find(">", begin)
        name = next((one for one in _NO_TEXT if lower.startswith(one, begin + 1)), None)
        if name is not None:
            end = lower.find(f"</{name}", begin)  # whose tag follows
            end -= end >= 0
        if end < 0:
            return " ".join([*found, ""])
        at = end + 1
    return " ".join([*found, page[at:]])


def refused(response: BaseHTTPResponse, options: StoreOptions, attempts: Attempts | None = None) -> Failed:
    """Return the failure of a response with an error status; read its body."""
    said, data = _message_of(response)
    message = said or response.reason or "no message"
    url = response.geturl() or ""
    if response.status in _NO_SUCH and urlsplit(url).path.startswith("/v1/") and is_page("", data):
        failed = not_aistore(
            options.endpoint or url, f"it answered {response.status} with a web page ({message})"
        )
        failed.status = response.status
        return failed
    after_s = _retry_after(response.headers.get("Retry-After", ""))
    failed = refusal(response.status, message, options, after_s)
    host = attempts.token_kept_from if attempts is not None else ""
    if failed.kind is AuthError and host:
        failed.todo = (
            f"the token goes to a cluster that the program names, not to hosts of URLs: "
            f"if {host} is yours, pass cluster= or set AIS_ENDPOINT to it"
        )
    return failed


def refusal(status: int, message: str, options: StoreOptions, after_s: float | None = None) -> Failed:
    """Return the failure of an error status: its error, and whether to retry."""
    failed = _meaning(status, message, options, after_s)
    failed.status = status
    return failed


def _meaning(status: int, message: str, options: StoreOptions, after_s: float | None) -> Failed:
    what = f"the server answered {status} ({message})"
    # Messages of a proxy while its targets are down or restart, or while one does not answer the proxy.
    if status == 400 and ("no storage targets" in message or _BETWEEN_NODES.match(message)):
        return Failed(ReadError, what, "start the storage targets of the cluster", after_s=after_s)
    if _DAMAGED in message or _SIZE_DIFFERS.search(message):
        return Failed(ReadError, what, PARTS_LOST, again=False)
    if "backend is missing" in message or (status == 501 and "provider" in message):
        todo = (
            "the cluster cannot reach that provider: add its backend, or copy the data into an ais:// bucket"
        )
        return Failed(NotFoundError if status == 404 else ReadError, what, todo, again=False)
    if status in (404, 410):
        return Failed(NotFoundError, what, "check the spelling of bucket and object", again=False)
    if status in (401, 403):
        todo = (
            _EXPIRED_TODO
            if status == 401 and _EXPIRED.search(message)
            else "check that the token is valid and may do this"
            if options.token
            else Remedy("set AIS_AUTHN_TOKEN", _PASS_TOKEN)
            if options.endpoint
            else Remedy("set AIS_AUTHN_TOKEN and AIS_ENDPOINT", _PASS_TOKEN)
        )
        return Failed(AuthError, what, todo, again=False)
    if status in _TRANSIENT or (status >= 500 and status not in _PERMANENT_5XX):
        return Failed(ReadError, what, "look at the log of the cluster", after_s=after_s)
    if status == _NO_SPACE:
        return Failed(
            ReadError, what, "make room on the disks of the cluster, or write elsewhere", again=False
        )
    return Failed(ReadError, what, "correct the request or the cluster's configuration", again=False)


def _retry_after(text: str) -> float | None:
    """Return the seconds of a ``Retry-After`` header: a number or a date."""
    with suppress(*UNREADABLE):
        try:
            seconds = float(text)
        except ValueError:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        if seconds <= _LONGEST_WAIT_S:  # false for NaN, too
            return max(0.0, seconds)
    return None


def is_marked(response: BaseHTTPResponse) -> bool:
    """Return whether a header marks the answer as one of an AIStore node.

    Answers about objects are marked, except to DELETE.
    """
    return any(name.lower().startswith("ais-") for name in response.headers)


def is_page(content_type: str, body: bytes = b"") -> bool:
    """Return whether a successful answer is a web page.

    AIStore sends pages only with redirects and errors.
    """
    return content_type.lower().startswith("text/html") or body[:256].lstrip()[:1] == b"<"


def refuse_page(response: BaseHTTPResponse, url: str) -> None:
    """Raise `Failed` if a foreign web page came instead of bytes."""
    if is_page(response.headers.get("Content-Type", "")) and not is_marked(response):
        raise not_aistore(url, "it answered with a web page")


def not_aistore(url: str, why: str) -> Failed:
    """Return the failure of a host of `url` that is not AIStore."""
    parts = urlsplit(redact(url))
    where = f"{parts.scheme}://{parts.netloc}"
    todo = "check cluster= or AIS_ENDPOINT: host and port of a proxy of the cluster (http://host:51080)"
    return Failed(ReadError, f"what answers at {where} is not an AIStore: {why}", todo, again=False)


ANSWER_BYTES = 16 << 20  # most of an answer: the longest page, 10,000 names, takes 12 MB


def check_length(size: int, options: StoreOptions) -> None:
    """Raise `Failed` if an answer of `size` bytes exceeds AIStore's longest."""
    if size > ANSWER_BYTES:
        raise not_aistore(options.endpoint, f"it sent more than {ANSWER_BYTES >> 20} MiB in one answer")


def check_kind(kind: str, body: bytes | bytearray, options: StoreOptions) -> None:
    """Raise `Failed` if an answer is a web page."""
    if is_page(kind, bytes(body[:256])):
        raise not_aistore(options.endpoint, f"it answered with a web page ({quoted(body)})")


def quoted(body: bytes | bytearray) -> str:
    """Return how an answer begins, for messages."""
    return repr(body[:40].decode("utf-8", "replace")) + ("..." if len(body) > 40 else "")
