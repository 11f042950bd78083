"""A resumed series: which shards of the manifest stand, and the samples that come by again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import xxhash

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import StateError
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import redact, shown_name
from torchdata_ais.writing.manifest import Manifest, ShardInfo

_ANEW = "begin anew without resume=True"
_OTHER_SAMPLES = Remedy("resume with the same samples in the same order", _ANEW)


def finished_shards(
    where: str,
    settings: dict[str, Any],
    names: Callable[[int], str],
    options: Callable[[], StoreOptions],
    *,
    check: bool,
) -> Manifest | None:
    """Return the manifest that is stored, cut before the first shard that is no longer there; or None.

    Raises:
        StateError: It was written with other settings, or names shards that are not of this series.
    """
    found = Manifest.load(where, options)
    if found is None:
        return None
    for name, value in settings.items():
        before = found.settings.get(name)
        if before != value:
            raise StateError.at(
                f"the series was begun with {name}={before!r}, not {value!r}",
                todo=Remedy("pass the same arguments", _ANEW),
                url=redact(where),
            )
    for index, shard in enumerate(found.shards):
        if shard.name != names(index):  # it would be requested, and read for the index
            raise StateError.at(
                f"the manifest names {shown_name(shard.name)} as shard {index}, which is {redact(names(index))}",
                todo=Remedy("name another manifest=", _ANEW),
                url=redact(where),
            )
    for index, shard in enumerate(found.shards if check else ()):
        if not shard.is_there(options):
            del found.shards[index:]
            found.complete = False
            break
    return found


class Replay:
    """Lets as many samples pass as the finished shards hold, and checks that they are the same.

    Args:
        shards: The finished shards.
    """

    def __init__(self, shards: Sequence[ShardInfo]) -> None:
        self._shards = list(shards)
        self._at = 0
        self._passed = 0
        self._keys = xxhash.xxh64()

    @property
    def is_over(self) -> bool:
        """Whether the next sample is a new one."""
        return self._at == len(self._shards)

    def passes(self, key: str) -> None:
        """Let one sample pass.

        Raises:
            StateError: The samples that came are not those of the shard.
        """
        shard = self._shards[self._at]
        self._keys.update(key.encode("utf-8", "surrogateescape") + b"\0")
        self._passed += 1
        if self._passed < shard.samples:
            return
        if self._keys.hexdigest() != shard.keys:
            raise StateError.at(
                "other samples came than those that the finished shard holds",
                todo=_OTHER_SAMPLES,
                url=redact(shard.name),
                key=key,
            )
        self._at += 1
        self._passed = 0
        self._keys.reset()

    def check_over(self) -> None:
        """Raise if samples are missing.

        Raises:
            StateError: See above.
        """
        if not self.is_over:
            shard = self._shards[self._at]
            raise StateError.at(
                f"the samples ended before the end of what a finished shard holds ({self._passed} of {shard.samples})",
                todo=_OTHER_SAMPLES,
                url=redact(shard.name),
            )
