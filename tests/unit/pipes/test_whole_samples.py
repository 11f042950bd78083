"""Promise 2: no sample is half or mixed, wherever its shard was cut before it was stored, under every policy.

The shards here are local files, so that a cut one agrees with its length: only its content can tell.
`tests/fault/test_chain_cuts.py` does the same with shards that a cluster stores, or that break off on the wire.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, Safety, stats
from torchdata_ais.errors import SampleError, ShardError, TruncatedShardError, UnsupportedMemberError
from torchdata_ais.testing import shard_bytes, write_shard

KEYS = ["000000", "000001", "000002"]


def members_of(shard: str) -> list[tuple[str, bytes]]:
    """Members whose bytes say which shard, sample and field they belong to; all shards have the same names."""
    return [
        (f"{key}.{field}", f"{shard} {key} {field} ".encode() * (7 + 13 * place))
        for key in KEYS
        for place, field in enumerate(("cls", "txt"))
    ]


def sample_of(shard: str, key: str, fields: tuple[str, ...] = ("cls", "txt")) -> dict[str, Any]:
    whole = dict(members_of(shard))
    return {"__key__": key, **{field: whole[f"{key}.{field}"] for field in fields}}


def archive(shard: str) -> bytes:
    """An archive that ends with its two blocks of zeros and no further padding."""
    full = shard_bytes(members_of(shard))
    return full[: len(full.rstrip(b"\0")) // 512 * 512 + 512 + 1024]


def known_whole(data: bytes, cut: int) -> list[str]:
    """The keys passed on of `data` cut at `cut`: the first member of the next sample has arrived, or the end."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        infos = tar.getmembers()
    first = {key: next(info for info in infos if info.name.startswith(key)) for key in KEYS}
    proof = [first[key].offset_data + first[key].size + -first[key].size % 512 for key in KEYS[1:]]
    proof.append(len(data) - 512)  # one of the two blocks of zeros
    return [key for key, needed in zip(KEYS, proof, strict=True) if cut >= needed]


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "__url__"}


Chain = Callable[..., Any]


def fused(urls: list[str], **options: Any) -> Any:
    return AISSourceLister(urls).load_tar(**options).group_samples()


def through_map(urls: list[str], **options: Any) -> Any:
    return AISSourceLister(urls).load_tar(**options).map(lambda item: item).group_samples()


def through_filter(urls: list[str], **options: Any) -> Any:
    return AISSourceLister(urls).load_tar(**options).filter(lambda item: True).group_samples()


def through_plain_strings(urls: list[str], **options: Any) -> Any:
    return AISSourceLister(urls).load_tar(**options).map(lambda item: (str(item[0]), item[1])).group_samples()


def without_last_field(urls: list[str], **options: Any) -> Any:
    """The member that carries the mark of the sample's end is left out."""
    pipe = AISSourceLister(urls).load_tar(**options)
    return pipe.filter(lambda item: not item[0].endswith(".txt")).group_samples()


CHAINS: dict[str, Chain] = {
    chain.__name__: chain
    for chain in (fused, through_map, through_filter, through_plain_strings, without_last_field)
}
UNMARKED = {"through_plain_strings", "without_last_field"}  # the end of a sample is seen by the next one only
FIELDS = {"without_last_field": ("cls",)}


def until_error(pipe: Any) -> tuple[list[dict[str, Any]], Exception | None]:
    """What comes before the end or the error, and the error."""
    got: list[dict[str, Any]] = []
    iterator = iter(pipe)
    try:
        while (sample := next(iterator, None)) is not None:
            got.append(plain(sample))
    except Exception as error:
        return got, error
    return got, None


def cuts(data: bytes) -> list[int]:
    around = {at + step for at in range(0, len(data), 512) for step in (-1, 0, 1, 200)}
    return sorted(cut for cut in around if 0 <= cut < len(data))


