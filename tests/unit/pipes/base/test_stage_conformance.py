"""What every stage does, whatever it is for: one parametrised suite over all of them."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.graph import traverse_dps

from torchdata_ais.errors import AISError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.batched import Batcher, ListBatcher, Unbatcher, Unlister
from torchdata_ais.pipes.decode import SampleDecoder, StreamDecoder
from torchdata_ais.pipes.fields import KeyExtractor, KeyRenamer, Renamer, TupleMaker
from torchdata_ais.pipes.group_samples import TarSampleGrouper
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.load_objects import AISObjectLoader
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.pipes.mapped import Associator, DictMapper, SampleMapper, TupleMapper
from torchdata_ais.pipes.mixed import RandomMix, RoundRobin
from torchdata_ais.pipes.repeated import EpochSetter, Repeater
from torchdata_ais.pipes.resampled import Resampler, SplitByNode, SplitByWorker
from torchdata_ais.pipes.select import Selector, Slicer, Subsampler
from torchdata_ais.pipes.shuffled import Shuffler
from torchdata_ais.pipes.unchanged import InfoPrinter, LengthSetter, NonEmpty, PipeThrough, SingleNodeOnly
from torchdata_ais.samples import Sample
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import example_shards

SECRET = "SECRET-TOKEN"


def same(secret: str, value: Any, rng: Any = None) -> Any:
    return value


def yes(secret: str, value: Any) -> bool:
    return True


def through(secret: str, items: Iterator[Any]) -> Iterator[Any]:
    yield from items


def fields_of(secret: str, key: str) -> dict[str, Any]:
    return {"caption": key}


def text_of(secret: str, stream: Any) -> str:
    return stream.read().decode()


SAME = partial(same, SECRET)
SAMPLES = [{"__key__": f"{n:03d}", "txt": b"x", "cls": b"%d" % n} for n in range(6)]
TUPLES = [(n, b"x") for n in range(6)]
COLUMNS = [([0, 1], ["a", "b"]), ([2], ["c"])]
LISTS = [[0, 1], [2]]
MEMBERS = [(f"s.tar/{n}.{ext}", b"1") for n in range(6) for ext in ("cls", "txt")]

# name -> (class, its arguments, what it is given)
STAGES: dict[str, tuple[type, dict[str, Any] | Callable[[Any], Any], Any]] = {
    "associate": (Associator, {"associator": {SECRET: {"caption": 1}}}, SAMPLES),
    "associate_function": (Associator, {"associator": partial(fields_of, SECRET)}, SAMPLES),
    "batched": (Batcher, {"batchsize": 4}, TUPLES),
    "decode": (SampleDecoder, {}, SAMPLES),
    "decode_threads": (SampleDecoder, {"threads": 2}, SAMPLES),
    "decode_rng": (SampleDecoder, {"random_resized_crop": 8}, SAMPLES),
    "extract_keys": (lambda s: KeyExtractor(s, "*.txt;*.jpg", "cls"), {}, SAMPLES),
    "group_samples": (TarSampleGrouper, {}, MEMBERS),
    "info": (InfoPrinter, {}, SAMPLES),
    "list_ais": (partial(AISSourceLister, cluster=StoreOptions(token=SECRET), allow_empty=True), {}, "paths"),
    "listed": (ListBatcher, {"batchsize": 4}, TUPLES),
    "load_objects": (AISObjectLoader, {"cluster": StoreOptions("http://h:1", SECRET)}, "paths"),
    "load_tar": (AISFileLoader, {"cluster": StoreOptions("http://h:1", SECRET)}, "paths"),
    "map_dict": (DictMapper, {"cls": SAME, "txt": SAME}, SAMPLES),
    "map_sample": (SampleMapper, {"f": SAME}, SAMPLES),
    "map_sample_rng": (SampleMapper, {"f": SAME, "rng": True}, SAMPLES),
    "map_tuple": (lambda s: TupleMapper(s, SAME, None), {}, TUPLES),
    "mix_random": (RandomMix, {"longest": True}, TUPLES),
    "mix_round_robin": (RoundRobin, {}, TUPLES),
    "non_empty": (NonEmpty, {}, TUPLES),
    "pipe_through": (PipeThrough, {"f": partial(through, SECRET)}, TUPLES),
    "rename": (Renamer, {"label": "cls;index"}, SAMPLES),
    "rename_keys": (KeyRenamer, {"label": "cls"}, SAMPLES),
    "repeated": (Repeater, {"nepochs": 2}, TUPLES),
    "resampled": (Resampler, {"n": 10}, TUPLES),
    "rsample": (Subsampler, {"p": 1.0}, SAMPLES),
    "select": (Selector, {"predicate": partial(yes, SECRET)}, SAMPLES),
    "shuffled": (Shuffler, {"bufsize": 3}, SAMPLES),
    "single_node_only": (SingleNodeOnly, {}, TUPLES),
    "slice_samples": (lambda s: Slicer(s, 1, 5), {}, TUPLES),
    "split_by_node": (SplitByNode, {}, TUPLES),
    "split_by_worker": (SplitByWorker, {}, TUPLES),
    "to_tuple": (lambda s: TupleMaker(s, "txt", "cls"), {}, SAMPLES),
    "unbatched": (Unbatcher, {}, COLUMNS),
    "unlisted": (Unlister, {}, LISTS),
    "with_epoch": (EpochSetter, {"nsamples": 4}, TUPLES),
    "with_length": (LengthSetter, {"n": 100}, TUPLES),
    "xdecode": (StreamDecoder, {"cls": partial(text_of, SECRET)}, SAMPLES),
}
HAS_LENGTH = {"with_length", "split_by_node", "split_by_worker"}  # the split has the one of its source
TAKES_ANY_FIELD = {"map_dict", "rename", "rename_keys", "xdecode"}
REFUSES_EMPTY = {"non_empty", "with_epoch"}
TORCHS_OWN = {"split_by_node", "split_by_worker"}  # they make torch's sharding filter

every_stage = pytest.mark.parametrize("name", STAGES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return example_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def make(paths: list[str]) -> Callable[..., Any]:
    def build(name: str, items: Any = None) -> Any:
        cls, arguments, given = STAGES[name]
        given = paths if isinstance(given, str) else given
        return cls(IterableWrapper(given if items is None else items, deepcopy=False), **arguments)

    return build


class Counted:
    """An iterable that knows whether it was asked for anything."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        self.asked += 1
        return iter(())


