"""Objects and exceptions as bytes.

Like torch's `ForkingPickler`, with two differences. The memory of a tensor travels as a file descriptor inside the
message itself, so that the receiver needs nothing more of the sender, which may be busy or gone. And anything large
(tensors, arrays, long pickles) is written to anonymous memory in one system call instead of page by page; memory
that the receiver has done with is used again (`memory`).
"""

from __future__ import annotations

import io
import os
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
import torch.multiprocessing  # registers how torch's types are pickled
from torch import Tensor, UntypedStorage

from torchdata_ais.errors import AISError, LoaderError, noted
from torchdata_ais.errors.redaction import clean
from torchdata_ais.pipes.base.policy import trimmed
from torchdata_ais.workers.memory import HEADER, Lender, borrow, give_back

_INLINE_BYTES = 32 << 10
"""Pickle size above which it travels in shared memory: messages stay small enough for the socket's buffer."""

_BUFFER_BYTES = 64 << 10
"""Array size from which its bytes travel outside the pickle."""

_SMALL_BYTES = 4 << 10
"""Storage size below which it is copied into the pickle, as labels are."""

_MAX_FDS = 96
"""File descriptors per message; the kernel allows 253. Further values are copied into the pickle."""

_REDUCERS = ForkingPickler(io.BytesIO()).dispatch_table
"""Live table of the reducers that torch and others registered."""


class Packed(NamedTuple):
    """An object ready to travel. The holder owns the descriptors.

    Attributes:
        payload: The pickle, unless it is in a file.
        fds: First memory that was shared already, then files: of storages of tensors, of buffers, and of the pickle
            if it is in one.
        buffers: How many of the descriptors are buffers.
        in_file: Whether the pickle is in the last descriptor.
        shared: How many of the descriptors are memory that was shared already.
    """

    payload: bytes = b""
    fds: tuple[int, ...] = ()
    buffers: int = 0
    in_file: bool = False
    shared: int = 0

    def close(self) -> None:
        """Close the descriptors: they were sent, or borrowed."""
        for fd in self.fds:
            os.close(fd)

    def drop(self) -> None:
        """Give the memory back to the sender, and close the descriptors."""
        for fd in self.fds[self.shared :]:
            give_back(fd)
        self.close()


def pack(value: object, lender: Lender | None = None) -> Packed:
    """Turn `value` into bytes and descriptors; on an error none stays open.

    `lender` is the memory of this process, if it sends more than once in a while.
    """
    stream = io.BytesIO()
    own = Lender() if lender is None else lender
    files = _Files(own)
    try:
        _Pickler(stream, files).dump(value)
        with stream.getbuffer() as pickled:
            in_file = len(pickled) > _INLINE_BYTES and files.write(pickled, files.stream)
        payload = b"" if in_file else stream.getvalue()
        return Packed(payload, files.all(), len(files.buffers), in_file, len(files.shared))
    except BaseException:
        Packed(fds=files.all(), shared=len(files.shared)).drop()
        raise
    finally:
        if lender is None:
            own.close()


def unpack(packed: Packed) -> Any:
    """Rebuild the object. The descriptors are closed in any case."""
    stream: object = io.BytesIO(packed.payload)
    fds = packed.fds[: len(packed.fds) - packed.in_file]
    storages = len(fds) - packed.buffers
    try:
        if packed.in_file:
            # Of large values each is one system call, and no page has to be mapped for it.
            stream = os.fdopen(packed.fds[-1], "rb", closefd=False)
            stream.seek(HEADER)
        buffers = [borrow(fd).data for fd in fds[storages:]]
        value = _Unpickler(stream, fds[: packed.shared], fds[packed.shared : storages], buffers).load()
    except BaseException:
        packed.drop()
        raise
    if packed.in_file:
        give_back(packed.fds[-1])  # all of it was copied
    packed.close()
    return value


class _Files:
    """The descriptors of one message in the making."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self.shared: list[int] = []
        self.storages: list[int] = []
        self.buffers: list[int] = []
        self.stream: list[int] = []

    def all(self) -> tuple[int, ...]:
        return (*self.shared, *self.storages, *self.buffers, *self.stream)

    def room(self) -> bool:
        return len(self.all()) < _MAX_FDS

    def write(self, content: memoryview, fds: list[int]) -> bool:
        """Put bytes into memory and note its descriptor, while there is some."""
        if not self.room():
            return False
        try:
            fds.append(self._lender.fill(content))
        except OSError:
            return False
        return True

    def lend(self, storage: UntypedStorage) -> bool:
        """Note a descriptor of memory that was made to be sent."""
        try:
            fd = self._lender.lend(storage.data_ptr(), storage.nbytes()) if self.room() else None
        except OSError:
            return False
        if fd is not None:
            self.storages.append(fd)
        return fd is not None

    def share(self, storage: UntypedStorage) -> bool:
        """Note a descriptor of memory that is shared already."""
        if not (storage.is_shared() and self.room()):
            return False
        try:
            self.shared.append(os.dup(storage._share_fd_cpu_()[0]))
        except OSError:
            return False
        return True

    def keeps_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether the pickle itself has to hold the buffer."""
        with buffer.raw() as content:
            return content.nbytes < _BUFFER_BYTES or not self.write(content, self.buffers)


