"""Rank and world size of this process."""

from __future__ import annotations

import os
import uuid
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.distributed as dist

from torchdata_ais._util.arguments import check_number
from torchdata_ais.errors import UsageError


def instance_of(rank: int, ranks: int, worker: int) -> int:
    """Return the number of a worker among all ranks: ranks come first.

    Instance i of n reads the shards i, i + n, i + 2n, ... So shard p goes to rank ``p % ranks``, and there to worker
    ``p // ranks % workers``. The numbers of shards of two ranks differ by at most one.

    Example:
        >>> [instance_of(rank, 2, worker) for rank in range(2) for worker in range(2)]
        [0, 2, 1, 3]
    """
    return worker * ranks + rank


def known_ranks(group: Any = None) -> tuple[int | None, int]:
    """Return this rank and the number of ranks.

    They come from torch.distributed, else from ``RANK`` and ``WORLD_SIZE``.

    Args:
        group: The process group to count in; default all.

    Returns:
        ``(rank, size)``; the rank is None where nothing but the size is known.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(group), dist.get_world_size(group)
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not size.isdecimal():
        return None, 1  # a RANK alone is a place among none
    return (int(rank) if rank.isdecimal() else None), int(size)


def ranks_of_node() -> int:
    """Return torchrun's number of ranks on this machine; 1 without it."""
    size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(size)) if size.isdecimal() else 1


class World(NamedTuple):
    """The ranks that share out the data.

    Attributes:
        rank: This process.
        size: How many there are.
        store: The store of torch.distributed for their messages; None: they cannot exchange any.
        process: This process among all of the job, where several share a rank's data.
        processes: How many there are; 0: as many as ranks.
    """

    rank: int
    size: int
    store: Any = None
    process: int = 0
    processes: int = 0

    @property
    def members(self) -> tuple[int, int]:
        """This process and the number of processes.

        There is one for each rank, or several that share its data.
        """
        return (self.process, self.processes) if self.processes else (self.rank, self.size)


@dataclass(frozen=True)
class WorldOptions:
    """Options about ranks; the fields are arguments of `ais_loader`.

    Raises:
        UsageError: Values that cannot be.
    """

    rank: int | None = None
    world_size: int | None = None
    store: Any = None
    rank_timeout_s: float = 1800.0
    mesh: Any = None
    group: Any = None
    replica_check: int | None = 256
    start_spread_s: float | None = None
    token: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False)

    def __post_init__(self) -> None:
        rank, size = self.rank, self.world_size
        if (rank is None) != (size is None):
            raise UsageError.at(
                f"rank={rank}, world_size={size}", todo="pass both, or neither to ask torch.distributed"
            )
        if rank is not None and size is not None:
            for value in (rank, size):
                if isinstance(value, bool) or not isinstance(value, int):
                    raise UsageError.at(f"rank={rank!r}, world_size={size!r}", todo="pass integers")
            if not 0 <= rank < size:
                raise UsageError.at(f"rank={rank} of world_size={size}", todo="ranks count from 0")
        if sum(given is not None for given in (rank, self.mesh, self.group)) > 1:
            raise UsageError.at("rank=, mesh= and group= say the same thing", todo="pass one of them")
        _check_groups(self.mesh, self.group)
        check_number(self.rank_timeout_s, 0, "rank_timeout_s", whole=False)
        check_number(self.replica_check, 1, "replica_check", optional=True)
        if self.start_spread_s is not None and not 0 <= self.start_spread_s <= self.rank_timeout_s:
            raise UsageError.at(
                f"start_spread_s={self.start_spread_s}", todo="use seconds from 0 to rank_timeout_s, or None"
            )
        if self.store is not None and not isinstance(self.store, dist.distributed_c10d.Store):
            raise UsageError.at(
                f"store= is a {type(self.store).__name__}",
                todo="pass a store of torch.distributed: TCPStore, FileStore, HashStore, PrefixStore",
            )

        _ALIVE[self.token] = self

    def __reduce__(self) -> tuple[Any, ...]:
        # DataLoader2 copies its reading service by pickling, and a store does not pickle.
        return _same, (self.token, self.rank, self.world_size)  # nor does a mesh or a group

    def find(self) -> World:
        """Return the given ranks, else torch.distributed's, else one process.

        Raises:
            UsageError: The environment names several ranks, and no way to reach them.
        """
        if self.rank is not None and self.world_size is not None:
            return World(self.rank, self.world_size, self.store, *self._sharing(self.world_size))
        if self.mesh is not None or self.group is not None:
            return self._in_group()
        rank, size = known_ranks()
        if dist.is_available() and dist.is_initialized():
            return World(rank or 0, size, self.store or dist.distributed_c10d._get_default_store())
        if size > 1:
            raise UsageError.at(
                f"WORLD_SIZE={size} says that there are {size} ranks, but torch.distributed is not initialised here: "
                "each of them would read everything",
                todo="call torch.distributed.init_process_group() first, or pass rank= and world_size= (a loader for "
                "this process alone takes rank=0, world_size=1)",
            )
        return World(0, 1)

    def _in_group(self) -> World:
        """Return the place in the mesh dimension or group that shares the data."""
        if not (dist.is_available() and dist.is_initialized()):
            raise UsageError.at(
                "mesh= and group= without torch.distributed",
                todo="call torch.distributed.init_process_group() first, or pass rank= and world_size=",
            )
        store = self.store or dist.distributed_c10d._get_default_store()
        if self.mesh is not None:
            return World(
                self.mesh.get_local_rank(), self.mesh.size(), store, *self._sharing(self.mesh.size())
            )
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if rank < 0:
            raise UsageError.at(
                "this process is not in group=", todo="pass the group that it shares out data with"
            )
        sharing = self._sharing(size) if self.replica_check is not None else (0, 0)
        if sharing[1]:
            return World(rank, size, store, *sharing)
        members = ",".join(map(str, dist.get_process_group_ranks(self.group)))
        return World(rank, size, dist.distributed_c10d.PrefixStore(f"torchdata_ais/{members}", store))

    def _sharing(self, size: int) -> tuple[int, int]:
        """Return this process and the number that share the data of a rank.

        Return nothing if each rank is one process.
        """
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() <= size:
            return 0, 0
        if self.rank is not None and self.store is None:
            return 0, 0
        return dist.get_rank(), dist.get_world_size()


def _check_groups(mesh: object, group: object) -> None:
    if mesh is not None:
        from torch.distributed.device_mesh import DeviceMesh  # takes half a second

        if not isinstance(mesh, DeviceMesh):
            raise UsageError.at(
                f"mesh= is a {type(mesh).__name__}", todo='pass a slice of a DeviceMesh: mesh["dp"]'
            )
        if mesh.ndim != 1:
            raise UsageError.at(
                f"mesh= has {mesh.ndim} dimensions",
                todo='pass the slice that shares out the data: mesh["dp"]',
            )
    none = dist.is_available() and group is dist.GroupMember.NON_GROUP_MEMBER
    if group is not None and dist.is_available() and not (none or isinstance(group, dist.ProcessGroup)):
        raise UsageError.at(
            f"group= is a {type(group).__name__}", todo="pass what torch.distributed.new_group() returned"
        )


_ALIVE: weakref.WeakValueDictionary[str, WorldOptions] = weakref.WeakValueDictionary()
"""Instances by token: a copy in this process is the object itself."""


def _same(token: str, rank: int | None, world_size: int | None) -> WorldOptions:
    return _ALIVE.get(token) or WorldOptions(rank, world_size)
