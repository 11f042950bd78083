"""The facade's pipelines, stages and names, apart from what the differential tests compare."""

from __future__ import annotations

import inspect
import io
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchdata_ais.webdataset as wds
from torchdata_ais import AISSourceLister, StoreOptions
from torchdata_ais.errors import DecodeError, MissingFieldError, NotFoundError, UsageError
from torchdata_ais.testing import example_shards
from torchdata_ais.webdataset.left_out import REASONS

APPENDIX_A = """tenbin utils Continue Decoder DecodingError gzfilter handle_extension imagehandler
pytorch_weights_only torch_audio torch_loads torch_video LRUCleanup pipe_cleaner FluidInterface FluidWrapper WebDataset
WebLoader MockDataset with_epoch with_length Cached LMDBCached associate batched decode detshuffle extract_keys getfirst
info map map_dict map_tuple pipelinefilter rename rename_keys rsample select shuffle slice to_tuple transform_with
unbatched xdecode gopen gopen_schemes ignore_and_continue ignore_and_stop reraise_exception warn_and_continue
warn_and_stop RandomMix RoundRobin DataPipeline MultiShardSample ResampledShards SimpleShardList non_empty resampled
shardspec single_node_only split_by_node split_by_worker tarfile_samples tarfile_to_samples PipelineStage repeatedly
ShardWriter TarWriter numpy_dumps torch_dumps"""


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return example_shards(tmp_path, [2, 2])


class TestNames:
    @pytest.mark.parametrize("name", APPENDIX_A.split())
    def test_every_public_name_of_webdataset_is_there_or_says_why_not(self, name: str) -> None:
        if name in REASONS[""]:
            with pytest.raises(AttributeError, match="on purpose"):
                getattr(wds, name)
        else:
            assert getattr(wds, name) is not None

    def test_the_list_of_webdataset_is_the_list_above(self) -> None:
        theirs = pytest.importorskip("webdataset")
        public = {name for name in vars(theirs) if not name.startswith("_")}
        modules = {name for name in public if f"webdataset.{name}" in sys.modules and name != "gopen"}
        assert public - modules | {"tenbin", "utils"} == set(APPENDIX_A.split())

    def test_all_names_exist(self) -> None:
        for name in wds.__all__:
            assert hasattr(wds, name)
        assert not hasattr(wds, "no_such_name")

    def test_every_fluid_filter_has_the_name_and_words_of_its_filter(self) -> None:
        for name in ("map", "to_tuple", "rename_keys", "batched", "log_keys"):
            method = getattr(wds.WebDataset, name)
            assert method.__name__ == name
            assert "Args:" in method.__doc__ or name == "log_keys"


