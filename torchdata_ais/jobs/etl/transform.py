"""`ShardTransform`: a function applied to all samples of a shard."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchdata_ais.codecs import Decoder
from torchdata_ais.codecs.decoder import SpecName
from torchdata_ais.codecs.handlers import Handler
from torchdata_ais.errors import NEVER_SKIPPED, AISError, DuplicateFieldError, SampleError, UsageError
from torchdata_ais.reading.runs import whole_runs, whole_samples
from torchdata_ais.samples import Fields
from torchdata_ais.tar import TarReader, archive_size, decompress
from torchdata_ais.writing.packing import SamplePacker
from torchdata_ais.writing.targets import compression_for, new_compressor

_BLOCK_BYTES = 256 << 10
_MAX_SAMPLE_BYTES = 1 << 30  # as for load_tar


Specs = SpecName | Handler | list[SpecName | Handler] | tuple[SpecName | Handler, ...]
"""Specifications for `torchdata_ais.Decoder`, one or several."""


class TransformError(SampleError):
    """The function of a transform raised an exception over a sample."""


@dataclass(frozen=True)
class ShardTransform:
    """Applies a function to every sample of a shard, and makes a new shard.

    Takes:
        function: ``f(sample)`` or ``f(sample, args)``. It returns a sample, None to leave it out, or an iterable of
            samples (with separate keys). A sample is a dict with ``__key__``, ``__url__`` and fields; the function may
            change it.
        decode: Specification, or several, for `torchdata_ais.Decoder`; None leaves fields bytes.
        decoder: Further arguments for it, such as ``{"size": 224}``.
        packer: Arguments of `TarWriter` for the new shard, such as ``{"quality": 95}``.

    Order:
        That of the shard. The same shard gives the same bytes if the function does.

    Memory:
        One sample (at most 1 GiB) before and after, and 512 KiB; 150 bytes a sample, to notice a key that comes twice.

    Example:
        >>> from torchdata_ais.testing import shard_bytes
        >>> double = ShardTransform(lambda sample: {**sample, "cls": sample["cls"] * 2}, decode="pil")
        >>> shard = b"".join(double.blocks([shard_bytes({"a.cls": b"3"})], "ais://b/s.tar"))
        >>> shard[:5], shard[512:513]
        (b'a.cls', b'6')
    """

    function: Callable[..., Any]
    decode: Specs | None = None
    decoder: Mapping[str, Any] = field(default_factory=dict)
    packer: Mapping[str, Any] = field(default_factory=dict)

    def blocks(self, shard: Iterable[bytes], url: str, args: object = "") -> Iterator[bytes]:
        """Yield the new shard, compressed by the ending of `url`.

        `args` go to a function that has a parameter of that name. After an error the new shard has no end.

        Raises:
            TransformError: The function failed, or did not return a sample; its sample is named.
            ShardError: The shard is not whole.
            SampleError: A sample cannot be decoded or encoded, or two have the same key, or is larger than 1 GiB.
            UsageError: No sample can be decoded or encoded like this.
        """
        compressor = new_compressor(compression_for(url, None))
        pending = bytearray()
        for piece in self._members(shard, url, args):
            pending += piece if compressor is None else compressor.compress(piece)
            if len(pending) >= _BLOCK_BYTES:
                yield bytes(pending)
                pending.clear()
        if compressor is not None:
            pending += compressor.flush()
        yield bytes(pending)

    def _members(self, shard: Iterable[bytes], url: str, args: object) -> Iterator[Any]:
        pack = SamplePacker(**self.packer)
        decode = None if self.decode is None else Decoder(*decoder_specs(self.decode), **self.decoder)
        more = {"args": args} if takes_args(self.function) else {}
        keys: set[str] = set()
        size = 0
        stored = TarReader(decompress(shard, url=url), url=url, max_member_bytes=_MAX_SAMPLE_BYTES)
        runs = whole_runs(stored, url=url, max_bytes=_MAX_SAMPLE_BYTES)
        for _, sample in whole_samples(runs, url):
            for result in self._results(sample if decode is None else decode(sample), more):
                packed = pack(result)
                if packed.key in keys:
                    raise DuplicateFieldError.at(
                        f"two samples of the new shard have the key {packed.key!r}",
                        todo="give each sample that the function returns a key of its own",
                        url=url,
                        key=packed.key,
                    )
                keys.add(packed.key)
                size += packed.size
                yield from packed.blocks
        yield bytes(archive_size(size) - size)

    def _results(self, sample: Any, more: Fields) -> Iterator[Fields]:
        """Yield the function's results for a sample."""
        key, url = sample["__key__"], sample["__url__"]
        name = getattr(self.function, "__name__", "the function")
        try:
            returned = self.function(sample, **more)
            results = [] if returned is None else [returned] if isinstance(returned, Mapping) else returned
            for result in results:
                if not isinstance(result, Mapping):
                    raise TypeError(f"it returned a {type(result).__name__}, not a sample")
                yield {"__key__": key, **result}
        except Exception as error:
            if isinstance(error, (AISError, *NEVER_SKIPPED)):
                raise
            raise TransformError.at(
                f"{name}() failed over the sample {key!r}: {type(error).__name__}: {error}",
                todo="mend the function, or let it return None to leave such samples out",
                url=url,
                key=key,
            ) from error


def takes_args(function: Callable[..., Any]) -> bool:
    """Return whether the function has a parameter ``args``."""
    try:
        return "args" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of functions written in C
        return False


def parse_args(text: str) -> Any:
    """Return the arguments of a request: JSON's value, or else the text.

    Example:
        >>> parse_args('{"size":64}'), parse_args("fast"), parse_args("")
        ({'size': 64}, 'fast', '')
    """
    try:
        return json.loads(text) if text else text
    except ValueError:
        return text


def decoder_specs(decode: Specs) -> tuple[SpecName | Handler, ...]:
    """Return one specification or several as a tuple."""
    if isinstance(decode, list | tuple):
        return tuple(decode)
    if not isinstance(decode, str) and not callable(decode):
        raise UsageError.at(f"decode={decode!r}", todo='pass a specification such as "pil", or several')
    return (decode,)