@pytest.fixture
def shards(tmp_path: Path) -> tuple[Path, str]:
    """The file for the cut shard, and a whole one with the same keys."""
    return tmp_path / "cut.tar", write_shard(tmp_path / "whole.tar", members_of("whole"))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "open_shards"),
    [
        pytest.param(name, number, marks=() if name == "fused" or number == 2 else pytest.mark.ci)
        for name in CHAINS
        for number in (1, 2, 4)
    ],
)
def test_promise_2_a_cut_shard_under_skip_loses_its_open_sample_only(
    name: str, open_shards: int, shards: tuple[Path, str]
) -> None:
    cut_file, whole = shards
    data = archive("cut")
    fields = FIELDS.get(name, ("cls", "txt"))
    for cut in cuts(data):
        cut_file.write_bytes(data[:cut])
        pipe = CHAINS[name]([str(cut_file), whole], on_error="skip", open_shards=open_shards)
        got = list(map(plain, pipe))
        passed = known_whole(data, cut)
        from_cut = [sample for sample in got if sample["cls"].startswith(b"cut")]
        from_whole = [sample for sample in got if sample["cls"].startswith(b"whole")]
        assert from_cut == [sample_of("cut", key, fields) for key in passed], cut
        assert from_whole == [sample_of("whole", key, fields) for key in KEYS], cut
        assert len(got) == len(from_cut) + len(from_whole), cut


@pytest.mark.ci
def test_promise_1_a_cut_at_every_offset_is_an_error_or_the_whole_shard(tmp_path: Path) -> None:
    data = shard_bytes({"a.cls": b"cut", "b.cls": b"cut" * 50})[: 2048 + 1024]
    whole = write_shard(tmp_path / "whole.tar", {"a.cls": b"whole"})
    cut_file = tmp_path / "cut.tar"
    pipe = fused([str(cut_file), whole], on_error="skip")
    for cut in range(len(data)):
        cut_file.write_bytes(data[:cut])
        before = sum(pipe_errors(pipe).values())
        got = [(sample["__key__"], sample["cls"]) for sample in pipe]
        passed = [("a", b"cut")] * (cut >= 2048) + [("b", b"cut" * 50)] * (cut >= 2048 + 512)
        assert got == [*passed, ("a", b"whole")], cut
        assert sum(pipe_errors(pipe).values()) - before == (len(passed) < 2), cut
    assert set(pipe_errors(pipe)) == {"TruncatedShardError", "NotATarError"}
    assert pipe_errors(pipe)["NotATarError"] < 6  # of the name in the first header not even its end is there


def pipe_errors(pipe: Any) -> dict[str, int]:
    return stats(pipe)["load_tar"].skipped


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CHAINS)
def test_promise_2_a_cut_shard_under_raise_gives_whole_samples_and_then_the_error(
    name: str, shards: tuple[Path, str]
) -> None:
    cut_file, whole = shards
    data = archive("cut")
    fields = FIELDS.get(name, ("cls", "txt"))
    for cut in cuts(data):
        cut_file.write_bytes(data[:cut])
        passed = known_whole(data, cut)
        got, error = until_error(CHAINS[name]([str(cut_file), whole]))
        if passed == KEYS:
            assert error is None
            assert len(got) == 6
            continue
        if name in UNMARKED:
            passed = passed[:-1]  # the last sample is still waited for when the error comes
        assert got == [sample_of("cut", key, fields) for key in passed], cut
        assert isinstance(error, ShardError)
        assert error.url == str(cut_file)
        assert isinstance(error, TruncatedShardError) or cut < 6
        assert error.offset == cut or cut < 6
        if known_whole(data, cut):
            assert f"{len(known_whole(data, cut))} of its samples had been passed on" in str(error)


def test_promise_1_a_cut_shard_without_end_may_be_taken_by_name(shards: tuple[Path, str]) -> None:
    cut_file, whole = shards
    data = archive("cut")
    cut_file.write_bytes(data[:-1024])
    got = list(map(plain, fused([str(cut_file), whole], safety=Safety(require_end=False))))
    assert got == [sample_of(shard, key) for shard in ("cut", "whole") for key in KEYS]
    cut_file.write_bytes(data[:-1024][:-512])  # the last member itself is cut: no option allows that
    with pytest.raises(TruncatedShardError):
        list(fused([str(cut_file)], safety=Safety(require_end=False)))


def test_promise_2_a_shard_of_one_sample_cut_in_the_middle_gives_nothing(tmp_path: Path) -> None:
    data = shard_bytes({"a.jpg": b"i" * 700, "a.cls": b"1"})
    (tmp_path / "a.tar").write_bytes(data[:1536])  # right behind a.jpg: no label
    whole = write_shard(tmp_path / "b.tar", {"a.cls": b"2"})
    got = list(fused([str(tmp_path / "a.tar"), whole], on_error="skip"))
    assert got == [{"__key__": "a", "__url__": whole, "cls": b"2"}]


