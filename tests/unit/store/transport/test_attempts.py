"""Tries, pauses and the deadline of a request, at exactly their limits; the clock is the test's."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from torchdata_ais.errors import ReadError, StallError, TransportError, UsageError
from torchdata_ais.store import Retry
from torchdata_ais.store.transport import attempts
from torchdata_ais.store.transport.attempts import Attempts, Failed
from torchdata_ais.store.transport.cancel import Cancel


class Clock(Cancel):
    """A clock, and the flag of a request whose pauses pass on it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return self.cancelled


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(attempts, "time", made)
    return made


def request(clock: Clock, retry: Retry, *, takes_s: float = 0.0, after_s: float | None = None) -> Attempts:
    """Make a request that fails each time, and return what counted its tries."""
    tries = Attempts(retry, clock, "ais://b/s", "http://h")

    def call(_: Attempts) -> Any:
        clock.now += takes_s
        raise Failed(ReadError, "it failed", after_s=after_s)

    with pytest.raises(TransportError) as caught:
        tries.run(call)
    tries.error = str(caught.value)  # type: ignore[attr-defined]
    return tries


@pytest.mark.parametrize(
    ("after_s", "takes_s", "pauses"),
    [
        (3600.0, 0.0, []),
        (10.0, 0.0, []),  # then no time would be left for a try
        (9.5, 0.0, [9.5]),
        (9.5, 0.5, []),
        (4.0, 1.5, [4.0]),
        (3.0, 0.0, [3.0, 3.0, 3.0]),
        (None, 0.0, [0.0] * 4),
    ],
)
def test_promise_6_a_pause_that_the_deadline_does_not_leave_is_not_made(
    clock: Clock, after_s: float | None, takes_s: float, pauses: list[float]
) -> None:
    """Whether the server asks for it or not, and whatever the tries before it took."""
    found: Any = request(clock, Retry(5, backoff=0.0, deadline=10.0), takes_s=takes_s, after_s=after_s)
    assert clock.pauses == pauses
    assert found.total == len(pauses) + 1
    if after_s is None:
        assert "tried 5 times)" in found.error
    else:
        assert f"tried {found.total} times within the deadline of 10 s" in found.error
        assert f"the server asks to wait {after_s:g} s" in found.error


@pytest.mark.parametrize("number", [1, 2, 5])
def test_as_many_tries_are_made_as_the_retry_policy_has(clock: Clock, number: int) -> None:
    found = request(clock, Retry(number, backoff=1.0, deadline=None))
    assert (found.total, found.retries) == (number, number - 1)


def test_without_a_deadline_a_server_is_waited_for_as_long_as_it_asks(clock: Clock) -> None:
    request(clock, Retry(2, deadline=None), after_s=5000.0)
    assert clock.pauses == [5000.0]


def test_promise_6_the_deadline_is_that_of_all_calls_together(clock: Clock) -> None:
    tries = Attempts(Retry(3, backoff=0.0, deadline=10.0), clock, "ais://b/s", "http://h")

    def call(_: Attempts) -> str:
        clock.now += 5.0
        return "x"

    assert [tries.run(call), tries.run(call)] == ["x", "x"]
    with pytest.raises(StallError, match="deadline of 10 s for the whole has passed"):
        tries.run(call)
    tries.progress(1 << 20)  # each MiB adds a second
    assert tries.left_s() == 1.0
    assert tries.run(call) == "x"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda tries: tries.too_late("the deadline has passed after 0 bytes"),
            "for the whole.*ask for less",
        ),
        (lambda tries: Failed(StallError, "no answer for 1 s"), "for the whole.*ask for less"),
        (lambda tries: Failed(ReadError, "status 403", again=False), "status 403"),
    ],
    ids=["late in a body", "silent", "refused"],
)
def test_a_call_that_ends_late_names_the_deadline_of_all(
    clock: Clock, make: Callable[[Attempts], Failed], says: str
) -> None:
    """One that a server refuses keeps its own reason."""
    tries = Attempts(Retry(3, backoff=0.0, deadline=10.0), clock, "ais://b/s", "http://h")

    def call(_: Attempts) -> str:
        clock.now += 6.0
        if clock.now > 1010.0:
            raise make(tries)
        return "x"

    assert tries.run(call) == "x"
    with pytest.raises(TransportError, match=says):
        tries.run(call)


def test_pauses_grow_to_exactly_their_limit() -> None:
    retry = Retry(9, backoff=1.0, max_backoff=8.0)
    for failures, most in ((1, 1.0), (2, 2.0), (4, 8.0), (5, 8.0), (2000, 8.0)):
        found = [retry.delay(failures) for _ in range(200)]
        assert most / 2 <= min(found) < 0.6 * most
        assert 0.9 * most < max(found) <= most


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"backoff": -1.0}, {"max_backoff": -1.0}, {"deadline": 0.0}]
)
def test_times_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Retry(**wrong)
    assert Retry(attempts=1, backoff=0.0, max_backoff=0.0, deadline=0.001).delay(1) == 0.0


def test_a_timeout_is_at_most_the_rest_of_the_deadline(clock: Clock) -> None:
    made = Attempts(Retry(deadline=30.0), clock, "s.tar", "http://h/s.tar")
    assert made.bound(60.0) == 30.0
    assert made.bound(None) == 30.0
    assert made.bound(7.0) == 7.0
    made.waited(29.99)
    assert made.bound(60.0) == 0.05, "at least a moment"
    assert Attempts(Retry(deadline=None), clock, "s.tar", "").bound(60.0) == 60.0


# The thread that ends overdue calls


def watches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "torchdata_ais.watch"]


def test_all_calls_under_way_have_one_thread_which_ends_with_the_last() -> None:
    before = len(watches())
    with attempts.watching():
        (thread,) = watches()[before:]
        for _ in range(2):
            with attempts.series(Retry(), "a", "http://h"), attempts.series(Retry(), "b", "http://h"):
                assert watches()[before:] == [thread]
        assert watches()[before:] == [thread]
    assert len(watches()) == before


def test_each_overdue_call_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_WATCH_S", 0.01)
    monkeypatch.setattr(attempts, "_SLACK_S", 0.0)
    monkeypatch.setattr(attempts, "_watch", attempts._Watch())
    with attempts.series(Retry(), "a", "http://h") as one, attempts.series(Retry(), "b", "http://h") as two:
        one.expect(0.0)
        two.expect(None)
        due = time.monotonic() + 60.0
        while not one._cancel._interrupted:
            assert time.monotonic() < due
            time.sleep(0.01)
        with pytest.raises(Failed, match="now and then"):
            one.check_interrupted()
        two.check_interrupted()


def test_a_call_may_end_in_a_thread_that_begins_another() -> None:
    """As when the garbage collector closes an unfinished listing."""
    before = len(watches())
    call = attempts.series(Retry(), "a", "http://h")
    call.__enter__()
    with attempts._watch._lock:
        call.__exit__(None, None, None)
    assert len(watches()) == before


def test_a_forked_process_watches_its_own_calls() -> None:
    def child() -> None:
        with attempts.series(Retry(), "b", "http://h"):
            found.put(len(watches()))

    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    process = context.Process(target=child)
    with attempts.series(Retry(), "a", "http://h"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while a thread runs
        attempts._watch._lock.acquire()  # as if another thread was in it
        process.start()
        attempts._watch._lock.release()
    process.join(60)
    assert process.exitcode == 0
    assert found.get() == 1
    process.close()
