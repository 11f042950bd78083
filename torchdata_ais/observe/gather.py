"""What all ranks of a group tell, on each of them: one collective, when somebody asks."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from torchdata_ais.errors import LoaderError
from torchdata_ais.observe.rank_summary import RankSummary
from torchdata_ais.world import known_ranks


def gather(summary: RankSummary, group: Any, timeout_s: float) -> list[RankSummary]:
    """Return the summaries of all ranks of `group`; every one of them must call this.

    Raises:
        LoaderError: A rank does not come within `timeout_s`, or is gone.
    """
    mine = bytearray(msgspec.msgpack.encode(summary))
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    _, size = known_ranks(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    _wait(sizes, torch.tensor([len(mine)], device=device), group, timeout_s)
    longest = int(max(sizes))
    padded = torch.frombuffer(mine.ljust(longest, b"\0"), dtype=torch.uint8).to(device)
    told = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(size)]
    _wait(told, padded, group, timeout_s)
    return [
        msgspec.msgpack.decode(one[: int(length)].cpu().numpy().tobytes(), type=RankSummary)
        for one, length in zip(told, sizes, strict=True)
    ]


def _wait(into: list[torch.Tensor], mine: torch.Tensor, group: Any, timeout_s: float) -> None:
    deadline, pause_s = time.monotonic() + timeout_s, 0.0005
    try:
        work: Any = dist.all_gather(into, mine, group=group, async_op=True)
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise LoaderError.at(
                    f"not all ranks of the group asked for the report within {timeout_s:g} s",
                    todo="call it on all of them; `torchdata-ais watch` of a run_dir= tells which one is stopped "
                    "or gone",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        work.wait()
    except RuntimeError as error:
        if isinstance(error, LoaderError):
            raise
        reason = str(error).partition("\n")[0]
        raise LoaderError.at(
            f"the report needs all ranks of the group, and one is gone ({reason})",
            todo="look at the output of the other ranks; `torchdata-ais watch` of a run_dir= tells of the rest",
        ) from error
