"""The stages beside webdataset's filters of the same name: the same items in, the same items out.

Covers what webdataset's own tests of its pure functions pin. Where this package differs on purpose, the case stands
in `TestDeliberatelyDifferent` with the reason.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from torchdata_ais.pipes.batched import Batcher, ListBatcher, Unbatcher, Unlister
from torchdata_ais.pipes.decode import StreamDecoder
from torchdata_ais.pipes.fields import KeyExtractor, KeyRenamer, Renamer, TupleMaker
from torchdata_ais.pipes.mapped import Associator, DictMapper, SampleMapper, TupleMapper
from torchdata_ais.pipes.mixed import RoundRobin
from torchdata_ais.pipes.repeated import Repeater
from torchdata_ais.pipes.resampled import Resampler
from torchdata_ais.pipes.select import Selector, Slicer, Subsampler
from torchdata_ais.pipes.shuffled import Shuffler

wds = pytest.importorskip("webdataset")
from webdataset import filters, mix, shardlists  # noqa: E402
from webdataset.utils import repeatedly  # noqa: E402

NAMES = ["jpg", "left.jpg", "d/Left.JPG", "cls", "seg.png", "txt", "__key__", "__url__"]
go_on, stop = (lambda error: True), (lambda error: False)


def outcome(run: Callable[[], Any]) -> Any:
    """Return the items as text, or that a ValueError or KeyError ended the stream: webdataset uses both."""
    try:
        return [repr(plain(item)) for item in run()]
    except (ValueError, KeyError):
        return "error"


def plain(item: Any) -> Any:
    if isinstance(item, (np.ndarray, np.generic, torch.Tensor)):
        return [type(item).__name__, item.tolist()]
    if isinstance(item, dict):
        return {name: plain(value) for name, value in item.items()}
    if isinstance(item, (tuple, list)):
        return type(item)([plain(value) for value in item])
    return item


def compare(theirs: Callable[[Any], Any], ours: Callable[[Any], Any], items: Any) -> Any:
    """Run both over copies of `items` and return what both gave."""
    expected = outcome(lambda: theirs(iter(copy.deepcopy(list(items)))))
    assert outcome(lambda: ours(copy.deepcopy(list(items)))) == expected
    return expected


def random_samples(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        dict.fromkeys(rng.sample(NAMES, rng.randint(1, len(NAMES))), n) | {"__key__": f"{n}"}
        for n in range(rng.randint(0, 5))
    ]


class TestMap:
    @pytest.mark.parametrize(
        ("f", "items"),
        [
            (lambda x: x**2, range(5)),
            (lambda x: None if x % 2 else x, range(5)),
            (lambda s: {"y": s["x"]}, [{"__key__": "a", "x": 1}]),
            (lambda s: s.update(x=2) or s, [{"__key__": "a", "x": 1}]),
            (lambda s: {**s, "__key__": "other"}, [{"__key__": "a", "x": 1}]),
            (lambda s: (s["__key__"], s["x"]), [{"__key__": "a", "x": 1}]),
        ],
    )
    def test_same_results(self, f: Any, items: Any) -> None:
        assert compare(lambda s: filters._map(s, f), lambda s: SampleMapper(s, f), items)

    @pytest.mark.parametrize("handler", [go_on, stop, wds.reraise_exception])
    def test_same_after_an_error(self, handler: Any) -> None:
        def odd(x: int) -> int:
            if x % 2 == 0 and x:
                raise ValueError("even")
            return x

        theirs, ours = (
            partial(filters._map, f=odd, handler=handler),
            partial(SampleMapper, f=odd, on_error=handler),
        )
        compare(theirs, ours, range(6))

    def test_same_select(self) -> None:
        for predicate in (lambda x: x % 2 == 0, lambda x: x > 100):
            compare(
                partial(filters._select, predicate=predicate),
                partial(Selector, predicate=predicate),
                range(10),
            )

    @pytest.mark.parametrize("handler", [go_on, stop, wds.reraise_exception])
    def test_same_map_dict(self, handler: Any) -> None:
        items = [{"x": "1", "y": "2"}, {"x": "3"}, {"x": "one", "y": "2"}, {"x": "4", "y": "5"}]
        fs = {"y": str.upper, "x": int}
        compare(
            lambda s: filters._map_dict(s, handler=handler, **fs),
            lambda s: DictMapper(s, on_error=handler, **fs),
            items,
        )

    @pytest.mark.parametrize("fs", [(), (int,), (int, None), (None, None, str, int)])
    def test_same_map_tuple(self, fs: Any) -> None:
        items = [("1", "2", 3), ["4", "5", 6], ("7",)]
        compare(lambda s: filters._map_tuple(s, *fs), lambda s: TupleMapper(s, *fs), items)

    def test_same_associate(self) -> None:
        items = [{"__key__": "a", "x": 1}, {"__key__": "b"}]
        for extra in ({"a": {"x": 2, "y": 3}}, lambda key: {"y": key}):
            compare(lambda s, e=extra: filters._associate(s, e), lambda s, e=extra: Associator(s, e), items)


class TestFields:
    @pytest.mark.parametrize(
        "specs", [("a", "c"), ("a c",), ("x;a", "c;b"), ("a",), ("missing",), ("missing;a",)]
    )
    def test_same_to_tuple(self, specs: tuple[str, ...]) -> None:
        compare(
            lambda s: filters._to_tuple(s, *specs),
            lambda s: TupleMaker(s, *specs),
            [{"a": 1, "b": 2, "c": 3}] * 3,
        )

    def test_same_to_tuple_with_missing_fields_allowed(self) -> None:
        items = [{"a": 1}, {"b": 2}]
        compare(
            lambda s: filters._to_tuple(s, "a", "b", missing_is_error=False),
            lambda s: TupleMaker(s, "a", "b", missing_is_error=False),
            items,
        )

    @pytest.mark.parametrize("none", [True, False])
    @pytest.mark.parametrize("missing", [True, False])
    @pytest.mark.parametrize("handler", [go_on, stop, wds.reraise_exception])
    def test_same_to_tuple_with_none_refused_or_allowed(
        self, missing: bool, none: bool, handler: Any
    ) -> None:
        items = [{"a": 1, "b": 2}, {"a": None, "b": 2}, {"b": 3}, {"a": 4, "b": 5}]
        options = {"missing_is_error": missing, "none_is_error": none}
        compare(
            lambda s: filters._to_tuple(s, "a", "b", handler=handler, **options),
            lambda s: TupleMaker(s, "a", "b", on_error=handler, **options),
            items,
        )

    @pytest.mark.quick(60)
    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize(
        "patterns", [("a;x",), ("*.jpg",), ("jpg", "cls"), (".jpg;.cls", "*.png"), ("*g",), ("__*",)]
    )
    @pytest.mark.parametrize("options", [{}, {"ignore_missing": True}, {"duplicate_is_error": False}])
    def test_same_extract_keys(self, patterns: tuple[str, ...], options: dict[str, bool], seed: int) -> None:
        items = random_samples(seed)
        compare(
            lambda s: filters._extract_keys(s, *patterns, **options),
            lambda s: KeyExtractor(s, *patterns, **options),
            items,
        )

    @pytest.mark.parametrize(
        ("patterns", "options", "items", "expected"),
        [
            (("a;x",), {}, [{"a": 1, "b": 2}, {"x": 3}], ["(1,)", "(3,)"]),
            (("a", "c"), {"ignore_missing": True}, [{"a": 1}, {"b": 2}], ["(1,)", "()"]),
            ((".a", ".c"), {"ignore_missing": True}, [{"a": 1}, {"b": 2}], ["(1,)", "()"]),
            (("a*",), {}, [{"a": 1, "a_extra": 2}], "error"),
            (("c",), {}, [{"a": 1}], "error"),
        ],
    )
    def test_extract_keys_as_pinned(self, patterns: Any, options: Any, items: Any, expected: Any) -> None:
        found = compare(
            lambda s: filters._extract_keys(s, *patterns, **options),
            lambda s: KeyExtractor(s, *patterns, **options),
            items,
        )
        assert found == expected

    @pytest.mark.quick(60)
    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize(
        "names", [{"image": "*.jpg"}, {"a": "*jpg", "b": "left*"}, {"k": "__key__", "c": "cls"}]
    )
    @pytest.mark.parametrize(
        "options", [{}, {"keep_unselected": True}, {"must_match": False}, {"duplicate_is_error": False}]
    )
    def test_same_rename_keys(self, names: dict[str, str], options: dict[str, bool], seed: int) -> None:
        items = random_samples(seed)
        compare(
            lambda s: filters._rename_keys(s, **options, **names),
            lambda s: KeyRenamer(s, **options, **names),
            items,
        )

    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize("names", [{"image": "jpg;left.jpg"}, {"jpg": "cls"}, {"a": "txt", "b": "txt"}])
    @pytest.mark.parametrize("keep", [True, False])
    def test_same_rename(self, names: dict[str, str], keep: bool, seed: int) -> None:
        items = random_samples(seed)
        for handler in (go_on, stop, wds.reraise_exception):
            compare(
                lambda s, h=handler: filters._rename(s, handler=h, keep=keep, **names),
                lambda s, h=handler: Renamer(s, on_error=h, keep=keep, **names),
                items,
            )

    @pytest.mark.parametrize(
        "item",
        [
            {"file.txt": b"Hello"},
            {"__key__": "a", "TXT": b"x", "d/y.bin": b"y"},
            {"unknown.xyz": b"data"},
            {"file.custom": b"hello", "raw": "not bytes"},
        ],
    )
    @pytest.mark.parametrize("must_decode", [True, False])
    def test_same_xdecode(self, item: dict[str, Any], must_decode: bool) -> None:
        def upper(stream: Any) -> str:
            return stream.read().decode().upper()

        compare(
            lambda s: filters._xdecode(s, ("*.custom", upper), must_decode=must_decode, raw=len, bin=False),
            lambda s: StreamDecoder(s, ("*.custom", upper), must_decode=must_decode, raw=len, bin=False),
            [item],
        )


class TestBatches:
    @pytest.mark.parametrize("count", [0, 1, 9, 10])
    @pytest.mark.parametrize("is_partial", [True, False])
    def test_same_batches_of_items(self, count: int, is_partial: bool) -> None:
        theirs = partial(filters._batched, batchsize=3, collation_fn=None, partial=is_partial)
        compare(theirs, lambda s: ListBatcher(s, 3, is_partial), range(count))
        compare(theirs, lambda s: Batcher(s, 3, None, is_partial), range(count))

    @pytest.mark.parametrize(
        "rows",
        [
            [(n, float(n)) for n in range(10)],
            [(n,) for n in range(9)],
            [{"a": n, "b": str(n)} for n in range(4)],
            [{"a": np.array([n])} for n in range(4)],
            [{"a": torch.tensor([n])} for n in range(4)],
        ],
    )
    def test_same_columns_with_webdatasets_collation(self, rows: list[Any]) -> None:
        for options in ({}, {"combine_scalars": False, "combine_tensors": False}):
            collate = partial(filters.default_collation_fn, **options)
            compare(
                partial(filters._batched, batchsize=3, collation_fn=collate),
                lambda s, c=collate: Batcher(s, 3, c),
                rows,
            )

    @pytest.mark.parametrize(
        "batches",
        [
            [([1, 2], ["a", "b"]), ([3], ["c"])],
            [[[1, 2], "ab"]],
            [(np.arange(4).reshape(2, 2), torch.arange(2))],
            [{"a": [1, 2], "b": ("x", "y")}],
            [((1, 2), (3, 4))],
        ],
    )
    def test_same_unbatched(self, batches: list[Any]) -> None:
        assert compare(filters._unbatched, Unbatcher, batches)

    def test_same_unlisted(self) -> None:
        assert compare(filters._unlisted, Unlister, [[1, 2], [], [3]])

    @pytest.mark.parametrize("bounds", [(3,), (2, 7), (0, None, 3)])
    def test_same_slice(self, bounds: tuple[Any, ...]) -> None:
        compare(lambda s: filters.slice(*bounds)(s), lambda s: Slicer(s, *bounds), range(10))


class TestStreams:
    @pytest.mark.parametrize("lengths", [(2, 1, 3), (0, 2), (4,), (3, 3)])
    @pytest.mark.parametrize("longest", [True, False])
    def test_same_round_robin(self, lengths: tuple[int, ...], longest: bool) -> None:
        sources = [[(index, n) for n in range(length)] for index, length in enumerate(lengths)]
        theirs = mix.RoundRobin([np.array(s).tolist() for s in sources], longest=longest)
        assert [tuple(item) for item in theirs] == list(RoundRobin(sources, longest=longest))

    @pytest.mark.parametrize(("nepochs", "nbatches"), [(2, None), (None, 7), (3, 7), (3, 100)])
    def test_same_repetitions(self, nepochs: int | None, nbatches: int | None) -> None:
        expected = list(repeatedly(range(3), nepochs=nepochs, nbatches=nbatches))
        assert list(Repeater(range(3), nepochs, nbatches)) == expected

    def test_shuffles_are_permutations_of_the_same_items(self) -> None:
        theirs = list(filters._shuffle(iter(range(100)), bufsize=20, initial=10))
        ours = list(Shuffler(range(100), 20, 10))
        assert sorted(theirs) == sorted(ours) == list(range(100))
        assert ours != list(range(100))
        for few in ([], [1]):
            assert list(filters._shuffle(iter(few))) == list(Shuffler(few)) == few

    def test_random_shares_are_alike(self) -> None:
        for found in (list(filters._rsample(range(1000), p=0.1)), list(Subsampler(range(1000), 0.1))):
            assert 50 < len(found) < 160
        for p, expected in ((0.0, []), (1.0, list(range(100)))):
            assert list(filters._rsample(range(100), p=p)) == list(Subsampler(range(100), p)) == expected
        assert list(filters._rsample([], p=0.5)) == list(Subsampler([], 0.5)) == []

    @pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    )  # it leaves /dev/random open
    def test_resampled_draws_as_many_of_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        theirs = list(shardlists.resampled_(["a", "b"], 50))
        ours = list(Resampler(["a", "b"], 50))
        assert len(theirs) == len(ours) == 50
        assert set(theirs) == set(ours) == {"a", "b"}
        assert "resampled" in capsys.readouterr().err, "webdataset prints; this package does not"


class TestDeliberatelyDifferent:
    def test_map_adds_no_key_of_none(self) -> None:
        # A batch that passes .map_sample() should not get a field that is None.
        items = [{"x": 1}]
        assert list(filters._map(items, lambda s: {"x": 2})) == [{"x": 2, "__key__": None}]
        assert list(SampleMapper(items, lambda s: {"x": 2})) == [{"x": 2}]

    def test_map_dict_and_associate_leave_the_sample_alone(self) -> None:
        # webdataset writes into the sample taken in, even when a later function fails.
        for stage, changed in ((filters._map_dict, True), (DictMapper, False)):
            sample = {"x": "1", "y": "one"}
            with pytest.raises(ValueError, match="one"):
                list(stage([sample], x=int, y=int))
            assert (sample["x"] == 1) is changed

    def test_xdecode_does_not_unpickle(self) -> None:
        items = [{"pyd": b"\x80\x04N."}]
        assert list(filters._xdecode(items)) == [{"pyd": None}]
        with pytest.raises(ValueError, match="pyd"):
            list(StreamDecoder(items))

    def test_rename_keys_overwrites_nothing_in_silence(self) -> None:
        # In webdataset it depends on the order of the fields whether one is lost or an error raised.
        items = [{"a": 1, "b": 2}]
        assert list(filters._rename_keys(items, b="a", keep_unselected=True)) == [{"b": 2}]
        with pytest.raises(ValueError, match="the name 'b'"):
            list(KeyRenamer(items, b="a", keep_unselected=True))

    def test_unbatched_loses_no_rows(self) -> None:
        items = [([1], [2, 3])]
        assert list(filters._unbatched(items)) == [(1, 2)]
        with pytest.raises(ValueError, match="different lengths"):
            list(Unbatcher(items))

    def test_random_mix_refuses_weights_that_are_all_zero(self) -> None:
        from torchdata_ais.pipes.mixed import RandomMix

        with pytest.raises(ValueError, match="probs"):
            RandomMix([[1], [2]], probs=[0, 0])

    def test_to_tuple_lets_none_values_pass(self) -> None:
        # A field that is there has a value, whatever it is; webdataset calls None a missing field.
        with pytest.raises(ValueError, match="to_tuple"):
            list(filters._to_tuple([{"a": None}], "a"))
        assert list(TupleMaker([{"a": None}], "a")) == [(None,)]
