"""A state that is not as it was saved is a `StateError` before anything is done with it, whatever is wrong with it."""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import itertools
import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import AISError, StateError
from torchdata_ais.loaders import (
    ais_loader,
    as_dataset,
    load_state_dict,
    merge_states,
    state_from_json,
    state_to_json,
)
from torchdata_ais.loaders.instance import InstancePlan, begin
from torchdata_ais.loaders.state import plans_for
from torchdata_ais.pipes.checkpoint.ledger import save, stage_names
from torchdata_ais.ranks.listing import shard_instance
from torchdata_ais.state import (
    InstanceState,
    Part,
    ReaderState,
    SharedState,
    StreamState,
    from_plain,
    to_plain,
    unpack,
)
from torchdata_ais.testing import example_shards

COUNTS = (3, 9, 0, 14, 1, 7, 5, 8)
SHORT = 2048
SEED = 4


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return example_shards(tmp_path_factory.mktemp("damage"), COUNTS)


def make_pipe(urls: list[str]) -> Any:
    chain = AISSourceLister(urls).shuffle().load_tar(open_shards=2).group_samples().shuffled(6)
    return chain.decode().to_tuple("cls").batched(2)


def state_of(
    urls: list[str], rank: int = 0, ranks: int = 1, workers: int = 2, steps: int = 3
) -> dict[str, Any]:
    """Return what the loader of a rank would save after some steps of each worker."""
    instances: list[Part] = []
    for worker in range(workers):
        number, instance = ranks * workers, rank * workers + worker
        pipe = make_pipe(urls)
        shard_instance(pipe, number, instance)
        begin(pipe, InstancePlan.of(SEED, 1, number, instance))
        assert len(list(itertools.islice(pipe, steps))) == steps or ranks > 1
        stands = save(pipe)
        instances.append(InstanceState(ReaderState(number, instance)) if stands is None else stands)
    state = StreamState(
        stages=stage_names(make_pipe(urls)), seed=SEED, epoch=1, step=steps * workers, turn=1 % workers,
        user_epoch=1, rank=rank, ranks=ranks, workers=workers, instances=instances,
    )  # fmt: skip
    return to_plain(state)