def functional_name(name: str) -> str:
    return name.removesuffix("_function").removesuffix("_threads").removesuffix("_rng")


def texts(items: Any) -> list[str]:
    return [repr(item) for item in items]


def class_of(name: str) -> Any:
    return IterDataPipe.functions[functional_name(name)].args[0]


@every_stage
def test_a_fresh_stage_pickles_and_its_copy_yields_the_same(name: str, make: Any) -> None:
    copy = pickle.loads(pickle.dumps(make(name)))
    assert texts(copy) == texts(make(name))


@every_stage
def test_a_stage_pickles_while_it_runs(name: str, make: Any) -> None:
    pipe = make(name)
    running = iter(pipe)
    next(running)
    copy = pickle.loads(pickle.dumps(pipe))
    assert len(texts(copy)) == len(texts(make(name)))
    running.close()


@every_stage
def test_a_second_iteration_after_a_partial_one_begins_anew(name: str, make: Any) -> None:
    pipe = make(name)
    whole = texts(make(name))
    first = next(iter(pipe))
    again = texts(pipe)
    if name == "with_epoch":  # the one stage that goes on where it stopped
        assert [repr(first), *again] == texts(TUPLES[:5])
    elif name == "resampled":
        assert len(again) == len(whole)
    else:
        assert Counter(again) == Counter(whole)


@every_stage
def test_nothing_is_asked_of_the_source_before_the_first_item_is(name: str, make: Any) -> None:
    source = Counted()
    running = iter(make(name, source))
    assert source.asked == 0
    with contextlib.suppress(AISError):
        next(running, None)
    assert source.asked == 1


@every_stage
def test_an_unknown_length_is_a_type_error(name: str, make: Any) -> None:
    if name in HAS_LENGTH:
        assert len(make(name)) > 0
    else:
        with pytest.raises(TypeError):
            len(make(name))


