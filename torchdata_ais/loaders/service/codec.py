"""Objects <-> bytes and file descriptors, between processes of one loader.

Like torch's `ForkingPickler`, with two differences. The memory of a tensor travels as a file descriptor inside the
message itself, so that the receiver needs nothing more of the sender, which may be busy or gone. And anything large
(tensors, arrays, long pickles) is written to anonymous memory in one system call instead of page by page.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
import torch.multiprocessing  # registers how torch's types are pickled
from torch import Tensor, UntypedStorage

__all__ = ["Packed", "pack", "unpack"]

_INLINE_BYTES = 32 << 10
"""Longer pickles travel in memory of their own: messages stay small enough for the socket's buffer."""

_BUFFER_BYTES = 64 << 10
"""Arrays of at least this size travel beside the pickle instead of inside it."""

_MAX_FDS = 96
"""File descriptors per message (the kernel allows 253); what is beyond is copied into the pickle."""

_REDUCERS = ForkingPickler(io.BytesIO()).dispatch_table
"""The live table of everything torch and others registered for crossing processes."""


class Packed(NamedTuple):
    """An object ready to travel. Whoever holds it owns the descriptors.

    Attributes:
        payload: The pickle, unless it is in a file.
        fds: Storages of tensors first, then buffers, then the pickle if it is in a file.
        buffers: How many of the descriptors are buffers.
        in_file: Whether the pickle is in the last descriptor.
    """

    payload: bytes = b""
    fds: tuple[int, ...] = ()
    buffers: int = 0
    in_file: bool = False

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)


def pack(value: Any) -> Packed:
    """Turn `value` into bytes and descriptors.

    Raises:
        Exception: Whatever pickling the value raises; no descriptor stays open then.
    """
    stream = io.BytesIO()
    files = _Files()
    try:
        _Pickler(stream, files).dump(value)
        in_file = stream.tell() > _INLINE_BYTES and files.write(stream.getbuffer(), files.stream)
        payload = b"" if in_file else stream.getvalue()
    except BaseException:
        for fd in files.all():
            os.close(fd)
        raise
    return Packed(payload, files.all(), len(files.buffers), in_file)


def unpack(packed: Packed) -> Any:
    """Rebuild the object. The descriptors are closed, whatever happens."""
    try:
        stream: Any = io.BytesIO(packed.payload)
        fds = packed.fds
        if packed.in_file:
            stream = _Reader(mmap.mmap(fds[-1], 0, access=mmap.ACCESS_READ))
            fds = fds[:-1]
        storages = len(fds) - packed.buffers
        buffers = [mmap.mmap(fd, 0) for fd in fds[storages:]]
        return _Unpickler(stream, fds[:storages], buffers).load()
    finally:
        packed.close()


class _Files:
    """The descriptors of one message in the making."""

    def __init__(self) -> None:
        self.storages: list[int] = []
        self.buffers: list[int] = []
        self.stream: list[int] = []

    def all(self) -> tuple[int, ...]:
        return (*self.storages, *self.buffers, *self.stream)

    def room(self) -> bool:
        return len(self.storages) + len(self.buffers) + len(self.stream) < _MAX_FDS

    def write(self, content: memoryview, fds: list[int]) -> bool:
        """Put bytes into anonymous memory and note its descriptor, unless descriptors or memory have run out."""
        if not self.room():
            return False
        try:
            fd = _anonymous_file()
        except OSError:
            return False
        try:
            done = 0
            while done < len(content):
                done += os.write(fd, content[done:])
        except OSError:
            os.close(fd)
            return False
        fds.append(fd)
        return True

    def share(self, storage: UntypedStorage) -> bool:
        """Note a descriptor of memory that is shared already."""
        if not (storage.is_shared() and self.room()):
            return False
        try:
            self.storages.append(os.dup(storage._share_fd_cpu_()[0]))
        except OSError:
            return False
        return True

    def keeps_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether the pickle itself has to hold the buffer."""
        with buffer.raw() as content:
            return content.nbytes < _BUFFER_BYTES or not self.write(content, self.buffers)


class _Pickler(pickle.Pickler):
    # Neither this nor the unpickler may be part of a reference cycle: what they hold is large, and has descriptors.

    dispatch_table = _REDUCERS

    def __init__(self, stream: io.BytesIO, files: _Files) -> None:
        self._files = files
        super().__init__(stream, 5, buffer_callback=files.keeps_inside)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and _is_small_part(obj):
            return _REDUCERS[Tensor](obj.clone())
        if isinstance(obj, UntypedStorage) and obj.device.type == "cpu" and obj.nbytes():
            return self._reduce_storage(obj)
        return NotImplemented

    def _reduce_storage(self, storage: UntypedStorage) -> tuple[Any, ...]:
        files = self._files
        if not files.share(storage):
            content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data
            if not files.write(content, files.storages):
                return _copied_storage, (bytes(content),)
        return _shared_storage, (len(files.storages) - 1, storage.nbytes())


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: Any, storages: Sequence[int], buffers: list[mmap.mmap]) -> None:
        self._rebuild = _Storages(storages)
        super().__init__(stream, buffers=buffers)

    def find_class(self, module: str, name: str) -> Any:
        # The rebuild function needs this message's descriptors: hand out one that has them.
        if name == _shared_storage.__name__ and module == __name__:
            return self._rebuild
        return super().find_class(module, name)


class _Storages:
    """Makes storages of the descriptors of one message."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = fds

    def __call__(self, index: int, size: int) -> UntypedStorage:
        make: Any = UntypedStorage  # torch's stubs leave this constructor out
        storage: UntypedStorage = make._new_shared_fd_cpu(self._fds[index], size)
        return storage


class _Reader:
    """A file object for the unpickler that copies large values once, straight from the mapping."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = memoryview(content)
        self._position = 0

    def read(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        return bytes(self._content[start : self._position])

    def readinto(self, target: memoryview) -> int:
        start, self._position = self._position, self._position + len(target)
        target[:] = self._content[start : self._position]
        return len(target)

    def readline(self) -> bytes:
        raise pickle.UnpicklingError("a text opcode in a binary pickle")


def _is_small_part(tensor: Tensor) -> bool:
    """Whether the tensor is a small view of a large storage: then its own elements travel, not the whole storage."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    whole = tensor.untyped_storage()
    return not whole.is_shared() and whole.nbytes() > 2 * tensor.nbytes + 4096


def _shared_storage(index: int, size: int) -> UntypedStorage:
    raise NotImplementedError("rebuilt by _Unpickler, which knows the descriptors of the message")


def _copied_storage(content: bytes) -> UntypedStorage:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).untyped_storage()


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("torchdata_ais")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