def bare(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a state as a merged one holds it."""
    return {name: value for name, value in plain.items() if name not in ("format", "version", "checksum")}


def seal(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a state that was changed with a checksum that is right again, as somebody would who forges one."""
    return {**plain, "checksum": xxhash.xxh64_hexdigest(msgspec.json.encode(bare(plain), order="sorted"))}


@pytest.fixture(scope="module")
def good(urls: list[str]) -> dict[str, Any]:
    return state_of(urls)


@pytest.fixture(scope="module")
def merged(urls: list[str]) -> dict[str, Any]:
    return merge_states([state_of(urls, rank, 2) for rank in (1, 0)])


def refuse(state: Any, urls: list[str], match: str = "") -> None:
    """Every way in refuses the state, in few words."""
    pipe = make_pipe(urls)
    with ais_loader(pipe) as loader:
        ways: list[Callable[[Any], object]] = [
            loader.load_state_dict, lambda given: merge_states([given]), state_to_json,
            as_dataset(pipe).load_state_dict, lambda given: load_state_dict(pipe, given),
        ]  # fmt: skip
        for way in ways:
            with pytest.raises(StateError, match=match) as caught:
                way(state)
            assert len(str(caught.value)) < SHORT
        assert loader.state_dict()["instances"] is None  # nothing of it was taken over


def edited(state: dict[str, Any], edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    damaged = copy.deepcopy(state)
    edit(damaged)
    assert damaged != state
    return damaged


def flip(text: str, at: int) -> str:
    return text[:at] + ("B" if text[at] != "B" else "C") + text[at + 1 :]


def test_a_whole_state_is_taken_however_it_travelled(
    urls: list[str], good: dict[str, Any], merged: dict[str, Any]
) -> None:
    for state in (good, merged):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        ways = [
            copy.deepcopy(state),
            torch.load(file, weights_only=True),
            json.loads(json.dumps(state)),
            state_from_json(json.loads(json.dumps(state_to_json(state)))),
            dict(reversed(state.items())),
        ]
        for travelled in ways:
            assert travelled == state
            with ais_loader(make_pipe(urls)) as loader:
                loader.load_state_dict(travelled)
                assert loader.state_dict() == state
            assert merge_states([travelled])["merged"] == state.get("merged", [bare(state)])


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "an entry gone": lambda s: s["instances"].pop(),
    "no entry": lambda s: s.update(instances=[]),
    "no instances": lambda s: s.update(instances=None),
    "an entry added": lambda s: s["instances"].append(s["instances"][0]),
    "entries reordered": lambda s: s["instances"].reverse(),
    "a byte flipped": lambda s: s["instances"][1]["reader"].update(
        held=flip(s["instances"][1]["reader"]["held"], 9)
    ),
    "bytes cut": lambda s: s["instances"][0]["reader"].update(held=s["instances"][0]["reader"]["held"][:-4]),
    "an inner key gone": lambda s: s["instances"][0]["reader"].pop("seen"),
    "an inner key added": lambda s: s["instances"][0].update(more=1),
    "another kind": lambda s: s.update(kind="merged"),
    "a kind that is none": lambda s: s.update(kind="other"),
    "no kind": lambda s: s.pop("kind"),
    "a stage gone": lambda s: s["stages"].pop(),
    "a key gone": lambda s: s.pop("turn"),
    "a key added": lambda s: s.update(more=1),
    "another seed": lambda s: s.update(seed=SEED + 1),
    "another epoch": lambda s: s.update(epoch=0),
    "another user's epoch": lambda s: s.update(user_epoch=5),
    "another turn": lambda s: s.update(turn=0),
    "another step": lambda s: s.update(step=0),
    "another rank": lambda s: s.update(rank=0, ranks=2),
    "fewer workers": lambda s: s.update(workers=1, instances=s["instances"][:1], turn=0),
    "another checksum": lambda s: s.update(checksum="0" * 16),
    "a number that is a text": lambda s: s.update(epoch="1"),
    "a number that is a float": lambda s: s.update(epoch=1.5),
    "a number that is none": lambda s: s.update(step=float("nan")),
    "texts for workers": lambda s: s.update(instances=["x", "y"]),
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda name: name.replace(" ", "-"))
def test_promise_5_a_damaged_state_is_refused(damage: str, urls: list[str], good: dict[str, Any]) -> None:
    refuse(edited(good, DAMAGE[damage]), urls, "The state is damaged")


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s["merged"].pop(),
        lambda s: s["merged"].append(s["merged"][0]),
        lambda s: s["merged"].reverse(),
        lambda s: s["merged"].clear(),
        lambda s: s["merged"][1]["instances"].reverse(),
        lambda s: s["merged"][1].update(epoch=0),
        lambda s: s.update(epoch=0),
        lambda s: s.update(step=1),
        lambda s: s.update(merged={}),
        lambda s: s.update(merged=[s["merged"]]),
    ],
)
def test_promise_5_a_damaged_merged_state_is_refused(
    damage: Callable[[dict[str, Any]], object], urls: list[str], merged: dict[str, Any]
) -> None:
    refuse(edited(merged, damage), urls, "The state is damaged")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a state."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def same_text(value: Any) -> str:
    """Return `value` as JSON, which tells 1 from 1.0 and True; bytes are the text that stands for them."""
    return json.dumps(value, default=lambda packed: base64.b64encode(packed).decode())