@every_stage
def test_the_graph_shows_the_source(name: str, make: Any) -> None:
    pipe = make(name)
    found = []

    def walk(graph: Any) -> None:
        for part, above in graph.values():
            found.append(part)
            walk(above)

    walk(traverse_dps(pipe))
    assert any(type(part) is IterableWrapper for part in found)


@every_stage
def test_an_empty_source_gives_an_empty_stream(name: str, make: Any) -> None:
    pipe = make(name, [])
    if name in REFUSES_EMPTY:
        with pytest.raises(ValueError, match=r"no items|gave this one nothing"):
            list(pipe)
    else:
        assert list(pipe) == []


@every_stage
def test_repr_is_one_line_with_the_functional_name_and_no_secret(name: str, make: Any) -> None:
    text = repr(make(name))
    assert "\n" not in text
    assert SECRET not in text
    if name not in TORCHS_OWN:
        assert text.startswith(functional_name(name) + "(")


@every_stage
def test_an_error_shows_no_secret(name: str, make: Any) -> None:
    def broken() -> Iterator[Any]:
        raise OSError("the source is broken")
        yield

    with pytest.raises(OSError, match="the source is broken") as caught:
        list(make(name, broken()))
    assert SECRET not in str(caught.value)


@every_stage
def test_an_unknown_keyword_is_a_type_error(name: str, make: Any) -> None:
    if functional_name(name) in TAKES_ANY_FIELD:
        return
    cls = class_of(name)
    required = [p for p in inspect.signature(cls).parameters.values() if p.default is p.empty][1:]
    given = [same for p in required if p.kind is p.POSITIONAL_OR_KEYWORD]
    with pytest.raises(TypeError, match="no_such_option"):
        cls([], *given, no_such_option=1)


@every_stage
def test_the_stage_is_a_method_of_every_pipe(name: str, make: Any) -> None:
    cls = class_of(name)
    assert cls.__module__.startswith("torchdata_ais.")
    assert cls.functional_name == functional_name(name)


@every_stage
def test_no_attribute_hides_a_method(name: str, make: Any) -> None:
    pipe = make(name)
    if name not in TORCHS_OWN:
        assert not vars(pipe).keys() & IterDataPipe.functions.keys()


def test_no_functional_name_is_one_of_torchdatas() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It registers its own: a name taken before is an exception.
        pytest.importorskip("torchdata.datapipes.iter", exc_type=ImportError)
    for name in STAGES:
        assert class_of(name).__module__.startswith("torchdata_ais.")


class Taken:
    """Items, and how many of them were taken."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.taken = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.taken += 1
            yield item


@every_stage
def test_a_stage_says_what_it_does_to_items(name: str, paths: list[str]) -> None:
    kind, arguments, items = STAGES[name]
    given = paths if items == "paths" else items * (1 if items is MEMBERS else 4)
    if items is SAMPLES:
        given = [Sample({**item, "__key__": f"{n:03d}"}, place=n) for n, item in enumerate(given)]
    source = Taken(given)
    pipe = kind(IterableWrapper(source, deepcopy=False), **arguments)
    effect = stage_of(pipe).effect()
    found: list[Any] = []
    held = 0
    for item in pipe:
        found.append(item)
        out = len(found) * effect.size
        held = max(held, source.taken - out) if effect.gives in ("each", "batches") else 0
    length = effect.length(len(given))
    assert length is None or len(found) == length
    assert len(found) <= len(given) or effect.gives in ("more", "unknown")
    assert (held > 0) == (effect.holds and effect.gives != "unknown")
    if items is SAMPLES:
        keeps = [getattr(item, "place", -1) for item in found]
        assert (min(keeps) >= 0) == effect.keeps_place
        if effect.keeps_place:
            assert (keeps == sorted(keeps)) != effect.mixes


def test_every_stage_of_ours_says_it_by_the_contract_alone() -> None:
    public = {name for name in vars(Stage) if not name.startswith("_")} | set(Stage.__annotations__)
    for kind in {cls for cls, _, _ in STAGES.values() if isinstance(cls, type)}:
        for other in kind.__mro__[: kind.__mro__.index(Stage)]:
            assert not [name for name in vars(other) if name.startswith("_ais_")]
    assert len(public) <= 34
    assert {
        "held_places",
        "save_state",
        "load_state",
        "memory_bound",
        "busy_with",
        "effect",
        "stats",
    } <= public
