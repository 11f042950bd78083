"""Field table: meaning of the last component of a field's name."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdata_ais._util.versions import require
from torchdata_ais.codecs import tenbin
from torchdata_ais.codecs.handlers import INTEGER, MAX_GZ_BYTES, Decoded, by_name, extension, without_mark
from torchdata_ais.errors import DecodeError, DecodeUsageError
from torchdata_ais.errors.text import Remedy, in_programs
from torchdata_ais.tar import kind_of


@dataclass(frozen=True)
class FieldTable:
    """Decodes the fields that need no further choice.

    ================================  =====================================================
    ``txt text transcript html htm``  str (UTF-8, without its byte order mark)
    ``cls cls2 class count index``
    ``inx id``                        int (digits with or without a sign)
    ``json jsn``, ``jsonl``           any JSON value, list of the values of the lines
    ``npy``, ``npz``                  ndarray, dict of ndarrays; no object arrays
    ``ten tb tenbin``                 list of ndarrays
    ``mp msg msgpack messagepack``    any MessagePack value
    ``cbor``                          any CBOR value (extra ``[formats]``)
    ``pt pth``                        ``torch.load`` on the CPU, weights only
    ``pkl pickle pyd``                refused without `allow_pickle`: unpickling runs code
    ================================  =====================================================

    Takes:
        allow_pickle: Unpickle, load object arrays, and load whole objects from ``pt``: only for shards from trusted
            authors, who may run code here.
        max_bytes: Most bytes an ``npz`` may unpack to.

    Example:
        >>> table = FieldTable()
        >>> table(".cls", b"7"), table(".meta.json", b'{"a": 1}'), table(".jpg", b"...")
        (7, {'a': 1}, None)
    """

    allow_pickle: bool = False
    max_bytes: int = MAX_GZ_BYTES

    def __call__(self, name: str, data: bytes) -> Any:
        """Return the value; None if the field is not in the table."""
        load = _LOADERS.get(extension(name))
        if load is None:
            return None
        value = load(data, self)
        return Decoded(None) if value is None else value

    def has(self, name: str) -> bool:
        """Return whether fields of this name are in the table."""
        return extension(name) in _LOADERS


basichandlers = FieldTable()

_MOST_DIGITS = 4000  # Python converts no more than 4,300


def _integer(data: bytes, _: FieldTable) -> int:
    if data.isdigit() and len(data) <= _MOST_DIGITS:
        return int(data)
    digits = without_mark(data)
    if not INTEGER.fullmatch(digits) or len(digits) > _MOST_DIGITS:
        kind = kind_of(data) if data else "there are none"
        raise DecodeError.at(
            f"the {len(data)} bytes are no whole number: {kind}",
            todo=Remedy(
                "name text .txt where the shards are written",
                in_programs("; or leave the field out with only= and number the names by .map_dict(cls=...)"),
                in_programs('; or use on_error="skip"'),
            ),
        )
    return int(digits)


def _jsonl(data: bytes, _: FieldTable) -> list[Any]:
    return [json.loads(line) for line in without_mark(data).split(b"\n") if line.strip()]


def _npy(data: bytes, table: FieldTable) -> object:
    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=table.allow_pickle)
    except MemoryError as error:  # bad data, not a full machine: the header is read before the length
        raise DecodeError.at("the npy header asks for more memory than there is") from error
    except ValueError as error:
        if "Object arrays" in str(error):
            raise _refused("an npy field with Python objects") from error
        raise


def _npz(data: bytes, table: FieldTable) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > table.max_bytes:
            raise DecodeError.at(
                f"the npz unpacks to {size} bytes, more than max_gz_bytes={table.max_bytes}",
                todo="Raise max_gz_bytes= if the field may be that large",
            )
        parts = {member.filename.removesuffix(".npy"): archive.read(member) for member in archive.infolist()}
    # As in numpy.load, a part that is not an array stays bytes.
    return {name: _npy(part, table) if part[:6] == b"\x93NUMPY" else part for name, part in parts.items()}


def _msgpack(data: bytes, _: FieldTable) -> object:
    import msgspec

    return msgspec.msgpack.decode(data)


def _torch(data: bytes, table: FieldTable) -> object:
    import torch

    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=not table.allow_pickle)
    except pickle.UnpicklingError as error:
        if table.allow_pickle:
            raise
        # torch's own text runs over many lines and recommends settings that do not apply here.
        raise _refused("a torch field that is more than tensors and plain containers") from error


def _pickle(data: bytes, table: FieldTable) -> object:
    if not table.allow_pickle:
        raise _refused("a pickle field")
    return pickle.loads(data)  # noqa: S301 -- the caller said allow_pickle


def _refused(what: str) -> DecodeUsageError:
    # Of the call, not of the sample: all samples have the field, and without an error there would be none.
    return DecodeUsageError.at(
        f"{what} can run code when it is loaded, which is not allowed here",
        todo=Remedy(
            "Pass allow_pickle=True if you trust whoever wrote the shards", "leave it out with only="
        ),
    )


_LOADERS: dict[str, Callable[[bytes, FieldTable], Any]] = by_name(
    {
        "text": lambda data, _: without_mark(data).decode("utf-8"),
        "integer": _integer,
        "json": lambda data, _: json.loads(without_mark(data)),
        "jsonl": _jsonl,
        "npy": _npy,
        "npz": _npz,
        "ten": lambda data, _: tenbin.loads(data),
        "msgpack": _msgpack,
        "cbor": lambda data, _: require("cbor2", "a cbor field").loads(data),
        "torch": _torch,
        "pickle": _pickle,
    }
)
