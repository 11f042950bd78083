"""The stages that look at one sample at a time: fields, errors, the place in the data set."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais.errors import DecodeError, DuplicateFieldError, MissingFieldError, StateError, UsageError
from torchdata_ais.loaders.state import state_dict
from torchdata_ais.pipes.batched import ListBatcher, Unbatcher, Unlister
from torchdata_ais.pipes.decode import StreamDecoder
from torchdata_ais.pipes.fields import KeyExtractor, KeyRenamer, Renamer
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.mapped import Associator, DictMapper, SampleMapper, TupleMapper
from torchdata_ais.pipes.mixed import RandomMix
from torchdata_ais.pipes.repeated import EpochSetter, Repeater
from torchdata_ais.pipes.select import Selector, Slicer
from torchdata_ais.pipes.unchanged import InfoPrinter, LengthSetter, NonEmpty, PipeThrough, SingleNodeOnly
from torchdata_ais.samples import Sample, pack_place
from torchdata_ais.testing import check_resume, example_shards


def sample(key: str = "a", **fields: Any) -> Sample:
    return Sample({"__key__": key, "__url__": "s.tar", **fields}, place=pack_place(3, 1024))


def fail_on_b(sample: Any) -> Any:
    if sample["__key__"] == "b":
        raise RuntimeError("no b")
    return sample


class TestPlace:
    """Samples made by a stage stand where the sample they were made of stood."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda s: SampleMapper(s, lambda x: x),
            lambda s: SampleMapper(s, lambda x: {"new": 1}),
            lambda s: DictMapper(s, cls=int),
            lambda s: Renamer(s, label="cls"),
            lambda s: Renamer(s, label="cls", keep=False),
            lambda s: KeyRenamer(s, label="cls"),
            lambda s: Associator(s, {"a": {"x": 1}}),
            lambda s: StreamDecoder(s, cls=lambda stream: 1),
            lambda s: Selector(s, lambda x: True),
            lambda s: InfoPrinter(s, n=0),
        ],
    )
    def test_dict_stages_keep_class_and_place(self, make: Any) -> None:
        (made,) = make([sample(cls=b"3")])
        assert type(made) is Sample
        assert (made.shard, made.offset) == (3, 1024)

    def test_a_plain_dict_stays_a_plain_dict(self) -> None:
        (made,) = DictMapper([{"cls": "3"}], cls=int)
        assert type(made) is dict

    @pytest.mark.parametrize(
        "make",
        [
            lambda s: DictMapper(s, cls=int),
            lambda s: Renamer(s, label="cls"),
            lambda s: Associator(s, {"a": {"cls": 9}}),
            lambda s: StreamDecoder(s, cls=lambda stream: 9),
        ],
    )
    def test_the_sample_taken_in_is_not_changed(self, make: Any) -> None:
        taken = sample(cls=b"3")
        list(make([taken]))
        assert taken == sample(cls=b"3")


class TestMapSample:
    def test_none_drops_the_sample(self) -> None:
        assert list(SampleMapper(range(4), lambda x: x if x % 2 else None)) == [1, 3]

    def test_zero_and_empty_results_are_no_drop(self) -> None:
        assert list(SampleMapper([1, 2], lambda x: 0)) == [0, 0]

    def test_the_key_comes_back(self) -> None:
        shared = {"x": 1}
        made = list(SampleMapper([sample("a"), sample("b")], lambda s: shared))
        assert [m["__key__"] for m in made] == ["a", "b"]
        assert shared == {"x": 1}, "the user's own dict is left alone"

    def test_a_dict_without_key_gets_none(self) -> None:
        assert list(SampleMapper([{"x": 1}], lambda s: {"y": 2})) == [{"y": 2}]

    def test_an_error_keeps_its_class_and_names_the_sample(self) -> None:
        with pytest.raises(RuntimeError, match="no b") as caught:
            list(SampleMapper([sample("a"), sample("b")], fail_on_b))
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == ["in .map_sample(), in the sample with key 'b', url 's.tar'"]

    def test_no_function_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="map_sample"):
            SampleMapper([], "lower")  # type: ignore[arg-type]


