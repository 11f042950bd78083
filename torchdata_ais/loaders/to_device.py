"""Copy of batches to the device.

The thread never touches the workers: the loop's thread takes their batches, without waiting for more than the one that
it needs, and hands them over for the next copy. No thread waits for the GPU: a stream waits for the event of the copy.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torchdata_ais._util.device import AHEAD
from torchdata_ais.codecs import Normalize
from torchdata_ais.dataloader2.own.prefetch import LookAhead, made_like
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.engine import Step

_LEAST_DIMENSIONS = 4  # a batch of masks (N, H, W) could have as many masks as images have channels


def with_tensors(batch: object, function: Callable[[Any], object]) -> Any:
    """Return `batch` with `function` applied to tensors and packed sequences.

    Tuples, named tuples, lists and mappings are rebuilt, of their kind if that can be made of values.

    Example:
        >>> import torch
        >>> with_tensors({"a": (torch.ones(2), "text"), "b": [b"raw", None]}, lambda one: one.tolist())
        {'a': ([1.0, 1.0], 'text'), 'b': [b'raw', None]}
    """
    if isinstance(batch, (Tensor, PackedSequence)):
        return function(batch)
    if isinstance(batch, Mapping):
        return made_like(batch, {name: with_tensors(value, function) for name, value in batch.items()})
    if isinstance(batch, (tuple, list)):
        values = [with_tensors(value, function) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else made_like(batch, values)
    return batch


def tensors_in(batch: object) -> Iterator[Tensor]:
    """Yield the tensors of a batch, those of a `PackedSequence` one by one.

    Example:
        >>> import torch
        >>> [tensor.item() for tensor in tensors_in({"a": (torch.tensor(1), "text"), "b": [torch.tensor(2)]})]
        [1, 2]
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors_in(value)


def normalized(batch: object, normalize: Normalize) -> Any:
    """Return `batch` with its images, uint8 (..., N, C, H, W), normalised.

    Raises:
        UsageError: There are none of as many channels.

    Example:
        >>> images, labels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.arange(2)
        >>> [tensor.dtype for tensor in normalized((images, labels), Normalize())]
        [torch.float32, torch.int64]
    """
    found = False

    def each(one: Any) -> Any:
        nonlocal found
        channels = one.shape[-3] if isinstance(one, Tensor) and one.ndim >= _LEAST_DIMENSIONS else 0
        if channels != len(normalize.mean) or one.dtype != torch.uint8:
            return one
        found = True
        return normalize(one)

    result = with_tensors(batch, each)
    if not found:
        shapes = ", ".join(f"{tuple(one.shape)} of {one.dtype}" for one in tensors_in(batch)) or "no tensors"
        raise UsageError.at(
            f"normalize= of {len(normalize.mean)} channels met a batch without images: it has {shapes}",
            todo='end the pipe with images of one size: .decode("torchrgb8", size=224)...batched(64); or leave it out',
        )
    return result


_END: object = object()
_JOIN_S = 5.0


class CudaCopies:
    """Copies to a GPU (default the thread's present one), on another stream."""

    def __init__(self, device: torch.device) -> None:
        number = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", number)
        self._stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def copy(self, item: object) -> tuple[Any, torch.cuda.Event]:
        """Start to copy `item` out of page-locked memory; return it and its end.

        Called by the thread. torch holds the page-locked memory until then.
        """
        with torch.cuda.stream(self._stream):  # of this thread, and so the device
            copied = with_tensors(item, self._copied)
            return copied, self._stream.record_event()

    def _copied(self, one: Any) -> object:
        dense = not isinstance(one, torch.Tensor) or one.layout is torch.strided
        pinned = one.pin_memory() if dense and not one.is_cuda else one
        return pinned.to(self._device, non_blocking=True)

    def wait(self, copied: object, end: torch.cuda.Event) -> None:
        """Let the present stream of the calling thread wait for `end`."""
        stream: Any = torch.cuda.current_stream(self._device)
        stream.wait_event(end)
        # The memory belongs to the stream of the copies, which does not know of this one.
        for tensor in tensors_in(copied):
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def record(self) -> torch.cuda.Event:
        """Return the end of the present stream of the calling thread."""
        stream: Any = torch.cuda.current_stream(self._device)
        end: torch.cuda.Event = stream.record_event()
        return end


def ahead(steps: Iterator[Step], ready: Callable[[], bool], make: Callable[[], CudaCopies]) -> Iterator[Step]:
    """Yield the steps, in order, with their items on the device.

    An error comes in its place. `steps` are taken by the thread that iterates, without waiting if `ready()`. `make`
    returns the copier when the first step has come: workers are forked before CUDA is initialised.

    Memory: `AHEAD` + 2 batches on the device, of which the loop has one, and one is that before it, whose memory is
    free once its work is done; `AHEAD` + 1 in the host's page-locked memory.
    """
    first = next(steps, _END)
    if first is _END:
        return
    copies = make()
    arriving: SimpleQueue[Any] = SimpleQueue()
    # Only the queue refers to the next item to copy: no frame of the thread names it while it waits.
    copied = LookAhead(iter(partial(_copy_next, arriving, copies), None), AHEAD + 1, name="to_device")
    used: deque[torch.cuda.Event] = deque()
    failed: Exception | None = None
    taken = given = 0
    try:
        while True:
            # Waits for a step only if the loop needs it now; takes further ones, up to AHEAD, only if they are here.
            while failed is None and (taken == given or (taken - given <= AHEAD and ready())):
                try:
                    step, first = (next(steps, _END) if first is None else first), None
                except Exception as error:  # noqa: BLE001 - raised after the items before it
                    failed = error
                    break
                if step is _END:
                    break
                arriving.put((step, used.popleft() if taken >= AHEAD + 2 else None))
                taken += 1
                del step
            if taken == given:
                if failed is not None:
                    raise failed
                return
            item, mark, worker, state = copied.get()
            given += 1
            copies.wait(item, mark)
            del mark
            yield item, worker, state
            del item
            used.append(copies.record())
    finally:
        if not sys.is_finalizing():  # else the thread is no more
            copied.close()
            arriving.put(None)
            copied.join(_JOIN_S)


def _copy_next(
    arriving: SimpleQueue[Any], copies: CudaCopies
) -> tuple[object, torch.cuda.Event, int, bytes | None] | None:
    arrived = arriving.get()
    if arrived is None:
        return None
    (item, worker, state), used = arrived
    if used is not None:
        used.synchronize()  # so that the GPU never lags more than the formula allows
    return (*copies.copy(item), worker, state)