def test_promise_2_members_without_key_neither_end_a_sample_nor_leave_before_it(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar",
        [
            ("README", b"r"),
            ("a.jpg", b"1"),
            ("__meta__/x.json", b"{}"),
            ("a.cls", b"2"),
            ("LICENSE", b"l"),
            ("b.cls", b"3"),
            (".hidden", b"h"),
        ],
    )
    load = AISSourceLister([shard]).load_tar()
    assert [path.member for path, _ in load] == [
        "README", "a.jpg", "__meta__/x.json", "a.cls", "LICENSE", "b.cls", ".hidden",
    ]  # fmt: skip
    expected = [
        {"__key__": "a", "__url__": shard, "jpg": b"1", "cls": b"2"},
        {"__key__": "b", "__url__": shard, "cls": b"3"},
    ]
    assert list(load.group_samples()) == expected
    assert list(load.map(lambda item: item).group_samples()) == expected


@pytest.mark.parametrize("name", ["fused", "through_map"])
def test_promise_2_a_cut_behind_a_member_without_key_is_no_end_of_the_sample(
    name: str, tmp_path: Path
) -> None:
    data = shard_bytes([("a.jpg", b"1"), ("README", b"r"), ("a.cls", b"2"), ("b.cls", b"3")])
    for blocks in range(6):
        (tmp_path / "s.tar").write_bytes(data[: 512 * blocks])
        assert list(CHAINS[name]([str(tmp_path / "s.tar")], on_error="skip")) == []


def test_apple_double_members_are_no_data_and_do_not_split_a_sample(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar",
        [("d/._a.jpg", b"x"), ("d/a.jpg", b"1"), ("d/._a.cls", b"x"), ("d/a.cls", b"2"), ("._b", b"x")],
    )
    for name, chain in CHAINS.items():
        samples = list(chain([shard]))
        assert samples == [{"__key__": "d/a", "__url__": shard, "jpg": b"1", "cls": b"2"}], name


def test_selected_and_renamed_members_follow_the_key_rule_after_that(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar",
        [
            ("img/a.jpg", b"1"),
            ("lbl/a.cls", b"2"),
            ("img/b.jpg", b"3"),
            ("img/b.raw", b"9"),
            ("lbl/b.cls", b"4"),
        ],
    )
    pipe = AISSourceLister([shard]).load_tar(
        rename_files=lambda name: name.partition("/")[2], select_files=lambda name: not name.endswith(".raw")
    )
    expected = [
        {"__key__": "a", "__url__": shard, "jpg": b"1", "cls": b"2"},
        {"__key__": "b", "__url__": shard, "jpg": b"3", "cls": b"4"},
    ]
    assert list(pipe.group_samples()) == expected
    assert list(pipe.map(lambda item: item).group_samples()) == expected


def test_promise_2_a_cut_in_a_member_that_is_passed_over_holds_the_sample_back(tmp_path: Path) -> None:
    data = shard_bytes({"a.cls": b"1", "a.raw": bytes(5000), "b.cls": b"2"})
    cut_file = tmp_path / "s.tar"
    cut_file.write_bytes(data[:3000])
    options = {"select_files": lambda name: not name.endswith(".raw"), "on_error": "skip"}
    assert list(fused([str(cut_file)], **options)) == []
    cut_file.write_bytes(data)
    assert [sample["__key__"] for sample in fused([str(cut_file)], **options)] == ["a", "b"]


def test_promise_2_a_function_of_the_user_that_fails_costs_the_rest_of_the_shard_and_is_named(
    tmp_path: Path,
) -> None:
    shards = [write_shard(tmp_path / f"{name}.tar", members_of(name)) for name in ("one", "two")]

    def rename(name: str) -> str:
        if name == "000001.txt" and rename.calls == 0:  # type: ignore[attr-defined]
            rename.calls += 1  # type: ignore[attr-defined]
            raise KeyError("no such name")
        return name

    rename.calls = 0  # type: ignore[attr-defined]
    pipe = fused(shards, rename_files=rename, on_error="skip")
    got = list(map(plain, pipe))
    assert got == [sample_of("one", KEYS[0])] + [sample_of("two", key) for key in KEYS]
    (text,) = stats(pipe)["load_tar"].examples
    assert "KeyError" in text
    assert shards[0] in text


# -- links


def linked_shard(path: Path, links: list[tuple[str, str, bytes]], head: list[tuple[str, bytes]]) -> str:
    """Write `head`, then the links (name, target, tar type), then a sample ``z``."""
    with tarfile.open(path, "w") as tar:
        for name, data in head:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target, kind in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
        info = tarfile.TarInfo("z.cls")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"9"))
    return str(path)


