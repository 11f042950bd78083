"""The budget of bytes that a process reads ahead."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from helpers.waiting import until

from torchdata_ais.errors import UsageError
from torchdata_ais.store import StoreOptions, open_blocks
from torchdata_ais.store.transport.read_ahead import Share, held_now


def test_one_share_does_not_take_the_part_of_another() -> None:
    first, second = Share(100), Share(100)
    try:
        assert first.take(40)
        taken = threading.Event()
        thread = threading.Thread(target=lambda: first.take(20) and taken.set())
        thread.start()
        assert not taken.wait(0.3), "60 of 100 bytes for one of two"
        assert second.take(50)
        second.close()
        assert taken.wait(60)
        thread.join(60)
    finally:
        first.close()
        second.close()
    assert held_now()[0] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_begins_with_nothing_held() -> None:
    share = Share(1000)
    try:
        assert share.take(700)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if held_now() == (0, 0) and Share(1000).take(900) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        share.close()


def test_a_source_that_another_thread_closes_never_looks_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer looks at the moment between the end of the blocks and that of the request."""
    (tmp_path / "s.tar").write_bytes(bytes(1000))
    source = open_blocks(str(tmp_path / "s.tar"), StoreOptions(block_bytes=10))
    cancel, looked = source._channel.reader.cancel, threading.Event()
    original = cancel.cancel
    monkeypatch.setattr(cancel, "cancel", lambda: (looked.wait(60), original()))
    closing = threading.Thread(target=source.close)
    closing.start()
    try:
        until(lambda: source._channel._done)
        with pytest.raises(UsageError, match="The source was closed"):
            next(source)
    finally:
        looked.set()
        closing.join(60)
