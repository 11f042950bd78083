"""Dispatch of requests to handlers by the route table, and its errors."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
import traceback
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from .api_objects import redirect
from .faults import Busy, DeadRedirect, Delay, Status
from .files import BLOCK_BYTES
from .http import BadRequestError, HangupError, Reply
from .names import HOST, check_bucket_name, check_object_name
from .problem import ReplyError, check_sender, of_the_machine
from .routes import Call, find

# Query parameters that determine the meaning of a PUT of an object.
_PUT_KEYS = ("append_type", "object_to", "uploadId")


def answer(call: Call) -> Reply:
    """Return the answer; only a broken connection is an exception."""
    try:
        reply = _dispatch(call)
    except ReplyError as problem:
        return _problem_reply(problem, call)
    except (HangupError, BadRequestError):
        raise
    except OSError as error:  # of the disk; the connection's own are a HangupError
        return _problem_reply(of_the_machine(call.node.tag, error), call)
    except Exception as error:  # noqa: BLE001  a bug here is the client's 500, not a dead thread
        with suppress(OSError):  # a full disk, too, must not end in silence
            traceback.print_exc(file=sys.stderr)
        return _problem_reply(ReplyError(500, f"{call.node.tag}: {type(error).__name__}: {error}"), call)
    location = reply.headers.get("Location")
    if location is not None and call.plan.last(DeadRedirect):
        port = call.cluster.dead.getsockname()[1]
        reply.headers["Location"] = urlsplit(location)._replace(netloc=f"{HOST}:{port}").geturl()
    return reply


def _dispatch(call: Call) -> Reply:
    check_sender(call.request, call.cluster.ports)
    _check_space(call)
    resource, key = _resolve(call)
    if call.cluster.faults:
        _meet_faults(call, resource, key)
    found = find(call, resource, key)
    if resource in ("bucket", "object") and key != "create-bck":
        call.store.bucket(call.bucket)  # a 404 if there is none
    return redirect(call) if resource == "object" and call.node.role == "proxy" else found.handler(call)


def _meet_faults(call: Call, resource: str, key: str) -> None:
    verb = call.request.method
    if resource == "bucket" and verb == "GET" and key == "list":
        verb = "LIST"
    elif resource == "batch":
        verb = "BATCH"
    at_proxy = call.node.role == "proxy" and resource in ("object", "batch")
    name = call.name if resource == "object" else ""
    plan = call.plan = call.cluster.faults.plan(at_proxy=at_proxy, verb=verb, bucket=call.bucket, name=name)
    busy, status = plan.last(Busy), plan.last(Status)
    if busy is not None and call.cluster.under_way(call.node) > busy.above:
        raise _refused(call, 429, busy.retry_after)
    time.sleep(sum(delay.seconds for delay in plan.all(Delay)))
    if status is not None:
        raise _refused(call, status.code, status.retry_after)


def _refused(call: Call, code: int, retry_after: float | None) -> ReplyError:
    headers = None if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return ReplyError(code, f"{call.node.tag}: injected fault", headers=headers)


def _check_space(call: Call) -> None:
    """Refuse a body larger than the free disk; the connection then ends."""
    announced = call.request.body.announced
    if announced > BLOCK_BYTES and announced > shutil.disk_usage(call.cluster.root).free:
        problem = of_the_machine(call.node.tag, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        problem.headers["Connection"] = "close"  # nothing reads the body
        raise problem


def _resolve(call: Call) -> tuple[str, str]:
    """Resolve path and request; fill in bucket and object."""
    request = call.request
    version, _, rest = request.path.lstrip("/").partition("/")
    kind, _, rest = rest.partition("/")
    first, slash, more = rest.partition("/")
    if version != "v1" or not kind:
        return request.path, ""
    if kind == "objects":
        call.bucket, call.name = first, more
        return ("object" if slash else "objects"), _object_key(call, more if slash else None)
    if kind == "buckets":
        call.bucket, call.name = first, more
        return _resolve_bucket(call, first)
    if kind in ("daemon", "cluster") and not rest:
        return kind, request.query.get("what") or call.text("action")
    if kind == "reverse" and rest == "daemon":
        return kind, request.query.get("what", "")
    if kind == "sort":
        return kind, rest
    if kind == "ml" and first == "moss":
        call.bucket, _, call.name = more.partition("/")
        return "batch", ""
    call.name = rest
    if kind == "etl":
        return ("etl" if rest else "etls"), first if first == "_object" else more.partition("/")[0]
    return ("health" if kind == "health" else request.path), ""


def _resolve_bucket(call: Call, name: str) -> tuple[str, str]:
    if call.request.method == "HEAD":
        return "bucket", "bsumm_remote" if "bsumm_remote" in call.request.query else ""
    if name:
        check_bucket_name(name)
    return ("bucket" if name else "buckets"), call.text("action")


def _object_key(call: Call, name: str | None) -> str:
    """Resolve the request of an object; without a name only POST is one."""
    method = call.request.method
    if name is not None:
        check_object_name(name)
    elif method != "POST":
        path = call.request.path.strip("/")
        raise ReplyError(400, f"URL '{path}' is too short: expected 4 items, got {path.count('/') + 1}")
    if method in ("POST", "DELETE"):
        return call.text("action")
    return next((key for key in _PUT_KEYS if key in call.query), "") if method == "PUT" else ""


def _problem_reply(problem: ReplyError, call: Call) -> Reply:
    """Write an error as AIStore does; in a header where there can be no body."""
    request = call.request
    fields: dict[str, object] = {"tcode": problem.tcode} if problem.tcode else {}
    fields |= {
        "message": problem.message,
        "method": request.method,
        "url_path": request.path,
        "remote_addr": call.peer,
        "caller": "",
        "node": call.node.tag,
        "status": problem.status,
    }
    text = msgspec.json.encode(fields).decode()
    headers = {"Content-Type": "application/json", **problem.headers}
    if request.method == "HEAD":
        headers["Hdr-Error"] = text
    headers["X-Content-Type-Options"] = "nosniff"
    return Reply(problem.status, headers, (text + "\n").encode())
