"""torchdata's ``fullsync``, which keeps ranks in step, made to notice that another rank is gone."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from torchdata_ais.dataloader2.torchdata_names import OWN, FullSync
from torchdata_ais.errors import LoaderError
from torchdata_ais.stage.graph import all_pipes


def notice_lost_ranks(pipe: Any) -> None:
    """Let every ``fullsync`` of the graph raise when another rank is gone.

    torchdata's own asks the other ranks in a callback of a thread pool, where an error is logged and forgotten: the
    rank then waits for its time-out of half an hour.
    """
    if OWN:
        return  # ours raises by itself
    for part in all_pipes(pipe):
        if type(part) is FullSync:
            part.__class__ = _FullSync  # in place, for the service before this one holds it too


class _FullSync(FullSync):  # type: ignore[misc]
    def _callback_fn(self, expected: Any) -> None:
        try:
            super()._callback_fn(expected)
        except Exception as error:  # noqa: BLE001 - gloo raises RuntimeErrors of many kinds
            with self._cv:
                self._error = LoaderError.at(
                    f"another rank cannot be reached any more: {error}",
                    todo="look for the rank that ended first; its own output says why",
                    rank=dist.get_rank(),
                )
                self._done_callback = True
                self._cv.notify()
