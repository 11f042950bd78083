"""Error handlers: functions to pass as ``handler=`` to any stage.

True continues (without a sample or the rest of a shard, as the stage documents), False ends the stream. None of them
sleeps. Errors of the call rather than of the data (`torchdata_ais.errors.NEVER_SKIPPED`) are raised by all of them; the
stages do not ask any handler about them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from torchdata_ais.errors import NEVER_SKIPPED
from torchdata_ais.errors.redaction import clean
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.policy import ErrorPolicy

Handler = Callable[[Exception], bool]


def reraise_exception(exn: Exception) -> NoReturn:
    """Raise the error: the default everywhere."""
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Go on without a word; the stages count what they skip all the same."""
    _raise_wrong_call(exn)
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Warn with the whole text of the error, and go on."""
    _warn(exn)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """End the stream without a word."""
    _raise_wrong_call(exn)
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Warn with the whole text of the error, and end the stream."""
    _warn(exn)
    return False


def handled(
    items: Iterable[object], make: Callable[[Any], object], handler: Handler, stage: str
) -> Iterator[Any]:
    """Yield what `make` returns, except for errors that the handler passes."""
    policy, stats = ErrorPolicy(handler), StageStats()
    for item in items:
        stats.items += 1
        try:
            made = make(item)
        except Exception as error:  # noqa: BLE001 - functions of the user may raise anything
            if not policy.goes_on(error, stats, stage):
                return
            continue
        yield made


def _raise_wrong_call(exn: Exception) -> None:
    if isinstance(exn, NEVER_SKIPPED):
        raise exn


def _warn(exn: Exception) -> None:
    _raise_wrong_call(exn)
    warnings.warn(clean(f"{type(exn).__name__}: {exn}"), stacklevel=3)