def damaged_at(draw: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with one change somewhere."""
    state = copy.deepcopy(state)
    *way, last = draw(st.sampled_from(list(leaves(state))))
    parent: Any = state
    for key in way:
        parent = parent[key]
    value = parent[last]
    if isinstance(value, str) and len(value) > 3 and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 4))  # the last bits of base64 say nothing
        other = draw(st.sampled_from("+Ax0"))
        parent[last] = value[:at] + draw(st.sampled_from([other, "", other + value[at]])) + value[at + 1 :]
    elif draw(st.booleans()):
        del parent[last]
    else:
        parent[last] = draw(
            st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.booleans(), st.just([]),
                      st.just({}), st.just([[[]]]), st.just({"": {}}))
        )  # fmt: skip
    return state


@given(data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_promise_5_one_random_change_is_refused(
    data: st.DataObject, good: Any, merged: Any, urls: list[str]
) -> None:
    state = data.draw(st.sampled_from([good, merged]))
    damaged = damaged_at(data.draw, state)
    if same_text(damaged) == same_text(state):
        return
    with pytest.raises(StateError) as caught:
        merge_states([damaged])
    assert len(str(caught.value)) < SHORT
    with ais_loader(make_pipe(urls)) as loader, pytest.raises(StateError):
        loader.load_state_dict(damaged)


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_promise_9_a_forged_state_is_an_error_of_ours_or_runs(
    data: st.DataObject, good: Any, merged: Any, urls: list[str]
) -> None:
    """With a checksum that is right again nothing can prove the change, but what follows has words, and an end."""
    forged = damaged_at(data.draw, data.draw(st.sampled_from([good, merged])))
    try:
        forged = seal(forged)
    except (TypeError, KeyError, ValueError, AttributeError, AISError):  # no checksum can be made of it
        return
    with ais_loader(make_pipe(urls)) as loader:
        with contextlib.suppress(AISError):
            loader.load_state_dict(forged)
            list(loader)


def repacked(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a state with a right checksum whose first worker says something else."""
    forged = copy.deepcopy(state)
    first = forged["instances"][0]
    for name, value in changes.items():
        (first["reader"] if name in first["reader"] else first)[name] = value
    return seal(forged)


def read_on(state: Any, urls: list[str]) -> None:
    with ais_loader(make_pipe(urls)) as loader:
        loader.load_state_dict(state)
        list(loader)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"begun": 400}, "at least .* shards"),
        ({"left": b"\xff" * (1 << 20)}, "at least .* shards"),
        ({"open": [[0, 1 << 40, None, None]]}, "where no sample ends|overlap"),
        ({"open": [[99, 0, None, None]]}, "at least 100 shards"),
        ({"open": [[1, 512, None, None], [1, 512, None, None]]}, "overlap"),
        ({"held": b"\0" * 80}, "names a held sample twice"),
        ({"held": b"\0" * 7}, "is cut"),
        ({"held": b"\xff" * 80}, "at least .* shards"),
        ({"instances": 0}, "damaged"),
        ({"instances": -1}, "damaged"),
        ({"instance": 2}, "which instance"),
        ({"begun": -1}, "damaged"),
        ({"seen": [[0, 1]]}, "another one than when"),
        ({"seeds": []}, "seeds|stages"),
        ({"stages": []}, "seeds|stages"),
        ({"stages": [[9999, None]] * 6}, "more samples than are named"),
        ({"of": [], "share": 1, "shares": 1}, "damaged"),
    ],
)
def test_promise_5_a_part_that_cannot_be_is_refused(
    changes: dict[str, Any], match: str, urls: list[str], good: dict[str, Any]
) -> None:
    single = state_of(urls, workers=1)
    begun = time.process_time()
    with pytest.raises(StateError, match=match) as caught:
        read_on(repacked(single, **changes), urls)
    assert len(str(caught.value)) < SHORT
    assert time.process_time() - begun < 5


def test_promise_5_a_broken_generator_of_a_stage_is_refused(urls: list[str]) -> None:
    single = state_of(urls, workers=1)
    stages = copy.deepcopy(single["instances"][0]["stages"])
    index = next(index for index, (_, state) in enumerate(stages) if state is not None)
    for version, words in ((3, b""), (9, bytes(2500)), (3, bytes(2499)), (3, b"\xff" * 2500)):
        stages[index][1] = [version, base64.b64encode(words).decode()]
        with pytest.raises(StateError, match=r"shuffled\(6\) cannot take it up"):
            read_on(repacked(single, stages=stages), urls)
    wrong: list[Any] = [{}, 5, [3], [3, "text!"]]
    for broken in wrong:
        stages[index][1] = broken
        with pytest.raises(StateError, match="damaged"):
            read_on(repacked(single, stages=stages), urls)


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"kind": "instance", "reader": {"instances": 1, "instance": 0}}
    for _ in range(depth):
        inner = {"kind": "shared", "of": [inner], "share": 0, "shares": 1}
    return inner


