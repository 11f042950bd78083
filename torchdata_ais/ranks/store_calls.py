"""What the store of torch.distributed is asked, with a deadline: some stores never answer.

One whose process is stopped does not, nor a FileStore whose file ends in the middle of a record, since the rank that
wrote it was killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torchdata_ais.errors import LoaderError

_AT_ONCE = 256
"""Names that the store is asked for in one call, which must come back within `_ANSWER_S`."""

_ANSWER_S = 30.0
"""How long one call of the store may take."""


class StoreCalls:
    """The store of one rank. Each call raises a LoaderError if the store is gone, or gives no answer in time.

    Args:
        store: That of torch.distributed.
        rank: Who asks, for the messages.

    Attributes:
        store: As given: a call of it may take for ever.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self.store = store
        self._rank = rank
        self._mute = False  # whether it has once not answered

    def set(self, name: str, value: str | bytes) -> None:
        """Put `value` under a name."""
        self._ask(self.store.set, name, value)

    def add(self, name: str, value: int, *, wait_s: float | None = None) -> int:
        """Add to a number, which begins at 0; return what it is then."""
        return int(self._ask(self.store.add, name, value, wait_s=wait_s))

    def compare_set(self, name: str, expected: str, value: str) -> bytes:
        """Set what is there to `value` if it is as expected, or if nothing is; return what is there then."""
        return bytes(self._ask(self.store.compare_set, name, expected, value))

    def has(self, *names: str) -> bool:
        """Return whether all of these are there."""
        return bool(self._ask(self.store.check, list(names)))

    def get(self, name: str) -> bytes:
        """Return what is there; waits for it."""
        return bytes(self._ask(self.store.get, name))

    def known(self, names: Mapping[int, str]) -> dict[int, bytes]:
        """Return what is there under the name of each rank, without those whose name is not there."""
        return self.get_all({rank: names[rank] for rank in self.there(names)})

    def there(self, names: Mapping[int, str]) -> list[int]:
        """Return the ranks whose names are there."""
        answers = self._of_many(lambda some: [self.store.check([name]) for name in some], names)
        return [rank for rank, there in answers.items() if there]

    def get_all(self, names: Mapping[int, str]) -> dict[int, bytes]:
        """Return what is there under the name of each rank."""
        one_call = self.store.has_extended_api()
        answers = self._of_many(
            lambda some: self.store.multi_get(some) if one_call else [self.store.get(name) for name in some],
            names,
        )
        return {rank: bytes(value) for rank, value in answers.items()}

    def gone(self, error: Exception) -> LoaderError:
        """Return what to raise when the store gave this error."""
        reason = str(error).partition("\n")[0]
        return LoaderError.at(
            f"the store of torch.distributed is gone ({reason}): the process it lives in, most often rank 0, has ended",
            todo="look at the output of that process",
            rank=self._rank,
        )

    def _of_many(self, call: Callable[[list[str]], list[Any]], names: Mapping[int, str]) -> dict[int, Any]:
        """Return what the store answers for each name; in few threads, for rank 0 hears all the others."""
        asked, answers = list(names.values()), []
        for begin in range(0, len(asked), _AT_ONCE):
            answers += self._ask(call, asked[begin : begin + _AT_ONCE])
        return dict(zip(names, answers, strict=True))

    def _ask(self, call: Callable[..., Any], *arguments: Any, wait_s: float | None = None) -> Any:
        wait_s = _ANSWER_S if wait_s is None else wait_s
        answer: list[Any] = []
        if not self._mute:
            name = f"rank-asks for {threading.current_thread().name}"
            thread = threading.Thread(target=_note, args=(answer, call, arguments), name=name, daemon=True)
            thread.start()
            thread.join(wait_s)
        if not answer:
            self._mute = True
            raise LoaderError.at(
                f"the store of torch.distributed has given no answer for {wait_s:g} s: the process it lives in, "
                "most often rank 0, is stopped, or a rank was killed while it wrote to a FileStore",
                todo="look at the output of the other ranks; end this job and begin it again from its checkpoint",
                rank=self._rank,
            )
        if isinstance(answer[0], (RuntimeError, OSError)):
            raise self.gone(answer[0]) from answer[0]
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]


def _note(answer: list[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer.append(call(*arguments))
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
        answer.append(error)
