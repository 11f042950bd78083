"""Promise 2 for any archive: runs are the rule of WebDataset, and of a cut shard exactly the whole ones remain."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSourceLister
from torchdata_ais.reading.runs import KeySet, whole_runs
from torchdata_ais.samples import pack_place, split_name, unpack_place
from torchdata_ais.testing import shard_bytes

KEYS = st.sampled_from(["a", "b", "c", "d/a", "d.x/b"])
FIELDS = st.sampled_from(["jpg", "JPG", "cls", "seg.png", "txt", ""])
KEYED = st.builds(lambda key, field: f"{key}.{field}", KEYS, FIELDS)
OTHERS = st.sampled_from(["README", ".hidden", "__meta__", "__d__/x.txt", "d/noext", "._a.jpg", "d/._a.cls"])
DATA = st.binary(max_size=1200)
MEMBERS = st.lists(st.tuples(st.one_of(KEYED, KEYED, KEYED, OTHERS), DATA), max_size=14)
NAMES = st.text(st.sampled_from("ab._/ÄZ9 \n"), min_size=1, max_size=12)


def rule(name: str) -> tuple[str, str] | None:
    """The naming rule, as the reference implementation of the format writes it down."""
    if re.match(r"__[^/]*__($|/)", name):
        return None
    found = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)\Z", name, re.DOTALL)
    return (found[1], found[2].lower()) if found else None


@given(NAMES)
@settings(max_examples=examples(500))
def test_split_name_is_the_rule(name: str) -> None:
    assert split_name(name) == rule(name)


def model(members: list[tuple[str, bytes]]) -> list[tuple[str, list[tuple[str, bytes]]]]:
    """Keys and fields of the samples, by the rule, for a whole archive."""
    keyed = [
        (*parts, data)
        for name, data in members
        if not name.rpartition("/")[2].startswith("._") and (parts := rule(name))
    ]
    return [
        (key, [(field, data) for _, field, data in run])
        for key, run in itertools.groupby(keyed, key=lambda item: item[0])
    ]


def placed(members: list[tuple[str, bytes]]) -> Iterator[tuple[str, bytes, int, int]]:
    offset = 0
    for name, data in members:
        end = offset + 512 + len(data) + -len(data) % 512
        yield name, data, offset, end
        offset = end


@given(MEMBERS)
def test_promise_2_runs_are_the_samples_and_lose_no_member(members: list[tuple[str, bytes]]) -> None:
    runs = list(whole_runs(placed(members), url="s.tar"))
    got = [
        (run.key, [(member.field, member.data) for member in run.members if member.field is not None])
        for run in runs
        if run.key is not None
    ]
    assert got == model(members)
    kept = [(name, data) for name, data in members if not name.rpartition("/")[2].startswith("._")]
    assert [(member.name, member.data) for run in runs for member in run.members] == kept
    assert [run.last for run in runs] == [False] * (len(runs) - 1) + [True] * bool(runs)
    # Reading can begin again behind each run, and finds the rest.
    for index, run in enumerate(runs):
        later = [item for item in placed(members) if item[2] >= run.end]
        assert [again.key for again in whole_runs(later, url="s.tar")] == [
            other.key for other in runs[index + 1 :]
        ]


@given(MEMBERS, st.integers(0, 14))
def test_promise_2_of_a_shard_that_breaks_off_a_run_is_passed_on_only_when_another_key_has_followed(
    members: list[tuple[str, bytes]], breaks_after: int
) -> None:
    def broken() -> Iterator[tuple[str, bytes, int, int]]:
        yield from itertools.islice(placed(members), breaks_after)
        raise EOFError

    got = []
    try:
        for run in whole_runs(broken(), url="s.tar"):
            got.append((run.key, [(m.field, m.data) for m in run.members if m.field is not None]))
    except EOFError:
        pass
    assert got == model(members[:breaks_after])[:-1]
    assert got == model(members)[: len(got)]


@given(st.lists(MEMBERS, min_size=1, max_size=3), st.integers(1, 4), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_promise_2_the_chain_gives_the_model_for_whole_and_cut_shards_on_both_ways(
    shards: list[list[tuple[str, bytes]]], open_shards: int, data: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        urls, expected = [], {}
        for number, members in enumerate(shards):
            content = shard_bytes(members)
            ends = [end for *_, end in placed(members)]
            size = (ends or [0])[-1]
            cut = data.draw(st.integers(0, size + 600), label="cut")
            path = Path(folder, f"{number}.tar")
            path.write_bytes(content[:cut])
            urls.append(str(path))
            arrived = members[: sum(end <= cut for end in ends)]
            whole = cut >= size + 512 and cut > 0
            expected[str(path)] = model(members) if whole else model(arrived)[:-1]
        load = AISSourceLister(urls).load_tar(open_shards=open_shards, on_error="skip")
        for pipe in (load, load.map(lambda item: item)):
            got: dict[str, list[Any]] = {url: [] for url in urls}
            for sample in pipe.group_samples(adjacent="split", on_error="skip"):
                fields = [
                    (name, value) for name, value in sample.items() if name not in ("__key__", "__url__")
                ]
                got[sample["__url__"]].append((sample["__key__"], fields))
            for url in urls:
                unique = [s for s in expected[url] if len({field for field, _ in s[1]}) == len(s[1])]
                assert got[url] == unique


@given(st.lists(st.text(max_size=3), max_size=300))
def test_a_key_set_knows_what_was_added(keys: list[str]) -> None:
    known, model_set = KeySet(), set()
    for key in keys:
        assert known.add(key) == (key not in model_set)
        model_set.add(key)
    assert len(known) == len(model_set)


@given(st.integers(0, 2**23 - 1), st.integers(0, 2**40 - 1))
def test_a_place_is_one_integer_and_back(shard: int, block: int) -> None:
    assert unpack_place(pack_place(shard, block * 512)) == (shard, block * 512)
