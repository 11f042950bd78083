"""What a conversion does to each item, in whichever process: load, select, decode, map, encode."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torchdata_ais.errors import NEVER_SKIPPED, AISError, SampleError, UsageError

__all__ = ["Outcome", "Transform"]

Outcome = dict[str, Any] | Exception | None
"""The encoded sample, why it cannot be had, or None for one that is not wanted."""


@dataclass(frozen=True)
class Transform:
    """A function of a list of items. See `torchdata_ais.writing.convert` for what the fields mean."""

    load: Callable[[Any], dict[str, Any]]
    encode: Callable[[dict[str, Any]], dict[str, Any]]
    select: Callable[[dict[str, Any]], Any] | None = None
    decode: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    map: Callable[..., Any] | None = None
    rng: bool = False
    seed: int = 0
    fields: frozenset[str] | None = None

    def __call__(self, items: Iterable[Any]) -> list[Outcome]:
        """Return one outcome for each item.

        Raises:
            Exception: One of `NEVER_SKIPPED`: the call, the program or the machine is at fault.
        """
        return [self.one(item) for item in items]

    def one(self, item: Any) -> Outcome:
        """Return the outcome of one item."""
        try:
            return self._sample(item)
        except NEVER_SKIPPED:
            raise
        except Exception as error:  # noqa: BLE001 - the caller decides
            return error

    def _sample(self, item: Any) -> dict[str, Any] | None:
        sample = self.load(item)
        if self.select is not None and not self._call("select", self.select, sample):
            return None
        if self.decode is not None:
            sample = self._call("decode", self.decode, sample)
        if self.map is not None:
            key = sample["__key__"]
            more = (random.Random(f"{self.seed}/{key}"),) if self.rng else ()
            mapped = self._call("map", self.map, sample, *more)
            if mapped is None:
                return None
            if not isinstance(mapped, dict):
                raise UsageError.at(
                    f"map returned a {type(mapped).__name__}",
                    todo="return a sample (a dict), or None to drop it",
                    key=key,
                )
            sample = mapped if "__key__" in mapped else {"__key__": key, **mapped}
        if self.fields is not None:
            sample = {
                name: value for name, value in sample.items() if name[:2] == "__" or name in self.fields
            }
        encoded: dict[str, Any] = self._call("encode", self.encode, sample)
        return encoded

    def _call(self, what: str, function: Callable[..., Any], sample: dict[str, Any], *more: Any) -> Any:
        try:
            return function(sample, *more)
        except Exception as error:
            if isinstance(error, (AISError, *NEVER_SKIPPED)):
                raise
            key = sample.get("__key__")
            raise SampleError.at(
                f"{what} failed on the sample {key!r}: {type(error).__name__}: {error}",
                url=sample.get("__url__"),
                key=key,
            ) from error
