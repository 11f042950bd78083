"""The nodes of the cluster, and which of them owns an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import xxhash

HOST = "127.0.0.1"

_DIGEST_SEED = 1103515245
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Node:
    """A proxy or a target, as the others know it.

    Attributes:
        role: ``"proxy"`` or ``"target"``.
        id: Its id in the cluster map.
        port: Where it listens.
    """

    role: str
    id: str
    port: int

    @property
    def tag(self) -> str:
        """What it is called in messages."""
        return f"{self.role[0]}[{self.id}]"

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"

    @cached_property
    def digest(self) -> int:
        """Its number in the placement of objects."""
        return _digest_of(self.id)


def owner_of(targets: Sequence[Node], uname: str) -> Node:
    """The target that stores the object: the one with the highest random weight."""
    if len(targets) == 1:
        return targets[0]
    digest = _digest_of(uname)
    return max(targets, key=lambda node: _weight(node.digest ^ digest))


def _digest_of(name: str) -> int:
    """The hash that AIStore takes of node ids and object names to place objects."""
    return xxhash.xxh64_intdigest(name.encode(), seed=_DIGEST_SEED)


def _weight(seed: int) -> int:
    """The first output of xoshiro256** whose state comes from splitmix64: AIStore's placement."""
    word = (_splitmix(_splitmix(seed)) * 5) & _MASK
    return (((word << 7) | (word >> 57)) * 9) & _MASK


def _splitmix(seed: int) -> int:
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