class TestPolicy:
    """What happens after an error: the same for all stages of this kind."""

    def test_skip_goes_on(self) -> None:
        pipe = SampleMapper([sample("a"), sample("b"), sample("c")], fail_on_b, on_error="skip")
        assert [s["__key__"] for s in pipe] == ["a", "c"]
        assert pipe.stats.skipped == {"RuntimeError": 1}
        assert pipe.stats.items == 3

    def test_a_handler_that_says_stop_ends_the_stream(self) -> None:
        pipe = Selector([sample("a"), sample("b"), sample("c")], fail_on_b, on_error=lambda error: False)
        assert [s["__key__"] for s in pipe] == ["a"]

    def test_a_handler_that_says_go_on_goes_on(self) -> None:
        pipe = DictMapper([{"x": "1"}, {"x": "one"}, {"x": "2"}], x=int, on_error=lambda error: True)
        assert list(pipe) == [{"x": 1}, {"x": 2}]

    def test_warn_logs_the_stage(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "torchdata_ais"):
            assert list(TupleMapper([("1",), ("x",)], int, on_error="warn")) == [(1,)]
        assert "map_tuple skips after ValueError" in caplog.text

    def test_one_error_too_many_raises(self) -> None:
        with pytest.raises(Exception, match="max_errors=1"):
            list(TupleMapper([("x",), ("y",), (1,)], int, on_error="skip", max_errors=1))

    def test_a_broken_program_always_raises(self) -> None:
        with pytest.raises(NameError):
            list(SampleMapper([1], lambda x: undefined_name, on_error="skip"))  # type: ignore[name-defined]  # noqa: F821

    def test_a_function_that_raises_stop_iteration_is_no_silent_end(self) -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(SampleMapper([[1], [], [2]], lambda x: next(iter(x))))


class TestMapDict:
    def test_a_missing_field_names_the_sample(self) -> None:
        with pytest.raises(MissingFieldError, match="no field 'cls2'") as caught:
            list(DictMapper([sample(cls="1")], cls2=int))
        assert (caught.value.key, caught.value.url, caught.value.offset) == ("a", "s.tar", 1024)

    def test_fields_keep_their_order(self) -> None:
        (made,) = DictMapper([{"b": "1", "a": "2", "c": "3"}], c=int, b=int)
        assert list(made.items()) == [("b", 1), ("a", "2"), ("c", 3)]

    @pytest.mark.parametrize("fs", [{}, {"cls": 3}])
    def test_no_function_is_a_usage_error(self, fs: Any) -> None:
        with pytest.raises(UsageError, match="map_dict"):
            DictMapper([], **fs)

    def test_an_item_that_is_no_dict_is_a_usage_error_whatever_the_policy(self) -> None:
        with pytest.raises(UsageError, match="not a dict"):
            list(DictMapper([(1, 2)], cls=int, on_error="skip"))


class TestMapTuple:
    def test_functions_and_values_need_not_be_as_many(self) -> None:
        assert list(TupleMapper([("1", "2"), ("3",), [4, 5, 6]], int, None, str)) == [
            (1, "2"),
            (3,),
            (4, 5, "6"),
        ]

    def test_a_dict_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="not a tuple"):
            list(TupleMapper([{"a": 1}], int))


class TestRename:
    def test_all_alternatives_are_left_out(self) -> None:
        pipe = Renamer([{"__key__": "a", "jpg": 1, "png": 2}], image="png;jpg")
        assert list(pipe) == [{"__key__": "a", "image": 2}]

    def test_keep_false_leaves_only_the_new_names(self) -> None:
        pipe = Renamer([{"__key__": "a", "jpg": 1, "cls": 2}], keep=False, image="jpg")
        assert list(pipe) == [{"image": 1}]

    def test_two_names_can_be_swapped(self) -> None:
        assert list(Renamer([{"a": 1, "b": 2}], a="b", b="a")) == [{"a": 2, "b": 1}]

    def test_a_missing_field_is_an_error(self) -> None:
        with pytest.raises(MissingFieldError, match="no field 'foo'"):
            list(Renamer([sample(cls=1)], x="foo"))


