"""`diagnose`: checks of installation, codecs, cluster, clock and shards."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Literal

from torchdata_ais._util.formatting import count_text
from torchdata_ais._util.versions import versions
from torchdata_ais.errors import AISError
from torchdata_ais.store import Cluster, Retry, StoreOptions, cluster_options, list_buckets, read_range
from torchdata_ais.store.objects.pages import Entry, list_bucket
from torchdata_ais.store.transport.attempts import Attempts, retried
from torchdata_ais.store.transport.exchange import drain
from torchdata_ais.store.transport.metadata import INSTALL_CRC32C, hash_maker
from torchdata_ais.store.transport.request import send
from torchdata_ais.tar.compression import ZSTD
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.urls.parsing import is_shard

_CLOCK_S = 5.0
_SHM_BYTES = 1 << 30
_TIMEOUT_S = 5.0
_AT_ONCE = 8


@dataclass(frozen=True)
class Check:
    """Result of one check: the finding, and its remedy, if any.

    ``"note"``: it works with less; ``"bad"``: it will not work.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    text: str
    todo: str = ""


def diagnose(cluster: Cluster = None, *, shards: str = "") -> list[Check]:
    """Check all requirements of a training. A failed check never raises.

    Args:
        cluster: The cluster to check, see `torchdata_ais.store.Cluster`; a note if there is none.
        shards: ``ais://bucket/prefix`` of shards to look at, too: whether the last byte of each can be read.

    Example:
        >>> checks = diagnose()
        >>> [check.name for check in checks][:3]
        ['versions', 'torch', 'loaders']
    """
    found = [_safely(name, look) for name, look in _LOCAL.items()]
    try:
        options = cluster_options(cluster)
    except AISError as error:
        return [*found, Check("cluster", "bad", error.sentences)]
    if not options.endpoint:
        todo = "export AIS_ENDPOINT=http://host:51080; torchdata-ais serve starts a cluster here"
        return [*found, Check("cluster", "note", "none is named", todo)]
    found += _cluster(options)
    return [*found, _safely("shards", lambda: _shards(shards, options))] if shards else found