def values() -> Iterator[Any]:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    yield from (-1, 10**9, 10**30, 10**5000, True, float("nan"), float("inf"), None, "1", b"1", [], {}, deep)
    yield from (
        "x" * 10**6,
        b"x" * 10**6,
        [deep],
        {"x": deep},
        [None],
        [[]],
        {1: 2},
        {"x" * 10**6: 1},
        object(),
    )
    yield from (
        np.arange(3),
        torch.zeros(2),
        1.0,
        range(3),
        [1] * 10**5,
        [b""],
        [nested(30_000)],
        [nested(100)],
    )


def hostile(good: dict[str, Any], merged: dict[str, Any]) -> Iterator[Any]:
    wrong = list(values())
    yield from wrong
    yield {"format": np.arange(3)}
    yield {"format": good["format"]}
    itself: dict[str, Any] = {**merged}
    itself["merged"] = [itself]
    yield itself
    for base in (good, merged):
        for name in base:
            yield {key: value for key, value in base.items() if key != name}
            for value in wrong:
                changed = {**base, name: value}
                yield changed
                with contextlib.suppress(Exception):
                    yield seal(changed)


def try_all(answers: Any, good: dict[str, Any], merged: dict[str, Any], urls: list[str]) -> None:
    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    worst: list[Any] = []
    tried = 0
    with ais_loader(make_pipe(urls)) as loader:
        states = list(hostile(good, merged))
        before = peak()
        for state in states:
            for way in (
                loader.load_state_dict,
                lambda given: merge_states([given]),
                state_from_json,
                state_to_json,
            ):
                begun = time.process_time()
                tried += 1
                said = ""
                try:
                    way(state)
                    if way == loader.load_state_dict:
                        next(iter(loader))
                except StateError as error:
                    said = str(error)
                except BaseException as error:
                    worst.append((type(error).__name__, str(error)[:200], str(state)[:200]))
                if len(said) > SHORT or time.process_time() - begun > 1.5:
                    worst.append((len(said), time.process_time() - begun, said[:200]))
        answers.put((tried, worst[:5], peak() - before))