@pytest.mark.parametrize("name", ["fused", "through_map"])
def test_links_are_resolved_within_their_sample(name: str, tmp_path: Path) -> None:
    shard = linked_shard(
        tmp_path / "s.tar",
        [("d/a.copy", "d/a.jpg", tarfile.LNKTYPE), ("d/a.soft", "a.jpg", tarfile.SYMTYPE)],
        [("d/a.jpg", b"image")],
    )
    first, second = CHAINS[name]([shard])
    assert first == {"__key__": "d/a", "__url__": shard, "jpg": b"image", "copy": b"image", "soft": b"image"}
    assert second["cls"] == b"9"


def test_links_go_by_the_names_in_the_shard_also_when_members_are_renamed(tmp_path: Path) -> None:
    shard = linked_shard(
        tmp_path / "s.tar",
        [("d/a.copy", "d/a.jpg", tarfile.LNKTYPE), ("d/a.soft", "a.jpg", tarfile.SYMTYPE)],
        [("d/a.jpg", b"image")],
    )
    first, _ = fused([shard], rename_files=lambda name: name.replace("d/", "e/").replace("a.jpg", "a.png"))
    assert first == {"__key__": "e/a", "__url__": shard, "png": b"image", "copy": b"image", "soft": b"image"}


def test_a_link_out_of_its_sample_is_an_error_of_that_sample_alone(tmp_path: Path) -> None:
    shard = linked_shard(
        tmp_path / "s.tar",
        [("b.jpg", "a.jpg", tarfile.LNKTYPE)],
        [("a.jpg", b"image"), ("a.cls", b"1"), ("b.cls", b"2")],
    )
    with pytest.raises(UnsupportedMemberError, match=r"link to 'a\.jpg'") as caught:
        list(fused([shard]))
    assert (caught.value.key, caught.value.member, caught.value.url) == ("b", "b.jpg", shard)
    assert [sample["__key__"] for sample in fused([shard], on_error="skip")] == ["a", "z"]


@pytest.mark.parametrize("head", [[], [("a.jpg", b"1"), ("a.cls", b"2")]])
def test_a_dangling_link_without_key_costs_no_sample(head: list[tuple[str, bytes]], tmp_path: Path) -> None:
    shard = linked_shard(tmp_path / "s.tar", [("latest", "../elsewhere", tarfile.SYMTYPE)], head)
    pipe = fused([shard], on_error="skip")
    assert [sample["__key__"] for sample in pipe] == ["a"] * bool(head) + ["z"]
    assert pipe_errors(pipe) == {"UnsupportedMemberError": 1}
    with pytest.raises(UnsupportedMemberError) as caught:
        list(fused([shard]))
    assert caught.value.key is None


# -- bounds


@pytest.mark.parametrize("name", ["fused", "through_map"])
@pytest.mark.parametrize("sizes", [(400, 400), (1, 900), (900, 1)])
def test_a_sample_above_the_bound_is_an_error_of_that_sample_alone(
    name: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    shard = write_shard(
        tmp_path / "s.tar",
        {"a.cls": b"1", "b.jpg": bytes(sizes[0]), "b.npy": bytes(sizes[1]), "b.cls": b"2", "c.cls": b"3"},
    )
    with pytest.raises(SampleError, match="max_sample_bytes") as caught:
        list(CHAINS[name]([shard], safety=Safety(max_sample_bytes=700)))
    assert caught.value.key == "b"
    assert caught.value.url == shard
    skipping = CHAINS[name]([shard], safety=Safety(max_sample_bytes=700), on_error="skip")
    assert [s["__key__"] for s in skipping] == ["a", "c"]
    assert len(list(CHAINS[name]([shard], safety=Safety(max_sample_bytes=sum(sizes) + 1)))) == 3


def test_errors_of_load_tar_say_the_place_and_what_to_do(shards: tuple[Path, str]) -> None:
    cut_file, _ = shards
    cut_file.write_bytes(archive("cut")[:2570])
    with pytest.raises(TruncatedShardError) as caught:
        list(fused([str(cut_file)]))
    text = str(caught.value)
    assert text.startswith("The shard ends at byte 2570, inside a member")
    assert "write it again" in text
    assert caught.value.member == "000001.cls"
    assert caught.value.url == str(cut_file)
