"""Error answers, and checks of fields and callers.

The cluster listens on 127.0.0.1 only, and yet any web page can send it requests: "simple" ones from anywhere, and,
once its own name resolves to 127.0.0.1 (DNS rebinding), all. A browser gives such requests away by their headers.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, get_origin

import msgspec

from .http import Request

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ReplyError(Exception):
    """A request that is answered with an error status.

    `tcode` is AIStore's type of error, left out of the answer when empty.
    """

    def __init__(
        self, status: int, message: str, tcode: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.tcode = tcode
        self.headers = headers or {}


def bad_bucket_name() -> ReplyError:
    """A name that no bucket may have."""
    only = "may only contain letters, numbers, dashes (-), underscores (_), and dots (.)"
    return ReplyError(400, f"bucket name is invalid: {only}")


def bucket_exists(name: str) -> ReplyError:
    """The bucket is there already."""
    return ReplyError(409, f'bucket "ais://{name}" already exists', "ErrBucketAlreadyExists")


def object_missing(node: str, bucket: str, name: str) -> ReplyError:
    """No such object, in the words of the target `node`."""
    return ReplyError(404, f"{node}: ais://{bucket}/{name} does not exist", "ErrNotFound")


def parts_lost(size: int, left: int) -> ReplyError:
    """An object with only `left` of its `size` bytes on the disk."""
    return ReplyError(500, f"errsize ({size} != {left})", "ErrLmetaCorrupted")


def invalid_path(what: str, name: str) -> ReplyError:
    """A name with parts that could leave the bucket."""
    return ReplyError(400, f'invalid {what} "{name}"', "errInvalidPath")


def not_implemented(what: str) -> ReplyError:
    """An unsupported feature of a real cluster, named in the answer."""
    message = f"{what}: not implemented by the embedded cluster - operation not supported"
    return ReplyError(501, message, "ErrUnsupp")


def of_the_machine(node: str, error: OSError) -> ReplyError:
    """Return a 507 for a full disk, 503 for a temporary error, 500 for others."""
    code = error.errno or 0
    status = 507 if code in _FULL else 503 if code in _SHORT else 500
    name = errno.errorcode.get(code, type(error).__name__)
    return ReplyError(status, f"{node}: [Errno {code}] {name}: {os.strerror(code) if code else error}", name)


Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # as large as Go's
_EMPTY = (b"null", b'""', b"false", b"0", b"[]", b"{}")


def typed(fields: Mapping[str, msgspec.Raw], of: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the fields as `Call.fields`; `of` is their owner in the 501."""
    out = {name: None if _is_type(spec) else spec for name, spec in known.items()}
    for key, raw in fields.items():
        name = key.replace("-", "_")
        if name not in known:
            if bytes(raw).strip() not in _EMPTY:
                raise not_implemented(f"field {key!r:.100} of {of:.100}")
            continue
        spec = known[name]
        if spec is msgspec.Raw:
            continue
        kind = spec if _is_type(spec) else Int if type(spec) is int else type(spec)
        value = decode(raw, kind | None, key)
        if value is not None:
            out[name] = value
    return out


def _is_type(spec: object) -> bool:
    return isinstance(spec, type) or get_origin(spec) is not None


def decode(raw: bytes | msgspec.Raw, kind: object, field: str = "") -> Any:
    """Return JSON as a `kind`; an error is a 400 with its reason."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as cause:
        where = f" in {field!r}" if field else ""
        raise ReplyError(400, f"failed to unmarshal the request{where}: {cause}", "ErrJSON") from cause


def number(text: str, what: str) -> int:
    """Return a query parameter that is a number; an error is a 400."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ReplyError(400, f"{what} {text!r:.100} is not a number")
    return int(text)


_OURS = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{0,5})?", re.IGNORECASE)
_FETCHED_FROM = ("none", "same-origin")


def check_sender(request: Request, ports: Collection[int]) -> None:
    """Refuse, with 403, requests that a web page sends or may have sent.

    An origin at one of the cluster's own `ports` is not foreign.
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
    """Refuse, with 401, a request without the bearer token of this start."""
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
