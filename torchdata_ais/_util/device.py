"""The device of batches, and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from torchdata_ais.errors import UsageError

if TYPE_CHECKING:
    import torch

DeviceName = Union["str", "int", "torch.device", None]
"""A device as users name it."""

AHEAD = 2
"""Batches that are copied ahead of the one in the loop."""

_TODO = 'use "cpu", "cuda", or "cuda:0" for the first GPU'


def _parsed(device: DeviceName) -> torch.device | None:
    """Return the GPU that is named, present or not; None for the CPU."""
    import torch

    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        raise UsageError.at(f"device={device!r} is a {type(device).__name__}", todo=_TODO)
    try:
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, ValueError):
        raise UsageError.at(f"device={device!r} is no device", todo=_TODO) from None
    if named.type not in ("cpu", "cuda"):
        raise UsageError.at(
            f"device={device!r}: batches are copied to CUDA devices alone",
            todo=f"{_TODO}; for others leave it out, and move each batch in your loop: images.to({device!r})",
        )
    return None if named.type == "cpu" else named


def gpu_named(device: DeviceName) -> torch.device | None:
    """Return the GPU that `device` names, as torch knows it; None for the CPU.

    Raises:
        UsageError: It is not a device, of another kind, or not present.

    Example:
        >>> print(gpu_named("cpu"))
        None
        >>> gpu_named("gpu")
        Traceback (most recent call last):
        torchdata_ais.errors.UsageError: device='gpu' is no device. Use "cpu", "cuda", or "cuda:0" for the first GPU
    """
    gpu = _parsed(device)
    if gpu is not None:
        needs_gpu(f"device={str(gpu)!r}", 'pass device="cpu", or leave it out, to train on the CPU')
        import torch

        there = torch.cuda.device_count()
        if gpu.index is not None and gpu.index >= there:
            raise UsageError.at(
                f"device={str(gpu)!r}, and this process sees {there} GPU{'' if there == 1 else 's'}",
                todo=f"use cuda:0 to cuda:{there - 1}; CUDA_VISIBLE_DEVICES says which GPUs are seen",
            )
    return gpu


def needs_gpu(what: str, otherwise: str) -> None:
    """Refuse `what` where torch sees no GPU.

    Args:
        what: The request that needs a GPU.
        otherwise: The advice for a machine without a GPU.

    Raises:
        UsageError: There is none.
    """
    import torch

    if not torch.cuda.is_available():
        with_cuda: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        unseen = "torch sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        why = unseen if with_cuda else "this torch is built without CUDA"
        raise UsageError.at(f"{what}, and {why}", todo=otherwise)


def device_memory(device: DeviceName) -> str:
    """Return a sentence on how many batches are held where; "" for the CPU.

    The GPU need not be present.

    Example:
        >>> device_memory("cuda").partition(":")[0], device_memory("cpu")
        ('device cuda', '')
    """
    gpu = _parsed(device)
    if gpu is None:
        return ""
    there = f"{AHEAD} copied ahead, the one in the loop, and the one before it until its work is done"
    return (
        f"device {gpu}: at most {AHEAD + 2} batches in its memory ({there}); in the host's {AHEAD + 1} page-locked, "
        "each rounded up by torch to a power of two"
    )
