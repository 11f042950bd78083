"""What a shard may make the reader hold: names, records, members without a key, links; and how much work they are."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from torchdata_ais import AISFileLoader, Safety, TarSampleGrouper
from torchdata_ais.errors import BadHeaderError, SampleError, UnsupportedMemberError, UsageError
from torchdata_ais.reading.runs import KeySet, Run, whole_runs
from torchdata_ais.tar import Link, LinkTargets, TarBuilder, TarReader, compression, decompress
from torchdata_ais.tar import header as link
from torchdata_ais.urls import MemberPath

END = bytes(1024)
PATH = 64 << 10


def header(name: str, kind: bytes, payload: bytes = b"") -> bytes:
    raw = bytearray(TarBuilder().member("x", b"")[0])
    raw[:100] = name.encode().ljust(100, b"\0")
    raw[124:136] = b"%011o\0" % len(payload)
    raw[156:157] = kind
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw) + payload + bytes(-len(payload) % 512)


def pax(word: str, size: int) -> bytes:
    value = b"d.x/" + b"v" * (size - 4)
    rest = b" %s=%s\n" % (word.encode(), value)
    length = next(n for n in range(len(rest), len(rest) + 9) if len(str(n)) + len(rest) == n)
    return b"%d%s" % (length, rest)


@pytest.mark.parametrize("kind", [b"L", b"K"])
def test_a_long_name_has_at_most_64_kib(kind: bytes) -> None:
    def shard(size: int) -> list[bytes]:
        return [
            header("././@LongLink", kind, b"d.x/" + b"n" * (size - 4) + b"\0"),
            header("a.cls", b"0"),
            END,
        ]

    assert len(list(TarReader(shard(PATH)))) == 1
    for size in (PATH + 1, 400_000, 2 << 20):
        with pytest.raises(
            BadHeaderError, match=f"extension header of {size + 1} bytes.*shorter names"
        ) as caught:
            list(TarReader([header("first.cls", b"0"), *shard(size)], url="s.tar"))
        assert (caught.value.url, caught.value.offset) == ("s.tar", 512)
        assert (caught.value.member or "").startswith("d.x/nnn")


@pytest.mark.parametrize("word", ["path", "linkpath"])
@pytest.mark.parametrize("kind", [b"x", b"g"])
def test_a_pax_name_has_at_most_64_kib(word: str, kind: bytes) -> None:
    def shard(size: int) -> list[bytes]:
        return [header("pax", kind, pax(word, size)), header("a.cls", b"0"), END]

    assert len(list(TarReader(shard(PATH)))) == 1
    with pytest.raises(BadHeaderError, match=f"{word} of {PATH + 1} characters, more than {PATH}") as caught:
        list(TarReader(shard(PATH + 1)))
    assert (caught.value.offset, len(caught.value.member or "")) == (0, 100)
    with pytest.raises(BadHeaderError, match="extension header of 1048577 bytes"):
        list(TarReader([header("pax", kind, b" " * ((1 << 20) + 1))]))


def test_what_readers_refuse_is_not_written() -> None:
    assert len(TarBuilder().member("n" * PATH, b"")) == 1
    with pytest.raises(UsageError, match="at most 64 KiB"):
        TarBuilder().member("n" * (PATH + 1), b"")


def runs(members: Iterable[tuple[str, Any]], limit: int | None = None, **named: Any) -> list[Run]:
    placed = [(name, data, 512 * at, 512 * at + 512) for at, (name, data) in enumerate(members)]
    return list(whole_runs(placed, url="s.tar", max_bytes=limit, **named))


def keys(found: list[Run]) -> list[tuple[str | None, int, str]]:
    return [(run.key, len(run.members), type(run.error).__name__) for run in found]


def test_records_and_names_count_beyond_64_kib() -> None:
    def sample(count: int, name: str = "") -> list[tuple[str, bytes]]:
        return [(f"a.{name}{number}", b"") for number in range(count)] + [("b.cls", b"")]

    few = (64 << 10) // (512 + 8 * 5)
    assert keys(runs(sample(few), 0)) == [("a", few, "NoneType"), ("b", 1, "NoneType")]
    assert keys(runs(sample(few + few), 0)) == [("a", 0, "SampleError"), ("b", 1, "NoneType")]
    assert keys(runs(sample(few + few), 64 << 10))[0][2] == "NoneType"
    assert keys(runs(sample(20, "n" * 1000), 64 << 10))[0][2] == "SampleError"
    assert keys(runs(sample(11, "n" * 1000), 64 << 10))[0][2] == "NoneType"
    # A renamed member is held under both names.
    assert keys(runs(sample(11, "n" * 1000), 64 << 10, rename=lambda name: name + "."))[0][2] == "SampleError"
    error = runs(sample(1000), 1000)[0].error
    assert isinstance(error, SampleError)
    assert "names and records included" in str(error)
    assert error.key == "a"


def test_what_follows_in_a_sample_that_was_given_up_makes_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    at = SampleError.at.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(SampleError, "at", classmethod(lambda *a, **n: made.append("") or at(*a, **n)))
    found = runs([(f"a.{number}", bytes(1000)) for number in range(500)], 100)
    assert (keys(found), len(made)) == ([("a", 0, "SampleError")], 1)


def test_members_without_a_key_are_no_part_of_the_sample_they_stand_in() -> None:
    """They stay in their place up to 1 MiB; more are passed on before it, and no sample is lost for them."""
    readme = [("README", b"r" * 100)]
    found = runs(
        [*readme, ("a.cls", b"1"), *readme * 3, ("a.txt", b"2"), *readme, ("b.cls", b"3"), *readme], 300
    )
    assert keys(found) == [("a", 7, "NoneType"), ("b", 2, "NoneType")]
    assert [member.name for member in found[0].members] == [
        "README", "a.cls", "README", "README", "README", "a.txt", "README",
    ]  # fmt: skip
    assert [member.offset for member in found[0].members] == [512 * at for at in range(7)]
    assert found[1].last

    many = [(f"README{number}", b"") for number in range(5000)]
    found = runs([("a.cls", b"1"), *many, ("a.txt", b"2"), *many], 300)
    assert found[-1].key == "a"
    assert found[-1].last
    assert [member.name for member in found[-1].members if member.field] == ["a.cls", "a.txt"]
    assert {run.end for run in found[:-1]} == {0}  # reading goes on from the sample that is not over
    assert sorted(member.name for run in found for member in run.members) == sorted(
        ["a.cls", "a.txt", *[name for name, _ in many * 2]]
    )
    assert max(len(run.members) for run in found) < 2500

    found = runs([*many, ("README", bytes(5 << 20)), ("b.cls", b"")], 300)
    assert [run.key for run in found if run.key] == ["b"]
    assert found[-1].members[-1].name == "b.cls"


def test_members_without_a_key_are_not_kept_where_no_load_tar_stands_above() -> None:
    def members() -> Iterator[tuple[MemberPath, bytes]]:
        for number in range(3):
            yield MemberPath.of("s.tar", "README", 0), bytes(1000)
            yield MemberPath.of("s.tar", f"{number}.cls", 512), b"7"

    grouped = TarSampleGrouper(members())
    assert [dict(sample) for sample in grouped] == [
        {"__key__": str(number), "__url__": "s.tar", "cls": b"7"} for number in range(3)
    ]


def test_keys_are_remembered_in_2_mb_however_long_they_are() -> None:
    long = KeySet()
    assert all(long.add("k" * 60_000 + str(number)) for number in range(50))
    assert sum(map(len, long._few)) <= 256 << 10
    assert not any(long.add("k" * 60_000 + str(number)) for number in range(50))
    assert len(long) == 50


class TestLinks:
    def test_the_last_member_of_a_name_is_meant(self) -> None:
        found = runs([("a.x", b"old"), ("./a.x", b"new"), ("a.y", Link("a.x"))])
        assert [member.data for run in found for member in run.members][-1] == b"new"
        later = runs([("a.x", b"old"), ("a.y", Link("a.x")), ("a.x", b"new"), ("a.z", Link("a.x"))])
        assert [member.data for member in later[0].members] == [b"old", b"old", b"new", b"new"]

    def test_a_link_may_point_to_a_link_and_to_a_member_without_a_key(self) -> None:
        found = runs([("d/README", b"r"), ("d/a.x", Link("README", symbolic=True)), ("d/a.y", Link("d/a.x"))])
        assert [member.data for member in found[0].members] == [b"r", b"r", b"r"]

    def test_no_link_reaches_into_another_sample_or_to_what_was_passed_on(self) -> None:
        found = runs([("a.x", b"1"), ("b.x", b"2"), ("b.y", Link("a.x")), ("c.x", b"3")])
        assert keys(found) == [("a", 1, "NoneType"), ("b", 0, "UnsupportedMemberError"), ("c", 1, "NoneType")]
        assert isinstance(found[1].error, UnsupportedMemberError)
        passed_on = [
            ("README", bytes(2 << 20)),
            ("a.w", b""),
            ("a.v", Link("a.w")),
            ("README", bytes(2 << 20)),
        ]
        found = runs([*passed_on, ("a.x", Link("README"))])
        assert keys(found)[-1] == ("a", 0, "UnsupportedMemberError")

    def test_links_go_by_the_names_in_the_shard(self) -> None:
        found = runs(
            [("old.x", b"1"), ("old.y", Link("old.x"))], rename=lambda name: name.replace("old", "a")
        )
        assert [(member.name, member.data) for member in found[0].members] == [("a.x", b"1"), ("a.y", b"1")]

    @pytest.mark.parametrize("order", ["links last", "links in between"])
    def test_the_work_grows_with_their_number_and_not_with_its_square(
        self, order: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        normalised: list[str] = []
        real = link.posixpath.normpath

        class Counting:
            join, dirname = staticmethod(link.posixpath.join), staticmethod(link.posixpath.dirname)
            normpath = staticmethod(lambda name: normalised.append(name) or real(name))

        monkeypatch.setattr(link, "posixpath", Counting)

        def work(count: int) -> int:
            normalised.clear()
            files = [(f"a.{number}", b"") for number in range(count)]
            links: list[tuple[str, Any]] = [(f"a.l{number}", Link("a.0")) for number in range(count)]
            mixed = (
                [*files, *links]
                if order == "links last"
                else [m for pair in zip(files, links, strict=True) for m in pair]
            )
            assert keys(runs(mixed)) == [("a", 2 * count, "NoneType")]
            return len(normalised)

        assert work(2000) <= 2.1 * work(1000) <= 8000

    def test_100000_links_in_a_sample(self) -> None:
        links: list[tuple[str, Any]] = [(f"a.{number}", Link("a.x")) for number in range(100_000)]
        (run,) = runs([("a.x", b"1"), *links])
        assert len(run.members) == 100_001
        assert {member.data for member in run.members} == {b"1"}

    def test_a_target_is_forgotten_unless_another_came(self) -> None:
        targets = LinkTargets()
        first, second = bytes(1), bytes(2)
        targets.add("a/../x", first)
        targets.add("x", second)
        targets.forget("x", first)
        assert targets.find("y", Link("x")) is second
        targets.forget("./x", second)
        assert targets.find("y", Link("x")) is None


def test_tiny_compressed_streams_are_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind the end of a stream is copied: not 128 KiB for each stream of 20 bytes."""
    fed: list[int] = []
    real = compression._Inflater.decompress

    def counting(self: Any, data: bytes, max_length: int) -> bytes:
        fed.append(len(data))
        return real(self, data, max_length)

    monkeypatch.setattr(compression._Inflater, "decompress", counting)
    count = 2000
    shard = gzip.compress(b"x") * count
    assert b"".join(decompress([shard])) == b"x" * count
    assert sum(fed) <= count * 1024 + len(shard)


def test_a_message_names_20_fields_at_most() -> None:
    members = [(f"s.tar/a.{number:03d}", b"") for number in range(500)]
    with pytest.raises(ValueError, match=r"'018', '019'\] and 480 more"):
        list(TarSampleGrouper(members, require="cls"))
    with pytest.raises(ValueError, match=r"'018', '019'\] and 480 more"):
        list(TarSampleGrouper(members).to_tuple("cls"))


def test_a_bound_that_is_no_number_is_told_at_once() -> None:
    for wrong in ("1", 1.5, -1, True):
        with pytest.raises(UsageError, match="max_sample_bytes="):
            AISFileLoader([], safety=Safety(max_sample_bytes=wrong))
