"""`DistributedReadingService`: a pipe that is shared out over ranks, which keep in step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torchdata_ais.dataloader2.own.fullsync import FullSync
from torchdata_ais.dataloader2.own.interface import ReadingServiceInterface, ResetFunction
from torchdata_ais.dataloader2.own.random import dist_share_seed
from torchdata_ais.dataloader2.own.seeding import set_graph_random_seed
from torchdata_ais.errors import LoaderError
from torchdata_ais.stage.datapipes import SHARDING_PRIORITIES, apply_sharding

_TIMEOUT_S = 30 * 60


class DistributedReadingService(ReadingServiceInterface):
    """Shares the pipe out over the ranks of torch.distributed, seeds them alike, and keeps them in step.

    A ``.fullsync()`` is put at the end of the pipe unless one is there: every rank gives as many items as the rank
    that has fewest. `MultiProcessingReadingService` shares out over ranks by itself, and drops nothing.

    Args:
        timeout: How long, in seconds, a rank waits for the others.

    Raises:
        LoaderError: torch.distributed is not there or was not begun.
    """

    def __init__(self, timeout: float = _TIMEOUT_S) -> None:
        if not dist.is_available():
            raise LoaderError.at(
                "torch.distributed is not in this build of torch", todo="install one that has it"
            )
        self._timeout = timeout
        self._rank = 0
        self._pipe: Any = None
        self._group: Any = None

    def initialize(self, datapipe: Any) -> Any:
        """Return this rank's part of the pipe, in step with the others."""
        if not dist.is_initialized():
            raise LoaderError.at(
                "torch.distributed was not begun", todo="call torch.distributed.init_process_group(...) first"
            )
        self._rank = dist.get_rank()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        apply_sharding(datapipe, dist.get_world_size(), self._rank, SHARDING_PRIORITIES.DISTRIBUTED)
        self._pipe = datapipe if isinstance(datapipe, FullSync) else FullSync(datapipe, self._timeout)
        return self._pipe

    def initialize_iteration(
        self,
        seed_generator: Any,
        iter_reset_fn: ResetFunction | None = None,  # noqa: ARG002 - of the interface
    ) -> None:
        """Take rank 0's seed, and seed the pipe by it."""
        seed_generator.seed(dist_share_seed(seed_generator.generate_shared_seed(), self._group))
        set_graph_random_seed(self._pipe, seed_generator.spawn(self._rank, inplace=True))

    def finalize(self) -> None:
        """End the group of this service."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)