class TestDataPipeline:
    def test_lists_are_flattened_and_none_left_out(self) -> None:
        pipeline = wds.DataPipeline(wds.MockDataset(1, 3), None, [wds.map(str), None or wds.listed(2)])
        assert list(pipeline) == [["1", "1"], ["1"]]
        assert repr(pipeline.stage(1)) == "map(str)"

    def test_a_list_in_the_first_place_is_stages_or_data(self) -> None:
        assert list(wds.DataPipeline([wds.MockDataset(1, 2), wds.map(str)])) == ["1", "1"]
        assert list(wds.DataPipeline([wds.MockDataset(1, 2)])) == [1, 1]
        assert list(wds.DataPipeline([1, 2], wds.map(str))) == ["1", "2"]

    def test_stages_may_be_functions_and_classes(self) -> None:
        class Double(wds.PipelineStage):
            def run(self, source: Iterator[int]) -> Iterator[int]:
                return (2 * item for item in source)

        def add(items: Iterator[int], n: int) -> Iterator[int]:
            return (item + n for item in items)

        pipeline = wds.DataPipeline(lambda: iter([1, 2]), Double(), partial(add, n=1))
        assert list(pipeline) == list(pipeline) == [3, 5]
        assert list(wds.FluidWrapper([1]).pipe(partial(add, n=9))) == [10]

    @pytest.mark.parametrize("stages", [(3,), ([1], 3)])
    def test_what_is_no_stage_is_refused(self, stages: Any) -> None:
        with pytest.raises(UsageError, match="int is not a"):
            list(wds.DataPipeline(*stages))

    def test_compose_leaves_the_original_as_it_was(self, shards: list[str]) -> None:
        base = wds.WebDataset(shards).shuffle(10)
        longer = base.map(lambda sample: sample["__key__"])
        assert type(longer) is wds.WebDataset
        assert len(base.pipeline) + 1 == len(longer.pipeline)
        list(longer)
        assert base.pipeline[-1].epoch == -1

    def test_stages_can_be_changed_in_the_list(self, shards: list[str]) -> None:
        dataset = wds.WebDataset(shards, shardshuffle=10)
        index = ["shuffle" in str(stage) for stage in dataset.pipeline].index(True)
        del dataset.pipeline[index + 1 :]
        assert [set(item) for item in dataset] == [{"url"}] * 2

    def test_length_and_truth(self) -> None:
        pipeline = wds.FluidWrapper([1, 2])
        with pytest.raises(TypeError):
            len(pipeline)
        assert pipeline
        assert list(pipeline) == [1, 2]
        assert len(pickle.loads(pickle.dumps(pipeline.with_length(7)))) == 7
        assert list(pipeline) == [1, 2]

    def test_an_error_ends_an_epoch_and_the_next_begins_anew(self) -> None:
        calls = []

        def once(item: int) -> int:
            calls.append(item)
            if len(calls) == 3:
                raise ValueError("third")
            return item

        pipeline = wds.FluidWrapper([1, 2, 3]).map(once).with_epoch(3)
        with pytest.raises(ValueError, match="third"):
            list(pipeline)
        assert list(pipeline) == [1, 2, 3]
        assert list(pipeline.with_epoch(2)) == [1, 2]

    def test_an_endless_epoch_of_nothing_ends(self) -> None:
        assert list(wds.DataPipeline(lambda: iter([])).with_epoch(3)) == []
        assert list(wds.DataPipeline(lambda: iter([])).repeat()) == []

    def test_two_iterators_at_once_do_not_disturb_each_other(self, shards: list[str]) -> None:
        dataset = wds.WebDataset(shards).map(lambda sample: int(sample["cls"]))
        assert list(wds.RoundRobin([dataset, dataset])) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert sorted(wds.RandomMix([dataset, dataset], longest=True)) == [0, 0, 1, 1, 2, 2, 3, 3]

    def test_mixing_is_reproducible_and_new_in_each_epoch(self) -> None:
        def make() -> Any:
            return wds.RandomMix([range(50), range(100, 150)], longest=True, seed=1)

        first = make()
        epochs = [list(first), list(first)]
        assert epochs[0] != epochs[1]
        again = make()
        assert [list(again), list(again)] == epochs

    def test_the_samples_of_the_first_pass_can_be_kept(self, shards: list[str]) -> None:
        dataset = wds.WebDataset(shards).mcached()
        first = list(dataset)
        for shard in shards:
            Path(shard).unlink()
        assert list(dataset) == first

    def test_transport_settings_of_the_lister_reach_the_reader(self) -> None:
        from torchdata_ais.webdataset.pipeline import _options_of, _with

        lister = AISSourceLister("ais://b/s.tar", cluster=StoreOptions("http://h:1", "t0ken"))
        options = _options_of(lister.map(str))
        assert options is not None
        assert options.token == "t0ken"
        assert _with(wds.tarfile_to_samples(), options).kw["cluster"] is options
        assert "t0ken" not in repr(wds.WebDataset(lister))