@pytest.mark.ci
def test_promise_7_hostile_states_cost_nothing(
    urls: list[str], good: dict[str, Any], merged: dict[str, Any]
) -> None:
    """In a process of its own, whose memory can be told from that of the tests before."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=try_all, args=(answers, good, merged, urls), daemon=True)
    process.start()
    try:
        process.join(60)
        assert process.exitcode == 0
        tried, worst, grown_mib = answers.get()
    finally:
        process.kill()
        process.join()
        process.close()
        answers.close()
    assert tried > 1000
    assert not worst
    assert grown_mib < 64


def test_a_state_of_another_version_is_refused_by_its_number(urls: list[str], good: dict[str, Any]) -> None:
    for other in (0, 2, 5):
        text = f"The state has version {other}, this package writes and reads 1"
        refuse({**good, "version": other}, urls, text)


def test_promise_7_a_state_of_very_many_ranks_names_a_few(urls: list[str], good: dict[str, Any]) -> None:
    state = seal({**good, "ranks": 10**9, "rank": 3})
    with ais_loader(make_pipe(urls)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            StateError, match=r"of 1000000000 ranks and lacks those of \[0, 1, 2, 4, 5, 6, 7, 8\]"
        ):
            list(loader)


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        ({"epoch": 2}, "epoch"), ({"user_epoch": 2}, "user_epoch"), ({"seed": 9}, "seed"), ({"step": 7}, "step"),
        ({"ranks": 3}, "ranks"), ({"workers": 3}, "workers"), ({"stages": ["load_tar()"]}, "stages"),
        ({"instances": None}, "instances"),
    ],
)  # fmt: skip
def test_states_of_ranks_that_do_not_belong_together_are_not_merged(
    edit: dict[str, Any], name: str, urls: list[str]
) -> None:
    one, other = state_of(urls, 0, 2), {**state_of(urls, 1, 2), **edit}
    if name == "workers":
        other["instances"] = [*other["instances"], other["instances"][0]]
    with pytest.raises(StateError, match=f"The states of ranks 0 and 1 differ in '{name}'"):
        merge_states([one, seal(other)])


def test_one_rank_twice_is_not_merged(urls: list[str]) -> None:
    one, other = state_of(urls, 0, 2), state_of(urls, 0, 2, steps=3)
    with pytest.raises(StateError, match="A rank is there twice: 0"):
        merge_states([one, other])
    assert len(merge_states([one, state_of(urls, 1, 2)])["merged"]) == 2


def test_what_is_merged_is_the_same_in_any_order_and_parts(urls: list[str]) -> None:
    states = [state_of(urls, rank, 4) for rank in range(4)]
    whole = merge_states(states)
    assert whole == to_plain(from_plain(whole))
    assert merge_states(states[::-1]) == whole
    assert merge_states([merge_states(states[2:]), states[1], merge_states(states[:1])]) == whole


def test_merging_builds_no_state_anew(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    states = [state_of(urls, rank, 4) for rank in range(4)]
    monkeypatch.setattr(msgspec, "to_builtins", None)
    assert [id(part["instances"]) for part in merge_states(states)["merged"]] == [
        id(state["instances"]) for state in states
    ]


def test_a_state_of_several_workers_is_not_for_one_instance(
    urls: list[str], good: dict[str, Any], merged: dict[str, Any]
) -> None:
    for state in (good, merged):
        for way in (
            as_dataset(make_pipe(urls)).load_state_dict,
            lambda given: load_state_dict(make_pipe(urls), given),
        ):
            with pytest.raises(StateError, match="of several workers or ranks"):
                way(state)


def test_what_is_no_list_of_states_is_refused() -> None:
    for states in (None, 5, {"a": 1}, "abc", b"abc", [None]):
        with pytest.raises(StateError):
            merge_states(states)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="no state to merge"):
        merge_states([])


def test_instances_that_had_not_begun_are_whole_states_too(urls: list[str]) -> None:
    fresh = unpack(InstancePlan(1, 2, 0).initial_state())
    instances = [fresh, SharedState([fresh], 1, 2)]
    state = to_plain(StreamState(stages=stage_names(make_pipe(urls)), workers=2, instances=instances))
    with ais_loader(make_pipe(urls)) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_promise_7_states_within_states_have_a_bound(urls: list[str]) -> None:
    """Each level is a resume without an item: what goes deeper than any run was made by somebody."""
    part: Part = InstanceState(ReaderState(1, 0))
    for _ in range(64):
        part = SharedState([part], 0, 1)
    read_on(to_plain(StreamState(stages=stage_names(make_pipe(urls)), instances=[part])), urls)
    with pytest.raises(StateError, match="more than 64 resumes in a row"):
        SharedState([part], 0, 1)
    state = to_plain(StreamState(stages=stage_names(make_pipe(urls)), instances=[part]))
    with pytest.raises(StateError, match="more than 64 resumes in a row"):
        read_on({**state, "instances": [nested(65)]}, urls)


@pytest.mark.parametrize(("rank", "ranks", "workers"), [(0, 1, 1), (0, 3, 1), (0, 2, 2), (1, 2, 1)])
def test_the_state_of_one_rank_is_not_enough_for_another_topology(
    rank: int, ranks: int, workers: int
) -> None:
    """Taken alone it would lose what the other ranks have left."""
    instances: list[Part] = [InstanceState(ReaderState(2, 0))]
    one = StreamState(stages=["load_tar()"], ranks=2, instances=instances, step=1)
    assert len(plans_for(one, 0, 2, 1)) == 1
    with pytest.raises(StateError, match=r"The state is of 2 ranks and lacks those of \[1\]"):
        plans_for(one, rank, ranks, workers)