class _Pickler(pickle.Pickler):
    # Neither this nor the unpickler may be part of a reference cycle: they hold large objects and descriptors.

    dispatch_table = _REDUCERS

    def __init__(self, stream: io.BytesIO, files: _Files) -> None:
        self._files = files
        super().__init__(stream, 5, buffer_callback=files.keeps_inside)

    def reducer_override(self, obj: object) -> Any:
        if type(obj) is Tensor and _is_small_part(obj):
            return _REDUCERS[Tensor](obj.clone())
        if isinstance(obj, UntypedStorage) and obj.device.type == "cpu" and obj.nbytes():
            return self._reduce_storage(obj)
        return NotImplemented

    def _reduce_storage(self, storage: UntypedStorage) -> tuple[object, ...]:
        files = self._files
        if files.lend(storage):
            return _lent_storage, (len(files.storages) - 1,)
        if files.share(storage):
            return _shared_storage, (len(files.shared) - 1, storage.nbytes())
        content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data
        if len(content) >= _SMALL_BYTES and files.write(content, files.storages):
            return _lent_storage, (len(files.storages) - 1,)
        return _copied_storage, (bytes(content),)


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, stream: Any, shared: Sequence[int], storages: Sequence[int], buffers: list[memoryview]
    ) -> None:
        self._shared = shared
        self._storages = storages
        super().__init__(stream, buffers=buffers)

    def find_class(self, module: str, name: str) -> object:
        # These functions need this message's descriptors: hand out such that have them.
        if module == __name__ and name == _shared_storage.__name__:
            return partial(_shared_storage, fds=self._shared)
        if module == __name__ and name == _lent_storage.__name__:
            return partial(_lent_storage, fds=self._storages)
        return super().find_class(module, name)


def _is_small_part(tensor: Tensor) -> bool:
    """Return whether a tensor is a small view, whose elements travel alone."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    whole = tensor.untyped_storage()
    return not whole.is_shared() and whole.nbytes() > 2 * tensor.nbytes + 4096


def _shared_storage(index: int, size: int, fds: Sequence[int] = ()) -> UntypedStorage:
    make: Any = UntypedStorage  # torch's stubs leave this constructor out
    storage: UntypedStorage = make._new_shared_fd_cpu(fds[index], size)
    return storage


def _lent_storage(index: int, fds: Sequence[int] = ()) -> UntypedStorage:
    return torch.from_numpy(borrow(fds[index])).untyped_storage()


def _copied_storage(content: bytes) -> UntypedStorage:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).untyped_storage()


@dataclass(frozen=True)
class Failure:
    """An exception of another process, as data.

    Attributes:
        where: The process and its state, as in "in worker process 0".
        name: The exception's class.
        cause: The exception's text.
        trace: The original traceback, to its last line.
        notes: The notes of the exception.
        parts: Problem, remedy and place of an error of this package.
        pickled_type: The exception's class by name, empty if it cannot be found by name.
    """

    where: str
    name: str
    cause: str
    trace: str
    notes: tuple[str, ...]
    parts: tuple[str, str, dict[str, object]] | None
    pickled_type: bytes

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Record an error caught `where`, as in "in worker process 0"."""
        told = traceback.TracebackException(type(error), error, trimmed(error).__traceback__)
        told.__notes__ = None  # they travel separately
        try:
            pickled_type = pickle.dumps(type(error))
        except Exception:  # noqa: BLE001 - a class defined in a function, for one
            pickled_type = b""
        name = type(error).__name__
        return cls(
            where,
            name,
            clean(str(error)) or name,
            "".join(clean(line) for line in told.format()),
            tuple(clean(str(note)) for note in getattr(error, "__notes__", ())),
            (error.what, error.todo, error.place) if isinstance(error, AISError) else None,
            pickled_type,
        )

    def rebuild(self) -> Exception:
        """Return the exception to raise: of the original class, or `LoaderError`.

        The original class must accept the whole text. The text begins with the cause, then the place of the raise.
        Errors of this package have their parts, and the process in their place. Classes that end iterations or
        processes are never rebuilt: they are an error here.
        """
        error = self._same() or LoaderError(f"{self.name}: {self._text()}", place={})
        for note in self.notes:
            noted(error, note)
        return error

    def _same(self) -> Exception | None:
        try:
            kind = pickle.loads(self.pickled_type)  # noqa: S301
            if self.parts is not None:
                what, todo, place = self.parts
                ours: AISError = kind(what, todo=todo, place={**place, "in": self.where.removeprefix("in ")})
                return ours
            if issubclass(kind, Exception) and not issubclass(kind, (StopIteration, StopAsyncIteration)):
                error: Exception = kind(_Text(self._text()))
                return error if self._text() in str(error) else None
        except Exception:  # noqa: BLE001, S110 - the class is unknown here, or wants other arguments
            pass
        return None

    def _text(self) -> str:
        return f"{self.cause}\n\nCaught {self.name} {self.where}.\nOriginal {self.trace}"


class _Text(str):
    """A text that stays readable where exceptions, as KeyError, show its repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
