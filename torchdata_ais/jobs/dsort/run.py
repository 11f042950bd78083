"""run_dsort."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.jobs.dsort.spec import DsortSpec, check_spec, load_spec, translate_spec
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.samples import Sample
from torchdata_ais.store import Cluster, StoreOptions, delete_object, list_objects, put_object
from torchdata_ais.store.jobs import JobError, JobState, OnProgress, Progress, known_cluster, wait_for_job
from torchdata_ais.store.objects.sdk import call, job_id_in, make_bucket, sdk_client
from torchdata_ais.store.objects.sdk_names import send_by
from torchdata_ais.urls import Location, ObjectURL, expand_template, parse_url
from torchdata_ais.urls.parsing import archive_ending

_NAMED = 5


def check_samples(
    before: Sequence[ObjectURL],
    after: Sequence[ObjectURL],
    options: StoreOptions,
    name: str,
    progress: OnProgress | None = None,
) -> int:
    """Return how many samples `after` holds, if they are those of `before`.

    Raises `JobError` for one that is missing, changed, or there more often.
    """
    left: Counter[int] = Counter()
    count = 0
    total = len(before) + len(after)
    for number, url in enumerate(before):
        left.update(map(digest, _samples(url, options)))
        _tell(progress, number + 1, total)
    extra: list[str] = []
    for number, url in enumerate(after):
        for sample in _samples(url, options):
            count += 1
            code = digest(sample)
            if left[code]:
                left[code] -= 1
            elif len(extra) <= _NAMED:
                extra.append(f"{sample['__key__']!r} of {url}")
        _tell(progress, len(before) + number + 1, total)
    lost = sum(left.values())
    if lost or extra:
        again = (sample for url in before for sample in _samples(url, options))
        keys = islice((repr(sample["__key__"]) for sample in again if left[digest(sample)]), _NAMED)
        what = [f"{lost} samples are missing or changed: {', '.join(keys)}"] if lost else []
        what += [f"others are there that were not: {', '.join(extra[:_NAMED])}"] if extra else []
        raise JobError.at(
            f"{name} did not keep the samples: {'; '.join(what)}",
            todo="do not train on its output; samples of different shards with one key are taken for one by dSort",
        )
    return count


def digest(sample: Sample) -> int:
    """Return a hash of key, fields and data, in any order of the fields."""
    summary = xxhash.xxh3_64(sample["__key__"].encode("utf-8", "surrogateescape"))
    for field in sorted(name for name in sample if not name.startswith("__")):
        summary.update(f"\0{field}\0{len(sample[field])}\0".encode("utf-8", "surrogateescape"))
        summary.update(sample[field])
    return summary.intdigest()


def _samples(url: ObjectURL, options: StoreOptions) -> Iterator[Sample]:
    return iter(TarSampleGrouper(AISFileLoader([url], cluster=options)))


def _tell(progress: OnProgress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(Progress("check", done, total))


_NUMBER = re.compile(r"%(?:0?\d+)?d|@\d*")


@dataclass(frozen=True)
class Names:
    """Names in one bucket: `exact` ones in order, or regular expressions."""

    bucket: Location
    exact: tuple[str, ...] | None
    patterns: tuple[str, ...] = ()

    def listed(self, options: StoreOptions) -> list[ObjectURL]:
        """Return those that exist, in the order given, else by name."""
        found = {
            parse_url(url).name: url
            for url in list_objects(self.bucket.uri.rstrip("/"), options=options, allow_empty=True)
        }
        if self.exact is not None:
            return [found[name] for name in self.exact if name in found]
        wanted = [re.compile(pattern) for pattern in self.patterns]
        return [url for name, url in sorted(found.items()) if any(rule.fullmatch(name) for rule in wanted)]


def inputs_of(spec: Mapping[str, Any]) -> Names:
    """Return the input of the (translated) specification."""
    bucket = _place(spec["input_bck"])
    extension = spec.get("input_extension") or ""
    form = spec["input_format"]
    names = list(form.get("objnames") or ())
    template = form.get("template") or ""
    if not names and "{" in template:
        names = list(expand_template(template))
    if names:
        return Names(bucket, tuple(name if archive_ending(name) else name + extension for name in names))
    if _NUMBER.search(template):
        return Names(bucket, None, (_pattern(template, extension),))
    return Names(bucket, None, (re.escape(template) + ".*" + re.escape(extension),))  # a prefix


def outputs_of(spec: Mapping[str, Any], templates: tuple[str, ...] = ()) -> Names:
    """Return the output of the specification, or of templates of a key map."""
    bucket = _place(spec.get("output_bck") or spec["input_bck"])
    extension = spec.get("output_extension") or spec.get("input_extension") or ""
    templates = templates or (spec.get("output_format") or "",)
    return Names(bucket, None, tuple(_pattern(template, extension) for template in templates))


def _pattern(template: str, extension: str) -> str:
    """Return a regular expression for the names that a template gives."""
    if not archive_ending(template):
        template += extension
    pieces = re.split(rf"({_NUMBER.pattern}|\{{[^{{}}]*\}})", template)
    return "".join(r"\d+" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))


def _place(bucket: Mapping[str, Any]) -> Location:
    space = bucket.get("namespace") or {}
    namespace = f"@{space.get('uuid', '')}#{space.get('name', '')}" if any(space.values()) else ""
    return Location("object", "", bucket["name"], bucket.get("provider") or "ais", namespace)


logger = logging.getLogger("torchdata_ais")


@dataclass(frozen=True)
class DsortResult:
    """Result of a job.

    Attributes:
        job_id: Its name on the cluster.
        shards: The new shards, by name.
        missing: Names of the specification for which there was no shard.
        samples: How many samples the new shards hold, the same as the old ones; None if it was not checked.
    """

    job_id: str
    shards: list[ObjectURL]
    missing: list[str] = dataclass_field(default_factory=list)
    samples: int | None = None


@checked
def run_dsort(
    cluster: Cluster,
    spec: DsortSpec | Mapping[str, object] | str | Path,
    *,
    check: bool = False,
    overwrite: bool = False,
    progress: OnProgress | None = None,
    stall_timeout: float = 600.0,
) -> DsortResult:
    """Run a dSort job and wait until it is done.

    Args:
        cluster: See `torchdata_ais.store.Cluster`.
        spec: A `DsortSpec`; or a specification as the ``ais`` command takes it, of any age, as a dict or the path of
            its JSON or YAML file.
        check: Read the old and the new shards, and compare: the same samples, whole, each as often as before.
        overwrite: Delete objects that have names as the new shards will have. Otherwise they are an error, since
            shards of an earlier job after the last new one would be read with them.
        progress: Called with each new `Progress`: phase ``"read"``, ``"sort"``, ``"write"``, then ``"check"``.
        stall_timeout: Seconds without progress after which waiting is given up.

    Returns:
        A `DsortResult`. Input names that do not exist are passed over by the server; they are logged as a warning and
        named in the result.

    Memory:
        About 100 bytes a sample while checking.

    Raises:
        NotFoundError: None of the input shards is there.
        UsageError: The output would meet existing objects, or the specification cannot work.
        JobError: The job failed or was aborted; or, checked, a sample is missing, changed or doubled.
        StallError: The job makes no progress.
        ShardError: Checked, a shard is not whole.

    Example:
        >>> from torchdata_ais.jobs.dsort import DsortSpec, Shuffle
        >>> from torchdata_ais.local import LocalCluster
        >>> from torchdata_ais.testing import example_shards
        >>> with LocalCluster() as cluster:
        ...     bucket = cluster.client().bucket("b").create()
        ...     for number, shard in enumerate(example_shards()):
        ...         _ = bucket.object(f"s-{number}.tar").get_writer().put_file(shard)
        ...     spec = DsortSpec("ais://b/s-{0..2}.tar", "ais://b/new-%d.tar", shard_size=8, order=Shuffle(5))
        ...     result = run_dsort(cluster.client(), spec, check=True)
        >>> result.samples, len(result.shards) > 1
        (6, True)
    """
    options = known_cluster(cluster)
    key_map = spec.key_map if isinstance(spec, DsortSpec) else None
    if isinstance(spec, DsortSpec):
        wanted = spec.to_server()
    else:
        wanted = translate_spec(spec if isinstance(spec, Mapping) else load_spec(spec))
    templates = tuple(key_map) if isinstance(key_map, Mapping) else ()
    inputs, outputs = inputs_of(wanted), outputs_of(wanted, templates)
    with sdk_client(options) as client:
        sources, missing = _sources(inputs, options)
        if inputs.exact is None:
            # Today's server reads no prefixes: it would write nothing, and call it a success.
            wanted["input_format"] = {"objnames": [parse_url(url).name for url in sources]}
        if not outputs.bucket.namespace:
            make_bucket(client, outputs.bucket, options)
        old = _old_outputs(outputs, inputs, sources, options, overwrite=overwrite)
        with _stored(key_map, outputs, options) as fields:
            check_spec(wanted | fields)
            for url in old:  # not before all checks have passed
                delete_object(url, options, missing_ok=True)
            job_id = _start(client, wanted | fields, options)
            name = f"dSort job {job_id}"
            wait_for_job(_look(client, job_id, options), name, progress=progress, stall_timeout=stall_timeout)
    shards = outputs.listed(options)
    if not shards:
        raise JobError.at(f"{name} ended and wrote no shard", todo="look at the log of the targets")
    samples = check_samples(sources, shards, options, name, progress) if check else None
    return DsortResult(job_id, shards, missing, samples)


def _sources(inputs: Names, options: StoreOptions) -> tuple[list[ObjectURL], list[str]]:
    """Return the existing input shards, and the names of the missing ones."""
    sources = inputs.listed(options)
    if not sources:
        raise NotFoundError.at(
            "no shard is there to be sorted",
            todo="check bucket, input format and extension of the specification",
            url=inputs.bucket.uri,
        )
    there = {parse_url(url).name for url in sources}
    missing = [name for name in inputs.exact or () if name not in there]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        logger.warning(
            "dSort: %d of %d input shards are not in %s and are passed over: %s",
            len(missing), len(inputs.exact or ()), inputs.bucket.uri, shown,
        )  # fmt: skip
    return sources, missing


def _old_outputs(
    outputs: Names, inputs: Names, sources: list[ObjectURL], options: StoreOptions, *, overwrite: bool
) -> list[ObjectURL]:
    """Return the objects with names of new shards, if they may be deleted."""
    old = outputs.listed(options)
    if outputs.bucket == inputs.bucket and set(map(str, old)) & set(map(str, sources)):
        raise UsageError.at(
            "the new shards would have the names of the input",
            todo="give them another name, or another bucket",
            url=str(old[0]),
        )
    if old and not overwrite:
        raise UsageError.at(
            f"{len(old)} objects with names of new shards are there already, and would be read together with them",
            todo=Remedy("delete them, write to another name", "pass overwrite=True, which deletes them"),
            url=str(old[0]),
        )
    return old


@contextmanager
def _stored(
    key_map: Mapping[str, Any] | str | None, outputs: Names, options: StoreOptions
) -> Iterator[dict[str, Any]]:
    """Keep a key map where targets can fetch it; give the fields that name it."""
    if not isinstance(key_map, Mapping):
        yield {}
        return
    place = replace(outputs.bucket, name=f"__dsort__/{uuid.uuid4().hex}.json")
    text = json.dumps({template: list(keys) for template, keys in key_map.items()})
    put_object(place.uri, text.encode(), options)
    try:
        yield {
            "ekm_file": replace(place, endpoint=options.endpoint).url(),
            "ekm_file_sep": "",
            "output_format": "",
        }
    finally:
        delete_object(place.uri, options, missing_ok=True)


def _start(client: object, wanted: dict[str, Any], options: StoreOptions) -> str:
    """Start the job, once: two jobs would write the same shards."""
    once = replace(options, retry=replace(options.retry, attempts=1))

    def start() -> str:
        return job_id_in(send_by(client, "POST", path="sort", json=wanted).text, options)

    return call(start, once, "start of dSort", options.endpoint)


def _look(client: Any, job_id: str, options: StoreOptions) -> Callable[[], JobState]:
    job = client.dsort(job_id)

    def ask() -> JobState:
        infos = list(job.get_job_info().values())
        metrics = [info.metrics for info in infos]
        errors = [error for one in metrics for error in one.errors or () if error]
        if not errors and any(info.aborted or info.metrics.aborted for info in infos):
            errors = ["it was aborted"]
        finished = bool(metrics) and all(one.shard_creation.finished for one in metrics)
        return JobState(_progress(metrics), finished, "; ".join(errors))

    return lambda: call(ask, options, f"dSort job {job_id}", options.endpoint)


def _progress(metrics: list[Any]) -> Progress:
    """Add up the numbers of the targets."""
    read = [one.local_extraction for one in metrics]
    written = [one.shard_creation for one in metrics]
    if not all(part.finished for part in read):
        return Progress("read", sum(int(part.extracted_count) for part in read), 0)
    if not any(part.running or part.finished for part in written):
        return Progress("sort", 0, 0)
    return Progress(
        "write",
        sum(int(part.created_count) for part in written),
        sum(int(part.to_create) for part in written),
    )
