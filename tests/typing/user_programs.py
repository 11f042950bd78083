"""What users write, as type checkers see it. Nothing here runs; a test gives this file to mypy and pyright.

``# error: CODE`` marks a line that must be refused, by mypy for this reason.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from typing_extensions import assert_type

from torchdata_ais import (
    AISFileLoader,
    AISSourceLister,
    LocalCluster,
    MemberPath,
    MultiProcessingReadingService,
    Retry,
    Sample,
    SampleDecoder,
    ShardWriter,
    StoreOptions,
    TarSampleGrouper,
    TarWriter,
    ais_loader,
    as_dataset,
    convert,
    merge_states,
    webdataset,
)
from torchdata_ais.cli.checks import LintReport, lint_shards
from torchdata_ais.errors import AISError, DecodeError, TruncatedShardError
from torchdata_ais.integrations import as_node
from torchdata_ais.jobs.etl import shard_etl
from torchdata_ais.loaders import AISLoader
from torchdata_ais.samples import Sample as SampleToo
from torchdata_ais.store import resolve_options


def the_chain() -> None:
    lister = AISSourceLister("ais://pets/train-{000..099}.tar", cluster="http://h:51080")
    loaded = lister.shuffle().load_tar(open_shards=4, retry=Retry(attempts=3))
    assert_type(loaded, AISFileLoader)
    for path, data in loaded:
        assert_type(path, MemberPath)
        assert_type(path.offset, int)
        assert_type(data, bytes)
    grouped = loaded.group_samples(require="jpg;png cls")
    assert_type(grouped, TarSampleGrouper)
    for sample in grouped:
        assert_type(sample, Sample)
        assert_type(sample.offset, int)
    assert_type(grouped.decode("torchrgb8", size=224, threads=2), SampleDecoder)
    for batch in grouped.shuffled(100).decode().to_tuple("jpg", "cls").batched(64):
        assert_type(batch, Any)


def the_chain_by_classes() -> None:
    samples = TarSampleGrouper(AISFileLoader(AISSourceLister("ais://pets")), adjacent="split")
    for sample in samples:
        assert_type(sample["__key__"], Any)


def torch_stages_keep_the_chain_typed() -> None:
    samples = AISSourceLister("ais://pets").shuffle().sharding_filter().load_tar().group_samples()
    for kept in samples.filter(lambda sample: "jpg" in sample):
        assert_type(kept, Sample)
    for several in samples.batch(4):
        assert_type(several, list[Sample])


def mistakes_are_found() -> None:
    lister = AISSourceLister("ais://pets")
    lister.load_tar(open_shard=4)  # error: call-arg
    lister.load_tar(open_shards="4")  # error: arg-type
    lister.load_tar().group_samples(adjacent="join")  # error: arg-type
    lister.load_tar().decode(on_error="ignore")  # error: arg-type
    ais_loader(lister, epoch_steps="longest")  # error: arg-type
    StoreOptions(endpoint=51080)  # error: arg-type
    convert("photos", "out/%06d.tar", max_count=5)  # error: call-arg
    convert("photos", "out/%06d.tar", keys="numbers")  # error: arg-type
    shard_etl(decode="pil", sise=224)  # error: call-arg
    shard_etl(decode="pill8")  # error: arg-type
    resolve_options(retries=3)  # error: call-arg
    as_node(ais_loader(lister), num_worker=4)  # error: call-arg
    webdataset.WebDataset("ais://pets", open_shard=4)  # error: call-arg
    webdataset.WebDataset("ais://pets", adjacent="join")  # error: arg-type
    webdataset.ShardWriter("out-%06d.tar", max_count=5)  # error: call-arg


def loaders() -> None:
    pipe = AISSourceLister("ais://pets").load_tar().group_samples().decode().to_tuple("cls").batched(64)
    with ais_loader(pipe, num_workers=4, seed=0, epoch_steps="shortest") as loader:
        assert_type(loader, AISLoader)
        for batch in loader:
            assert_type(batch, Any)
        state = loader.state_dict()
        assert_type(state, dict[str, Any])
        loader.load_state_dict(merge_states([state]))
    DataLoader(as_dataset(pipe, seed=1), batch_size=None, num_workers=2)
    MultiProcessingReadingService(num_workers=4)


def errors() -> str | None:
    try:
        list(AISSourceLister("ais://pets").load_tar())
    except TruncatedShardError as error:
        assert_type(error.offset, int | None)
        eof: EOFError = error
        return str(eof)
    except (DecodeError, AISError) as error:
        return error.url
    return None


def writing() -> None:
    with TarWriter("out.tar") as tar:
        tar.write({"__key__": "a", "cls": 3})
    with ShardWriter("out-%06d.tar", maxcount=100) as shards:
        assert_type(shards.write({"__key__": "a", "cls": 3}), int)
    assert_type(convert("images", "out/train-%06d.tar").samples, int)


def checking() -> None:
    report = lint_shards("ais://pets", require=["jpg;png", "cls"])
    assert_type(report, LintReport)
    for problem in report.errors():
        assert_type(problem.offset, int | None)


def a_cluster() -> None:
    with LocalCluster(targets=2) as cluster:
        assert_type(cluster.endpoint, str)


def one_class_under_two_names(sample: Sample) -> SampleToo:
    return sample