class TestRenameKeys:
    def test_the_last_pattern_that_matches_counts(self) -> None:
        pipe = KeyRenamer([{"left.png": 1, "right.png": 2}], ("image", "*.png"), other="right*")
        assert list(pipe) == [{"image": 1, "other": 2}]

    def test_names_are_compared_in_lower_case_and_without_folder(self) -> None:
        assert list(KeyRenamer([{"d/Left.PNG": 1}], image="left.png")) == [{"image": 1}]

    def test_two_fields_for_one_name_are_an_error_or_the_first(self) -> None:
        fields = {"a.png": 1, "b.png": 2}
        with pytest.raises(DuplicateFieldError, match="the name 'image'"):
            list(KeyRenamer([fields], image="*.png"))
        assert list(KeyRenamer([fields], image="*.png", duplicate_is_error=False)) == [{"image": 1}]

    @pytest.mark.parametrize("fields", [{"a": 1, "b": 2}, {"b": 2, "a": 1}])
    def test_a_field_kept_is_not_overwritten_in_silence(self, fields: dict[str, int]) -> None:
        with pytest.raises(DuplicateFieldError):
            list(KeyRenamer([fields], b="a", keep_unselected=True))


class TestExtractKeys:
    def test_a_dot_before_the_name_is_thought_of(self) -> None:
        assert list(KeyExtractor([{"jpg": 1, "left.cls": 2}], "*.jpg", "*.cls")) == [(1, 2)]

    def test_a_missing_field_names_pattern_and_sample(self) -> None:
        with pytest.raises(MissingFieldError, match=r"matches '\*\.wav;\*\.mp3'") as caught:
            list(KeyExtractor([sample(cls=1)], "*.wav;*.mp3"))
        assert caught.value.key == "a"

    def test_the_first_of_two_is_taken_when_that_is_fine(self) -> None:
        assert list(KeyExtractor([{"a.jpg": 1, "b.jpg": 2}], "*.jpg", duplicate_is_error=False)) == [(1,)]


class TestAssociate:
    def test_a_function_gets_the_key(self) -> None:
        (made,) = Associator([sample("a")], lambda key: {"caption": key * 2})
        assert made["caption"] == "aa"

    def test_a_sample_without_key_is_an_error(self) -> None:
        with pytest.raises(MissingFieldError, match="__key__"):
            list(Associator([{"cls": 1}], {}))

    def test_anything_else_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="mapping or a function"):
            Associator([], [("a", 1)])  # type: ignore[arg-type]


class TestXdecode:
    def test_functions_get_a_stream(self) -> None:
        (made,) = StreamDecoder([{"npy": b"123"}], npy=lambda stream: stream.read(2))
        assert made == {"npy": b"12"}

    def test_what_is_not_bytes_is_passed_as_it_is(self) -> None:
        stream = io.BytesIO(b"x")
        (made,) = StreamDecoder([{"raw": stream}], raw=lambda given: given is stream)
        assert made == {"raw": True}

    def test_pickle_is_not_decoded(self) -> None:
        with pytest.raises(DecodeError, match="No rule of xdecode is for the field 'pyd'"):
            list(StreamDecoder([{"pyd": b"\x80\x04N."}]))

    def test_false_leaves_the_bytes(self) -> None:
        assert list(StreamDecoder([{"txt": b"x"}], txt=False)) == [{"txt": b"x"}]

    def test_an_error_names_key_field_and_place(self) -> None:
        with pytest.raises(DecodeError, match="UnicodeDecodeError") as caught:
            list(StreamDecoder([sample(txt=b"\xff")]))
        assert (caught.value.key, caught.value.field, caught.value.offset) == ("a", "txt", 1024)
        assert isinstance(caught.value.__cause__, UnicodeDecodeError)


