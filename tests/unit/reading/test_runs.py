"""Runs of members, at their limits."""

from __future__ import annotations

import pytest

from torchdata_ais.errors import ShardError, UnsupportedMemberError
from torchdata_ais.reading.runs import KeySet, url_of_shard, whole_runs, whole_samples
from torchdata_ais.tar import TarReader
from torchdata_ais.tar.header import Link
from torchdata_ais.testing import shard_bytes

MIB = 1 << 20


def test_members_without_a_key_are_held_up_to_a_mebibyte() -> None:
    members = [(f"README{number}", b"x" * (MIB // 4), 0, 0) for number in range(12)]
    runs = list(whole_runs([("a.cls", b"1", 0, 0), *members, ("a.txt", b"2", 0, 0)], url="s.tar"))
    assert [run.key for run in runs] == [None] * 3 + ["a"]
    assert [len(run.members) for run in runs] == [4, 4, 4, 2]
    (run,) = whole_runs([("a.cls", b"1", 0, 0), *members[:3], ("a.txt", b"2", 0, 0)], url="s.tar")
    assert len(run.members) == 5


def test_an_error_of_a_run_is_raised_and_not_passed_over() -> None:
    members = [
        ("a.cls", b"1", 0, 1024),
        ("b.cls", Link("c.cls", "hard"), 1024, 1536),
        ("d.cls", b"2", 1536, 2560),
    ]
    samples = whole_samples(whole_runs(members, url="s.tar"), "s.tar")
    assert next(samples)[1]["__key__"] == "a"
    with pytest.raises(UnsupportedMemberError, match="no earlier member"):
        next(samples)


def test_a_shard_is_shown_without_secrets() -> None:
    assert "abc" not in url_of_shard("https://h/x.tar?X-Amz-Signature=abc&v=1", "")
    assert "v=1" in url_of_shard("https://h/x.tar?X-Amz-Signature=abc&v=1", "")


@pytest.mark.timeout(30)
def test_many_keys_are_known_when_they_come_again() -> None:
    keys = KeySet()
    names = [f"train/{number:06}" for number in range(20_000)]
    assert all(map(keys.add, names))
    assert len(keys) == len(names)
    assert not any(map(keys.add, names[::97]))


def test_a_single_block_of_zeros_is_not_the_end() -> None:
    data = shard_bytes({"a.cls": b"1"})
    with pytest.raises(ShardError):
        list(TarReader([data[:1024], bytes(512), data]))
