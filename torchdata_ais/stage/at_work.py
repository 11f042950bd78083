"""Which stage of a pipe a thread is in."""

from __future__ import annotations

import inspect
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.datapipes import IterDataPipe
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.upstream import upstream


def stage_at_work(pipe: IterDataPipe[Any], frame: FrameType | None) -> IterDataPipe[Any] | None:
    """Return which stage a thread is in: the first whose loop runs, or None.

    Args:
        pipe: The last stage.
        frame: The innermost frame of the thread. A stage is at work if the code of its loop is, and so are then
            the stages below it.
    """
    frames = [] if frame is None else [inner for inner, _ in walk_stack(frame)]
    codes = [one.f_code for one in reversed(frames)]
    found, begin = None, 0
    for stage in upstream(pipe):
        code = _code_of(stage)
        if code in codes[begin:]:
            found, begin = stage, codes.index(code, begin) + 1
    return found


def _code_of(pipe: IterDataPipe[Any]) -> CodeType:
    """Return the code of the generator that iterates a stage; below torch's wrapper, for stages that are not ours."""
    method = getattr(type(pipe), stage_of(pipe).loop if isinstance(pipe, Pipe) else "__iter__")
    code: CodeType = inspect.unwrap(method).__code__
    return code