class TestInfo:
    def test_the_first_and_then_every_so_many_are_shown(self) -> None:
        out = io.StringIO()
        samples = [{"n": n} for n in range(10)]
        assert list(InfoPrinter(samples, "{n}", n=2, every=4, stream=out)) == samples
        assert out.getvalue().split() == ["0", "1", "3", "7"]

    def test_the_standard_error_stream_is_the_default(self, capsys: pytest.CaptureFixture[str]) -> None:
        list(InfoPrinter([{"txt": "x" * 100}, 7], name="here", width=10))
        assert capsys.readouterr().err.splitlines() == ["--- here", "txt 'xxxxxxxxx", "--- here", "7"]


class TestPipeThrough:
    def test_a_generator_function_is_a_stage(self) -> None:
        def every_other(items: Iterator[int]) -> Iterator[int]:
            for item in items:
                yield item
                next(items, None)

        assert list(PipeThrough(range(5), every_other)) == [0, 2, 4]

    def test_a_function_that_returns_nothing_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="nothing to iterate"):
            list(PipeThrough([1], lambda items: None))  # type: ignore[arg-type, return-value]


def shorter(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: sample[name] for name in ("__key__", "cls", "txt")}


RESUMABLE: dict[str, Any] = {
    "map_sample": lambda pipe: SampleMapper(pipe, shorter),
    "map_dict": lambda pipe: DictMapper(pipe, cls=int),
    "rename": lambda pipe: Renamer(pipe, label="cls"),
    "rename_keys": lambda pipe: KeyRenamer(pipe, label="cls", keep_unselected=True),
    "extract_keys": lambda pipe: KeyExtractor(pipe, "__key__", "cls"),
    "select": lambda pipe: Selector(pipe, lambda sample: int(sample["cls"]) % 3 > 0),
    "associate": lambda pipe: Associator(pipe, {"00001": {"caption": "one"}}),
    "info": lambda pipe: InfoPrinter(pipe, n=0),
    "xdecode": lambda pipe: StreamDecoder(pipe, cls=lambda stream: int(stream.read())),
    "map_tuple": lambda pipe: TupleMapper(pipe.to_tuple("cls", "__key__"), int),
    "listed": lambda pipe: ListBatcher(pipe, 3),
    "non_empty": NonEmpty,
    "single_node_only": SingleNodeOnly,
    "with_length": lambda pipe: LengthSetter(pipe, 9),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", RESUMABLE)
def test_a_checkpoint_passes_through(name: str, tmp_path: Path) -> None:
    shards = example_shards(tmp_path, [2, 4, 3])

    def make() -> Any:
        return RESUMABLE[name](AISSourceLister(shards).shuffle().load_tar().group_samples().shuffled(3))

    assert check_resume(make) >= 3


OPAQUE: dict[str, Any] = {
    "pipe_through": lambda pipe: PipeThrough(pipe, iter),
    "slice_samples": lambda pipe: Slicer(pipe, 4),
    "repeated": lambda pipe: Repeater(pipe, 2),
    "with_epoch": lambda pipe: EpochSetter(pipe, 4),
    "unlisted": lambda pipe: Unlister(ListBatcher(pipe, 2)),
    "unbatched": lambda pipe: Unbatcher(pipe.to_tuple("cls").batched(2)),
    "mix_random": lambda pipe: RandomMix(pipe, [1]),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_a_stage_that_a_checkpoint_cannot_pass_says_so(name: str, tmp_path: Path) -> None:
    pipe = OPAQUE[name](AISSourceLister(example_shards(tmp_path)).load_tar().group_samples())
    running = iter(pipe)
    next(running)
    with pytest.raises(StateError, match=name):
        state_dict(pipe)
    running.close()
