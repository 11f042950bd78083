"""A checkpoint is resumed over what it was taken over: the same shards, content and pipe; and its order is kept."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import ObjectChangedError, StateError
from torchdata_ais.jobs.etl import ensure_etl, shard_etl
from torchdata_ais.loaders import ais_loader, load_state_dict, state_dict
from torchdata_ais.local import LocalCluster
from torchdata_ais.testing import shard_bytes, write_shard

SHARDS, SAMPLES = 5, 8


def content(shard: int, text: str) -> bytes:
    return shard_bytes([(f"{shard}-{n}.txt", f"{text}{shard}-{n}".encode()) for n in range(SAMPLES)])


def put(bucket: Any, shard: int, text: str) -> None:
    bucket.object(f"s-{shard}.tar").get_writer().put_content(content(shard, text))


def chain(bucket: Any, buffer: int = 0, **options: Any) -> Any:
    pipe = AISSourceLister(bucket, **options).load_tar().group_samples()
    return (pipe.shuffled(buffer) if buffer else pipe).decode().to_tuple("txt")


def texts(items: Any) -> list[str]:
    return [text for (text,) in items]


@pytest.fixture
def bucket(ais_bucket: Any) -> Any:
    for shard in range(SHARDS):
        put(ais_bucket, shard, "a")
    return ais_bucket


def stopped_at(make: Callable[[], Any], steps: int, **options: Any) -> tuple[list[str], dict[str, Any]]:
    with ais_loader(make(), **options) as loader:
        return texts(itertools.islice(loader, steps)), loader.state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_promise_2_a_shard_rewritten_since_the_checkpoint_is_named(bucket: Any, workers: int) -> None:
    """Its samples before the checkpoint were of the old content: the rest must not be of the new one."""
    head, state = stopped_at(lambda: chain(bucket), SAMPLES + 3, num_workers=workers)
    assert head[-1] == "a1-2"
    put(bucket, 1, "b")
    with ais_loader(chain(bucket), num_workers=workers) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ObjectChangedError) as caught:
            list(loader)
    assert "/s-1.tar" in (caught.value.url or "")


def test_promise_2_a_local_shard_rewritten_since_the_checkpoint_is_named(tmp_path: Path) -> None:
    paths = [
        write_shard(tmp_path / f"s-{n}.tar", [(f"{n}-{m}.txt", b"a") for m in range(4)]) for n in range(3)
    ]

    def make() -> Any:
        return AISSourceLister(paths).load_tar().group_samples().decode().to_tuple("txt")

    _, state = stopped_at(make, 6)
    status = Path(paths[1]).stat()
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes().replace(b"a\0", b"b\0"))
    os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    with ais_loader(make()) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ObjectChangedError) as caught:
            list(loader)
    assert caught.value.url == paths[1]


def test_promise_2_a_shard_that_samples_are_held_of_is_named_when_rewritten(bucket: Any) -> None:
    """The shard was read to its end, and its samples wait in the shuffle buffer by their place only."""
    head, state = stopped_at(lambda: chain(bucket, buffer=14), 9)
    begun = {text[:2] for text in head}
    assert "a0" in begun
    assert len([text for text in head if text.startswith("a0")]) < SAMPLES  # some of it are held
    put(bucket, 0, "b")
    with ais_loader(chain(bucket, buffer=14)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ObjectChangedError) as caught:
            list(loader)
    assert "/s-0.tar" in (caught.value.url or "")


@pytest.mark.parametrize("shard", [0, 3], ids=["done", "not begun"])
def test_promise_5_a_listing_with_a_rewritten_shard_is_refused(bucket: Any, shard: int) -> None:
    _, state = stopped_at(lambda: chain(bucket), SAMPLES + 3)
    put(bucket, shard, "b")
    with ais_loader(chain(bucket)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="the digest of their names, sizes and versions was"):
            list(loader)


def test_a_shard_that_a_template_names_is_read_as_it_is_unless_it_was_begun(bucket: Any) -> None:
    template = f"s-{{0..{SHARDS - 1}}}.tar"
    head, state = stopped_at(lambda: chain(bucket, template=template), SAMPLES + 3)
    for shard in (0, 3):
        put(bucket, shard, "b")
    with ais_loader(chain(bucket, template=template)) as loader:
        loader.load_state_dict(state)
        rest = texts(loader)
    assert head + rest == [
        f"{'b' if shard == 3 else 'a'}{shard}-{n}" for shard in range(SHARDS) for n in range(SAMPLES)
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda names: names[1:], "s-1.tar"),
        (lambda names: [names[0], *names[2:]], "s-2.tar"),
        (lambda names: ["s-00.tar", *names], "s-00.tar"),
        (lambda names: names[::-1], "s-4.tar"),
        (lambda names: names[:1], "s-0.tar"),
    ],
    ids=["first-gone", "open-gone", "added", "reversed", "all-but-one-gone"],
)
def test_promise_5_another_list_of_shards_names_the_first_that_differs(
    tmp_path: Path, change: Callable[[list[str]], list[str]], named: str
) -> None:
    paths = {
        name: write_shard(tmp_path / name, [(f"{name[:-4]}-{m}.txt", b"a") for m in range(4)])
        for name in ["s-00.tar", *(f"s-{n}.tar" for n in range(SHARDS))]
    }
    names = [f"s-{n}.tar" for n in range(SHARDS)]

    def make(names: list[str]) -> Any:
        return AISSourceLister([paths[name] for name in names]).load_tar().group_samples().to_tuple("txt")

    _, state = stopped_at(lambda: make(names), 6)
    with ais_loader(make(change(names))) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            StateError, match=r"Shard \d of the epoch is another one|at least \d shards"
        ) as caught:
            list(loader)
    assert Path(caught.value.url or "").name == named


PIPES: dict[str, Callable[[Any], Any]] = {
    "stage missing": lambda s: s.load_tar().group_samples().decode().to_tuple("txt").batched(2),
    "stage added": lambda s: (
        s.load_tar().group_samples().shuffled(5).decode().map_dict(txt=str.upper).to_tuple("txt").batched(2)
    ),
    "stages reordered": lambda s: (
        s.load_tar().group_samples().decode().shuffled(5).to_tuple("txt").batched(2)
    ),
    "another batch": lambda s: s.load_tar().group_samples().shuffled(5).decode().to_tuple("txt").batched(3),
    "another buffer": lambda s: s.load_tar().group_samples().shuffled(6).decode().to_tuple("txt").batched(2),
    "another seed": lambda s: (
        s.load_tar().group_samples().shuffled(5, seed=1).decode().to_tuple("txt").batched(2)
    ),
    "another field": lambda s: (
        s.load_tar().group_samples().shuffled(5).decode().to_tuple("__key__").batched(2)
    ),
    "another width": lambda s: (
        s.load_tar(open_shards=2).group_samples().shuffled(5).decode().to_tuple("txt").batched(2)
    ),
    "core batch": lambda s: s.load_tar().group_samples().shuffled(5).decode().to_tuple("txt").batch(2),
}


@pytest.mark.parametrize("other", PIPES, ids=lambda name: name.replace(" ", "-"))
def test_promise_5_another_pipe_names_the_stage_that_differs(tmp_path: Path, other: str) -> None:
    path = write_shard(tmp_path / "s.tar", [(f"{m}.txt", b"a") for m in range(9)])
    same = AISSourceLister(path).load_tar().group_samples().shuffled(5)
    with ais_loader(same.decode().to_tuple("txt").batched(2)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with ais_loader(PIPES[other](AISSourceLister(path))) as loader:
        with pytest.raises(StateError, match=r"of another pipeline: it has \S.* where this one has \S"):
            loader.load_state_dict(state)


def test_what_says_nothing_about_the_samples_may_change(tmp_path: Path) -> None:
    """A run that ended with an error is resumed with another policy, and perhaps on another machine."""
    path = write_shard(tmp_path / "s.tar", [(f"{m}.txt", b"%d" % m) for m in range(9)])

    def make(**options: Any) -> Any:
        pipe = AISSourceLister(path).load_tar(on_error=options.get("on_error", "raise")).group_samples()
        return pipe.decode(lambda key, data: None, **options).to_tuple("txt")

    with ais_loader(make()) as loader:
        head = texts(itertools.islice(loader, 4))
        state = loader.state_dict()
    with ais_loader(make(threads=2, on_error="skip", max_errors=3)) as loader:
        loader.load_state_dict(state)
        assert head + texts(loader) == [str(m) for m in range(9)]


def bare(paths: list[str]) -> Any:
    return AISSourceLister(paths).shuffle().load_tar(seed=3).group_samples().shuffled(7, seed=5)


def keys(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


def test_promise_4_the_epochs_after_a_resumed_one_are_those_of_an_uninterrupted_run(tmp_path: Path) -> None:
    paths = [
        write_shard(tmp_path / f"s-{n}.tar", [(f"{n}-{m}.txt", b"a") for m in range(4)]) for n in range(6)
    ]
    whole = bare(paths)
    epochs = [keys(whole) for _ in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    for epoch in (0, 1):
        pipe = bare(paths)
        for _ in range(epoch):
            keys(pipe)
        head = [sample["__key__"] for sample in itertools.islice(pipe, 10)]
        resumed = bare(paths)
        load_state_dict(resumed, state_dict(pipe))
        assert head + keys(resumed) == epochs[epoch]
        assert keys(resumed) == epochs[epoch + 1]
        assert keys(resumed) == epochs[epoch + 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stages_seed_counts_under_a_loader(tmp_path: Path, workers: int) -> None:
    path = write_shard(tmp_path / "s.tar", [(f"{m:02}.txt", b"a") for m in range(30)])

    def order(stage_seed: int, seed: int) -> list[str]:
        pipe = AISSourceLister(path).load_tar().group_samples().shuffled(30, initial=30, seed=stage_seed)
        with ais_loader(pipe.to_tuple("__key__"), num_workers=workers, seed=seed) as loader:
            return texts(loader)

    orders = [order(stage_seed, seed) for stage_seed in (0, 1) for seed in (0, 1)]
    assert len({tuple(one) for one in orders}) == 4
    assert order(1, 1) == orders[3]


@shard_etl
def swollen(sample: Any) -> Any:
    """Make every sample longer: no offset of the shard stored is one of the shard read."""
    sample["txt"] = sample["txt"] + b"!" * 700
    return sample


@pytest.fixture(scope="module")
def etl_bucket() -> Iterator[Any]:
    with LocalCluster(targets=2, etl=True) as cluster:
        ensure_etl(cluster.client(), "swollen", swollen)
        bucket = cluster.client().bucket("texts").create()
        for shard in range(3):
            put(bucket, shard, "a")
        yield bucket


@pytest.mark.parametrize("buffer", [0, 5])
def test_promise_5_resume_in_a_transformed_shard_enters_it_at_its_beginning(
    etl_bucket: Any, buffer: int
) -> None:
    """A transform makes its bytes anew, and knows no ranges: they would be those of what is stored."""

    def make() -> Any:
        return chain(etl_bucket, buffer, prefix="s-", etl_name="swollen")

    with ais_loader(make()) as loader:
        whole = texts(loader)
    assert len(whole) == 3 * SAMPLES
    assert all(text.endswith("!") for text in whole)
    for steps in (3, SAMPLES, SAMPLES + 5):
        head, state = stopped_at(make, steps)
        with ais_loader(make()) as loader:
            loader.load_state_dict(state)
            assert head + texts(loader) == whole


def test_promise_2_a_shard_rewritten_behind_a_transform_is_not_entered_in_the_middle(etl_bucket: Any) -> None:
    """What a transform makes has no version to compare. A header at the old place may be one inside a sample."""

    def write(extra: list[tuple[str, bytes]]) -> None:
        samples = [
            [(f"{n}.cls", b"1"), (f"{n}.txt", b"a"), *((f"{n}.{field}", data) for field, data in extra)]
            for n in range(SAMPLES)
        ]
        etl_bucket.object("t-0.tar").get_writer().put_content(shard_bytes(sum(samples, [])))

    def make() -> Any:
        return AISSourceLister(etl_bucket, prefix="t-", etl_name="swollen").load_tar().group_samples()

    write([])
    with ais_loader(make()) as loader:
        assert [sample.offset for sample in itertools.islice(loader, 2)] == [0, 2560]
        state = loader.state_dict()
    write([("zip", b"b" * 1000)])
    fields = [(sample.offset, list(sample)[2:]) for sample in make()]
    # So its txt begins at 5120, where the checkpoint goes on.
    assert fields[1] == (4096, ["cls", "txt", "zip"])
    with ais_loader(make()) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            StateError, match="goes on at byte 5120 of the shard, where no sample ends"
        ) as caught:
            list(loader)
    assert "/t-0.tar" in (caught.value.url or "")
