"""Messages to a cluster whose answers are short: sent, read whole, and seen to be AIStore's."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from torchdata_ais.store.attempts import Attempts
from torchdata_ais.store.exchange import is_page, not_aistore, refused
from torchdata_ais.store.framing import let_go
from torchdata_ais.store.options import StoreOptions
from torchdata_ais.store.request import send_message
from torchdata_ais.store.whole_body import WholeBody

ANSWER_BYTES = 16 << 20
"""What an answer may have: a page of 10,000 names, the longest there can be, takes 12 MB."""

_PIECE = 64 << 10


class Answer(NamedTuple):
    """What a cluster answered, with a status that says all is well."""

    status: int
    kind: str
    body: bytes


def ask(url: str, message: object, options: StoreOptions, attempts: Attempts, *, accept: str) -> Answer:
    """Send ``GET`` with a message as JSON, as AIStore takes questions, and return the answer.

    Args:
        url: The address, at the endpoint of `options`.
        message: What can be written as JSON.
        options: Endpoint, token, timeouts.
        attempts: Bounds the time of all of it.
        accept: The media type of the answer.

    Memory: the answer, 16 MiB at most.

    Raises:
        Failed: None came, or it is not AIStore's.
    """
    response = send_message(url, msgspec.json.encode(message), options, attempts, Accept=accept)
    if not 200 <= response.status < 300:
        raise refused(response, options, attempts)
    body = bytearray()
    try:
        whole = WholeBody(response, options, attempts)
        while piece := whole.take(_PIECE):
            body += piece
            check_length(len(body), options)
    finally:
        let_go(response)
    kind = response.headers.get("Content-Type", "")
    check_kind(kind, body, options)
    return Answer(response.status, kind, bytes(body))


def check_length(size: int, options: StoreOptions) -> None:
    """Raise `Failed` if an answer of `size` bytes is longer than any of AIStore's."""
    if size > ANSWER_BYTES:
        raise not_aistore(options.endpoint, f"it sent more than {ANSWER_BYTES >> 20} MiB in one answer")


def check_kind(kind: str, body: bytes | bytearray, options: StoreOptions) -> None:
    """Raise `Failed` if an answer is a web page."""
    if is_page(kind, bytes(body[:256])):
        raise not_aistore(options.endpoint, f"it answered with a web page ({quoted(body)})")


def quoted(body: bytes | bytearray) -> str:
    """Return how an answer begins, for messages."""
    return repr(body[:40].decode("utf-8", "replace")) + ("..." if len(body) > 40 else "")