def _safely(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything; that is the finding
        return Check(name, "bad", f"{type(error).__name__}: {error}".splitlines()[0])


def _torch() -> Check:
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a library that was built for other hardware fails in many ways
        return Check("torch", "bad", f"cannot be imported: {_first(error)}", "install torch anew")
    gpu = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
    return Check("torch", "ok", f"{torch.__version__}, {gpu}, {torch.get_num_threads()} threads")


def _loaders() -> Check:
    from torchdata_ais.dataloader2.torchdata_names import OWN

    whose = "this package's" if OWN else "torchdata's"
    methods = "/".join(multiprocessing.get_all_start_methods())
    return Check("loaders", "ok", f"{whose} DataLoader2, and DataLoader; start methods {methods}")


def _codecs() -> Check:
    from torchdata_ais.codecs import Decoder

    Decoder()
    troubles = {name: _trouble(name) for name in ("simplejpeg", "soundfile", "av", "cbor2", ZSTD)}
    there = ["pillow", *(name for name, trouble in troubles.items() if not trouble)]
    missing = [f"{name} ({trouble})" for name, trouble in troubles.items() if trouble]
    text = ", ".join(there) + (f"; cannot be used: {', '.join(missing)}" if missing else "")
    if troubles["simplejpeg"]:
        return Check("codecs", "note", text, "pip install simplejpeg decodes JPEG faster")
    return Check("codecs", "ok", text)


def _checksums() -> Check:
    if hash_maker("", "crc32c") is None:
        text = "not verified: crc32c, which objects have that were uploaded in parts"
        return Check("checksum", "note", text, INSTALL_CRC32C)
    return Check("checksum", "ok", "xxhash, md5, sha256, sha512 and crc32c are verified")


def _trouble(name: str) -> str:
    """Return why a library cannot be imported; empty if it can."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return "not installed"
    except Exception as error:  # noqa: BLE001 - see above
        return f"broken: {_first(error)}"
    return ""


def usable_cores() -> int:
    """Return how many cores of this machine this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine() -> Check:
    text = f"{usable_cores()} cores"
    if sys.platform == "linux":
        shared = shutil.disk_usage("/dev/shm")  # noqa: S108 - where workers put tensors
        text += f", {shared.free / 1e9:.1f} GB free in /dev/shm"
        if shared.free < _SHM_BYTES:
            todo = "give the container more: docker run --shm-size=8g, or an emptyDir of medium Memory"
            return Check("machine", "note", f"{text}: workers hand tensors over through it", todo)
    return Check("machine", "ok", text)


_LOCAL: dict[str, Callable[[], Check]] = {
    "versions": lambda: Check("versions", "ok", ", ".join(map(" ".join, versions().items()))),
    "torch": _torch,
    "loaders": _loaders,
    "codecs": _codecs,
    "checksum": _checksums,
    "machine": _machine,
}


def _cluster(options: StoreOptions) -> Iterator[Check]:
    once = replace(options, retry=Retry(attempts=1, deadline=2 * _TIMEOUT_S), first_byte_timeout=_TIMEOUT_S)
    where = redact(options.endpoint)
    token = "with a token" if options.token else "without a token"
    began = time.monotonic()
    try:
        date = _date_of(once)
    except AISError as error:
        todo = "check AIS_ENDPOINT, that the cluster is up, and proxies of the environment"
        yield Check("cluster", "bad", f"{where} cannot be reached: {error.what}", todo)
        return
    elapsed = time.monotonic() - began
    yield _safely("cluster", lambda: _buckets(once, where, f"{token}, {1000 * elapsed:.0f} ms"))
    if date is not None:
        behind = time.time() - date
        if abs(behind) > _CLOCK_S:
            todo = "synchronise the clocks (NTP): tokens and certificates depend on them"
            yield Check("clock", "note", f"{abs(behind):.0f} s away from the cluster's", todo)
        else:
            yield Check("clock", "ok", "that of the cluster, as far as its seconds tell")


def _date_of(options: StoreOptions) -> float | None:
    """Return the cluster's time, in seconds since the epoch."""
    url = f"{options.endpoint}/v1/health"

    def ask(attempts: Attempts) -> str | None:
        answer = send("GET", url, options, attempts, with_token=False, follow=False)
        drain(answer)
        return answer.headers.get("Date")

    stated = retried(ask, options.retry, "health", options.endpoint)
    try:
        return parsedate_to_datetime(stated).timestamp() if stated else None
    except (ValueError, OverflowError):
        return None


def _buckets(options: StoreOptions, where: str, how: str) -> Check:
    try:
        count = len(list_buckets(options))
    except AISError as error:
        return Check("cluster", "bad", f"{where} answers, but: " + error.sentences)
    return Check("cluster", "ok", f"{where}, {count_text(count, 'bucket')}, {how}")


def _shards(source: str, options: StoreOptions) -> Check:
    """Read the last byte of each shard: one damaged by a job ends before."""
    place = parse_url(source).at(options.endpoint)
    if place.kind != "object":
        return Check("shards", "bad", f"{redact(source)} is not in a bucket", "write ais://bucket/prefix")
    options = replace(options, endpoint=place.endpoint, retry=Retry(attempts=2, deadline=2 * _TIMEOUT_S))
    listed = [one for one in list_bucket(place, place.name, options) if is_shard(one.name) and one.size]

    def trouble_of(one: Entry) -> AISError | None:
        try:
            read_range(replace(place, name=one.name), one.size - 1, 1, options)
        except AISError as error:
            return error
        return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        troubles = list(filter(None, pool.map(trouble_of, listed)))
    text = count_text(len(listed), "shard")
    if troubles:
        first = troubles[0]
        what = f"{len(troubles)} of {text} cannot be read to the last byte. The first: {first.what}"
        return Check("shards", "bad", what, str(first.todo))
    chunked = sum(one.chunked for one in listed)
    text += ", each read at its last byte"
    if chunked:
        todo = "index them by reading: AIStore's shard index job destroys objects that were uploaded in parts"
        return Check("shards", "note", f"{text}; {chunked} of them were uploaded in parts", todo)
    return Check("shards", "ok" if listed else "note", text)


def _first(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
