"""Sheets of shards, loaders and samples."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from torchdata_ais._util.arguments import check_number, checked
from torchdata_ais._util.formatting import html_text, value_text
from torchdata_ais.errors import AISError, NotFoundError, UsageError
from torchdata_ais.observe.display.rows import (
    MASK_VALUES,
    is_image,
    is_mask_name,
    rows_of,
    shown_as,
    tinted,
    to_mask,
    to_picture,
)
from torchdata_ais.observe.display.sheet import contact_sheet
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.pipes.base.torch_pipes import deepcopy_pipe
from torchdata_ais.samples import Sample
from torchdata_ais.store import Cluster, cluster_options
from torchdata_ais.urls import object_url

_PREFETCH_BYTES = 4 << 20  # a few samples are wanted, not the shard


@checked
def display_shard_images(
    client: Cluster,
    bucket: object,
    shard: str,
    objects: int = 4,
    *,
    etl_name: str | None = None,
    etl_args: Any = None,
    columns: int | None = None,
    size: int = 160,
    image: str | int | None = None,
    label: str | int | bool | None = None,
    mask: str | int | bool | None = None,
    classes: Sequence[str] | Mapping[Any, object] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    opacity: float = 0.45,
) -> Image.Image:
    """Return a contact sheet of a shard's first samples; reads only these.

    Args:
        client: See `torchdata_ais.store.Cluster`.
        bucket: ``ais://bucket`` (``gcp://``, ``s3://``, ...), a bucket's name, or an SDK bucket.
        shard: The object's name.
        objects: The most samples.
        etl_name: Show the shard as transformed by this ETL.
        etl_args: Arguments for it.
        columns: Tiles in a row; default at most 8.
        size: Width and height in which each image is shown, in pixels; its aspect stays.
        image: Field name, or position in the tuple, of the image; default the first that is one.
        label: The same for the text; default ``cls`` with a caption below it, one of them, or else the key. False for
            none.
        mask: The same for the mask; default a second image of the same size that is named ``mask``, ``trimap`` or
            ``seg``, or has few different values. Values above 0 are tinted. False for none.
        classes: Names of the classes by number, or their numbers by name, as torchvision has them.
        mean: The number subtracted from each channel to normalise it (of 0 to 1); it is undone.
        std: The divisor after that.
        opacity: Of the mask, 0 to 1.

    Order:
        That of the samples, row by row.

    Memory:
        The picture: about ``3 * objects * (size + 6) * (size + 24)`` bytes.

    Raises:
        TransportError, ShardError: The shard cannot be read so far.
        NotFoundError: It holds no sample.
        UsageError: No image in a sample.

    Example:
        >>> from torchdata_ais.examples.pets import make_shards
        >>> from torchdata_ais.local import LocalCluster
        >>> with LocalCluster() as cluster:
        ...     bucket = cluster.client().bucket("pets").create()
        ...     _ = bucket.object("s.tar").get_writer().put_content(next(make_shards([6])))
        ...     display_shard_images(cluster.client(), "ais://pets", "s.tar", objects=4).size
        (670, 190)
    """
    check_number(objects, 1, "objects")
    url = object_url(client, bucket, shard, etl_name=etl_name, etl_args=etl_args)
    loader = AISFileLoader([url], cluster=cluster_options(client), prefetch_bytes=_PREFETCH_BYTES)
    samples = iter(TarSampleGrouper(loader))
    try:
        first = list(islice(samples, objects))
    finally:
        _close(samples)
    if not first:
        raise NotFoundError.at(
            "the shard holds no sample", todo="look at it with torchdata-ais inspect", url=url
        )
    return contact_sheet(
        first,
        objects=objects,
        columns=columns,
        size=size,
        image=image,
        label=label,
        mask=mask,
        classes=classes,
        mean=mean,
        std=std,
        opacity=opacity,
    )


@checked
def display_loader_images(
    loader: Iterable[object],
    objects: int = 4,
    *,
    columns: int | None = None,
    size: int = 160,
    image: str | int | None = None,
    label: str | int | bool | None = None,
    mask: str | int | bool | None = None,
    classes: Sequence[str] | Mapping[Any, object] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    opacity: float = 0.45,
) -> Image.Image:
    """Return a contact sheet of the first samples of a loader.

    Nothing is taken from the caller: an epoch under way continues unchanged, and the order of the next ones and the
    state of the random generators stay as they are. For a pipe, a `DataLoader2`, an `ais_loader` and a torch
    `DataLoader` a copy of the pipe or data set is read in this process; other iterables (webdataset's `WebLoader`, a
    list) are iterated separately, and that iterator is closed again. An iterator that can be read only once is
    refused, since looking would take from it: take a batch by hand and show it with `contact_sheet`.

    Args:
        loader: Anything that can be iterated over more than once and gives samples or batches.
        objects: The most samples, from as many batches as it takes.
        columns: Tiles in a row; default at most 8.
        size: Width and height in which each image is shown, in pixels; its aspect stays.
        image: Field name, or position in the tuple, of the image; default the first that is one.
        label: The same for the text; default ``cls`` with a caption below it, one of them, or else the key. False for
            none.
        mask: The same for the mask; default a second image of the same size that is named ``mask``, ``trimap`` or
            ``seg``, or has few different values. Values above 0 are tinted. False for none.
        classes: Names of the classes by number, or their numbers by name, as torchvision has them.
        mean: The number subtracted from each channel to normalise it (of 0 to 1); it is undone.
        std: The divisor after that.
        opacity: Of the mask, 0 to 1.

    Order:
        That of the samples, row by row.

    Memory:
        The picture: about ``3 * objects * (size + 6) * (size + 24)`` bytes.

    Raises:
        UsageError: A one-shot iterator, a pipe that cannot be copied, nothing to show, or no image in it.

    Example:
        >>> display_loader_images([(torch.rand(3, 3, 32, 32), torch.tensor([0, 1, 2]))], objects=4).size
        (504, 190)
    """
    rows: list[Any] = []
    with _generators_kept():
        items = iter(_independent(loader))
        try:
            while len(rows) < objects and (item := next(items, None)) is not None:
                rows += rows_of(item, objects - len(rows))
        finally:
            _close(items)
    if not rows:
        raise UsageError.at("there is nothing to show: the loader gives nothing")
    return contact_sheet(
        rows,
        objects=objects,
        columns=columns,
        size=size,
        image=image,
        label=label,
        mask=mask,
        classes=classes,
        mean=mean,
        std=std,
        opacity=opacity,
    )


def _close(items: Iterator[object]) -> None:
    """Close an iterator, with its connections and processes, now."""
    close = getattr(items, "close", None)
    if close is not None:
        close()


def _independent(loader: Any) -> Iterable[object]:
    """Return an object with the items of `loader` and a separate position."""
    if isinstance(loader, DataLoader):
        data: Any = loader.dataset
        data = _copied(data) if isinstance(data, IterableDataset) else data
        return DataLoader(data, batch_size=loader.batch_size, collate_fn=loader.collate_fn)
    if isinstance(loader, IterableDataset):
        return _copied(loader)
    for name in ("_datapipe_before_reading_service_adapt", "_pipe"):  # of a DataLoader2, of an ais_loader
        pipe = getattr(loader, name, None)
        if isinstance(pipe, IterableDataset):
            return _copied(pipe)
    if iter(loader) is loader:
        raise UsageError.at(
            "an iterator can be read only once, and looking at it would take from it",
            todo="pass the loader itself, or show a batch of it: contact_sheet(next(iterator))",
        )
    return loader  # type: ignore[no-any-return]


def _copied(pipe: IterableDataset[object]) -> IterableDataset[object]:
    try:
        return deepcopy_pipe(pipe)
    except Exception as error:
        raise UsageError.at(
            f"the pipe cannot be copied, and reading it would take from it: {error}",
            todo="show a batch of it: contact_sheet(batch)",
        ) from error


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore global random generators: later epochs must not depend on it."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's global one
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


_SIZE = 128
_PICTURES = 4
_FIELDS = 50
_NAME = 60
_CELL = 'style="text-align:left;overflow-wrap:anywhere"'


def sample_html(sample: Sample) -> str:
    """Return a table: key, shard and byte, then each field with kind and size.

    Images have a thumbnail. Of very many fields the first are shown.

    Example:
        >>> sample_html(Sample({"__key__": "a", "cls": 3})).count("<tr>")
        1
    """
    names = [name for name in sample if not name.startswith("__")]
    rows, pictures = "", 0
    for name in names[:_FIELDS]:
        value = sample[name]
        picture = _thumbnail(name, value) if pictures < _PICTURES else ""
        pictures += bool(picture)
        cells = (_short(name), html_text(value_text(value)), picture)
        rows += f"<tr>{''.join(f'<td {_CELL}>{cell}</td>' for cell in cells)}</tr>"
    if len(names) > _FIELDS:
        rows += f'<tr><td {_CELL} colspan="3">and {len(names) - _FIELDS} more fields</td></tr>'
    return f"<table><caption {_CELL}>{html_text(sample.where)}</caption>{rows}</table>"


def _short(name: str) -> str:
    return html_text(name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}")


def _thumbnail(name: str, value: object) -> str:
    """Return a picture of `value` as HTML, masks coloured; "" if it is none."""
    try:
        image = shown_as(name, value)
        if not is_image(image):
            return ""
        picture = to_picture(image, None, None).convert("RGB")
        picture.thumbnail((_SIZE, _SIZE))
        if is_mask_name(name) and (mask := to_mask(image)).max(initial=0) < MASK_VALUES:
            picture = tinted(picture, mask, 1.0)
    except (AISError, OSError, ValueError, SyntaxError):
        return ""
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=80)
    return f'<img src="data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}">'
