"""`.fullsync`: ranks that end an epoch together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from torchdata_ais.dataloader2.own.look_ahead import LookAhead, LookingAhead
from torchdata_ais.errors import LoaderError, StallError

_END_S = 5.0
"""How long a loader that is shut down waits for the other ranks."""


class _Agreed:
    """The items of a rank, each as soon as every rank has one."""

    def __init__(self, items: Iterable[Any], group: Any, size: int) -> None:
        self._items, self._group, self._size = items, group, size

    def __iter__(self) -> Iterator[Any]:
        items, rank = iter(self._items), dist.get_rank()
        while True:
            item: Any = None
            error: BaseException | None = None
            have = 1
            try:
                item = next(items)
            except StopIteration:
                have = 0
            except Exception as raised:  # noqa: BLE001 - raised again when the other ranks know
                error = raised
            counts = torch.tensor([have, error is not None], dtype=torch.int64)
            try:
                dist.all_reduce(counts, group=self._group)
            except Exception as lost:  # gloo raises RuntimeErrors of many kinds
                raise error or LoaderError.at(
                    f"another rank cannot be reached any more: {lost}",
                    todo="look for the rank that ended first; its own output says why",
                    rank=rank,
                ) from lost
            if error is not None:
                raise error
            if counts[1] > 0:
                raise LoaderError.at(
                    "another rank could not make an item, so this rank ends its epoch, too",
                    todo="look for the rank that ended first; its own output says why",
                    rank=rank,
                )
            if counts[0] < self._size:
                return
            yield item
            del item


class FullSync(LookingAhead):
    """Ends the epoch of all ranks with the rank that has fewest items: ``pipe.fullsync()``.

    Takes and yields any items, in their order; what longer ranks have left over is not given. It stays in the main
    process, and makes one item ahead. torch.distributed must have begun, and every rank must iterate.

    Memory:
        One item, and one under way.

    Args:
        datapipe: The pipe.
        timeout: How long, in seconds, to wait for an item of this rank or of another.

    Raises:
        StallError: Nothing came for `timeout` seconds.
        LoaderError: torch.distributed was not begun; another rank failed or is gone.
    """

    _group: Any = None
    _stays = ("_ahead", "_group")

    def __init__(self, datapipe: Any, timeout: float = 30 * 60) -> None:
        super().__init__()
        self.datapipe = datapipe
        self.timeout = timeout

    def __iter__(self) -> Iterator[Any]:
        if not (dist.is_available() and dist.is_initialized()):
            raise LoaderError.at(
                "the ranks of fullsync need torch.distributed, which was not begun",
                todo="call torch.distributed.init_process_group(...) first, or leave .fullsync() out",
            )
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        size = dist.get_world_size()
        if size == 1:
            yield from self.datapipe
            return
        # The ranks ask each other once more than they give items, wherever each of them stops.
        self._ahead = ahead = LookAhead(_Agreed(self.datapipe, self._group, size), 1, keeps_full=True)
        try:
            while True:
                try:
                    item = ahead.get(self.timeout)
                except StopIteration:
                    return
                except TimeoutError as error:
                    raise self._too_slow() from error
                yield item
                del item
        finally:
            ahead.close()

    def _too_slow(self) -> StallError:
        return StallError.at(
            f"this rank or another one made no item for {self.timeout:g} s",
            todo="look for the rank that stands still, or raise fullsync(timeout=)",
            rank=dist.get_rank(),
        )

    def is_replicable(self) -> bool:
        """Return False: ranks ask each other from their main processes."""
        return False

    def reset(self) -> None:
        """End the iteration before: what was begun with the other ranks is done to its end."""
        if not self._ends_within(self.timeout):
            raise self._too_slow()
        self._ahead = None

    def pause(self) -> None:
        """Make nothing more; returns when the item under way is there."""
        if self._ahead is not None and not self._ahead.pause(self.timeout):
            raise self._too_slow()

    def shutdown(self) -> None:
        """End the thread; one that waits for a rank that does not come is left to end with the process."""
        self._ends_within(min(_END_S, self.timeout))
        self._ahead = None

    def _ends_within(self, timeout: float) -> bool:
        if self._ahead is None:
            return True
        self._ahead.close()
        return self._ahead.join(timeout)

    def __del__(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