class TestStages:
    def test_handlers_warn_with_the_whole_text_and_do_not_sleep(self) -> None:
        items = [{"__key__": "a", "cls": b"x"}, {"__key__": "b", "cls": b"1"}]
        with pytest.warns(UserWarning, match="DecodeError: Field 'cls' of sample 'a'"):
            assert [s["cls"] for s in wds.decode(handler=wds.warn_and_continue)(items)] == [1]
        with pytest.warns(UserWarning, match="DecodeError"):
            assert list(wds.decode(handler=wds.warn_and_stop)(items)) == []

    @pytest.mark.parametrize(
        "stage",
        [
            *(wds.map(str, handler=wds.ignore_and_continue), wds.select(bool, handler=wds.ignore_and_stop)),
            *(wds.slice(2, handler=wds.ignore_and_stop), wds.rsample(1.0, handler=wds.ignore_and_stop)),
            *(wds.shuffle(3, handler=wds.ignore_and_stop), wds.info(n=0, handler=wds.ignore_and_stop)),
            *(wds.batched(2, collation_fn=None, handler=wds.ignore_and_stop), wds.resampled(3, handler=None)),
        ],
        ids=repr,
    )
    def test_every_stage_takes_a_handler(self, stage: Any) -> None:
        assert len(list(stage([1, 2]))) in (1, 2, 3)

    def test_a_handler_of_batched_gives_up_the_batch(self) -> None:
        def collate(rows: list[int]) -> int:
            return 1 // rows[0]

        stage = wds.batched(1, collation_fn=collate, handler=wds.ignore_and_continue)
        assert list(stage([1, 0, 1])) == [1, 1]

    def test_bad_arguments_are_refused_before_there_are_data(self) -> None:
        for make in (
            lambda: wds.decode("rbg"),
            lambda: wds.map(3),
            lambda: wds.rsample(2.0),
            lambda: wds.slice(-1),
        ):
            with pytest.raises(UsageError):
                make()

    def test_errors_are_those_that_users_of_webdataset_catch(self) -> None:
        with pytest.raises(KeyError):
            list(wds.map_dict(z=int)([{"__key__": "a"}]))
        with pytest.raises(ValueError, match="is None"):
            list(wds.to_tuple("x")([{"__key__": "a", "x": None}]))
        with pytest.raises(wds.DecodingError) as caught:
            list(wds.decode()([{"__key__": "a", "__url__": "s.tar", "cls": b"x"}]))
        assert (caught.value.key, caught.value.url, caught.value.field) == ("a", "s.tar", "cls")
        assert issubclass(wds.filters.MissingKeyError, MissingFieldError)

    def test_decoder_takes_a_list_or_several_and_samples_or_datasets(self, shards: list[str]) -> None:
        def upper(name: str, data: bytes) -> Any:
            return data.decode().upper() if name == ".txt" else None

        for decoder in (wds.Decoder(upper), wds.Decoder([upper], only="txt")):
            assert decoder({"__key__": "a", "txt": b"x"}) == {"__key__": "a", "txt": "X"}
            assert [s["txt"] for s in decoder(wds.WebDataset(shards))] == ["", "X", "XX", "XXX"]
        assert [s["cls"] for s in wds.Decoder()(iter([{"cls": b"3"}]))] == [3]
        assert wds.Decoder("rgb8", size=4)({"png": png()})["png"].shape == (4, 4, 3)

    def test_pickles_are_refused_by_every_way_in(self) -> None:
        data = pickle.dumps({"x": 1})
        for run in (
            lambda: list(wds.decode()([{"__key__": "a", "pyd": data}])),
            lambda: wds.Decoder("rgb")({"pkl": data}),
            lambda: list(wds.xdecode()([{"a.pyd": data}])),
            lambda: wds.torch_loads(data),
        ):
            with pytest.raises(DecodeError):
                run()
        assert wds.Decoder(allow_pickle=True)({"pkl": data}) == {"pkl": {"x": 1}}

    def test_keys_are_logged(self, tmp_path: Path) -> None:
        log = tmp_path / "keys"
        assert len(list(wds.log_keys(str(log))([{"__key__": "a"}, {"__key__": "b"}]))) == 2
        assert log.read_text() == "0\ta\n1\tb\n"

    def test_transform_with_and_getfirst(self) -> None:
        assert wds.transform_with([1, 2], [None, str]) == [1, "2"]
        assert wds.transform_with((1, 2), None) == (1, 2)
        assert wds.getfirst({"a": 1}, ["b", "a"]) == 1
        with pytest.raises(ValueError, match="no field"):
            wds.getfirst({"a": 1}, "b")


def png() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


class TestWriting:
    def test_post_is_called_with_each_whole_shard(self, tmp_path: Path) -> None:
        finished: list[str] = []
        with wds.ShardWriter(f"{tmp_path}/s-%02d.tar", maxcount=2, post=finished.append) as writer:
            for i in range(3):
                writer.write({"__key__": f"k{i}", "cls": i})
        assert [len(list(wds.WebDataset(path))) for path in finished] == [2, 1]

    def test_bytes_are_written_as_they_are_without_encoder(self, tmp_path: Path) -> None:
        with wds.TarWriter(f"{tmp_path}/s.tgz", encoder=False) as writer:
            writer.write({"__key__": "a", "x.png": b"raw", "cls": b"3"})
        assert dict(next(iter(wds.WebDataset(f"{tmp_path}/s.tgz"))))["x.png"] == b"raw"

    def test_no_command_is_run_to_write_to(self, tmp_path: Path) -> None:
        for write in (
            lambda: wds.TarWriter(f"pipe:cat > {tmp_path}/x"),
            lambda: wds.ShardWriter("pipe:cat > x-%02d"),
            lambda: wds.gopen("pipe:cat", "wb"),
        ):
            with pytest.raises(UsageError, match="command"):
                write()
        assert {"fileobj", "mtime", "encoder"} <= inspect.signature(wds.TarWriter).parameters.keys()
        assert {"pattern", "maxcount", "resume"} <= inspect.signature(wds.ShardWriter).parameters.keys()

    def test_dumps_are_what_decoders_load(self) -> None:
        import torch

        assert wds.Decoder()({"npy": wds.numpy_dumps(np.arange(3))})["npy"].tolist() == [0, 1, 2]
        assert wds.torch_loads(wds.torch_dumps(torch.arange(2))).tolist() == [0, 1]

    def test_gopen_reads_and_writes_whole_files(self, tmp_path: Path) -> None:
        path = str(tmp_path / "x")
        with wds.gopen(path, "wb") as stream:
            stream.write(b"abc")
            assert not Path(path).exists()
        with wds.gopen(path) as stream:
            assert (stream.read(1), stream.read()) == (b"a", b"bc")

        def fail_in_the_middle() -> None:
            with wds.gopen(path, "wb") as stream:
                stream.write(b"half")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail_in_the_middle()
        assert Path(path).read_bytes() == b"abc"
        with pytest.raises(UsageError, match="mode"):
            wds.gopen(path, "a")
        with pytest.raises(NotFoundError):
            wds.gopen(str(tmp_path / "none")).read()
