"""Who may ask: programs of this machine, not the pages of a browser; and for transforms, who has the secret.

The cluster listens on 127.0.0.1 only, and yet any web page can send it requests: "simple" ones from anywhere, and,
once its own name resolves to 127.0.0.1 (DNS rebinding), all. A browser gives such requests away by their headers.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection

from .messages import Request
from .problem import ReplyError

_OURS = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{0,5})?", re.IGNORECASE)
_FETCHED_FROM = ("none", "same-origin")


def check_sender(request: Request, ports: Collection[int]) -> None:
    """Refuse, with 403, what a page of a browser sends or may have sent.

    Args:
        request: The request.
        ports: Those of this cluster's nodes: only their own pages, which do not exist, are no foreign origin.
    """
    headers = request.headers
    for host in (headers.get("host", ""), request.authority):
        if host is not None and not _OURS.fullmatch(host):
            raise _refused(f"Host {host!r:.100}: it answers to 127.0.0.1, localhost and [::1] only")
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, place = origin.lower().partition("://")
        port = place.rpartition(":")[2]
        if scheme != "http" or not _OURS.fullmatch(place) or port not in map(str, ports):
            raise _refused(f"Origin {origin!r:.100}: no web page may use it")
    fetched_from = headers.get("sec-fetch-site")
    if fetched_from is not None and fetched_from.lower() not in _FETCHED_FROM:
        raise _refused(f"Sec-Fetch-Site {fetched_from!r:.100}: no web page may use it")


def _refused(why: str) -> ReplyError:
    return ReplyError(403, f"refused by the embedded cluster: {why}")


def check_secret(request: Request, secret: str) -> None:
    """Refuse, with 401, a request without the bearer token of this start of the cluster."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), secret.encode()):
        raise ReplyError(
            401,
            "making and changing transforms asks for the secret of this embedded cluster, as they run code: "
            "use LocalCluster.client() or pass the LocalCluster itself, or set AIS_AUTHN_TOKEN to what "
            "`torchdata-ais serve` has printed",
            headers={"WWW-Authenticate": "Bearer"},
        )


def hide_secret(headers: dict[str, str], secret: str) -> dict[str, str]:
    """The headers without the secret, for the record of requests."""
    if secret not in headers.get("authorization", ""):
        return headers
    return {**headers, "authorization": headers["authorization"].replace(secret, "***")}
