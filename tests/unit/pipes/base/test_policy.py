"""Promise 1 and 9: what is done about an error, stage by stage, and what is never gone on after."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, stats
from torchdata_ais.errors import (
    AISError,
    DecodeError,
    MissingFieldError,
    NotFoundError,
    StateError,
    TruncatedShardError,
    UsageError,
)
from torchdata_ais.observe.stats import StageReport
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.policy import ErrorPolicy
from torchdata_ais.pipes.mapped import DictMapper, SampleMapper
from torchdata_ais.testing import shard_bytes, write_shard

wds = pytest.importorskip("webdataset")


@pytest.fixture
def half_broken(tmp_path: Path) -> list[str]:
    """Ten shards of two samples; those with an odd number are cut inside the second."""
    urls = []
    for number in range(10):
        path = tmp_path / f"s-{number}.tar"
        data = shard_bytes({"a.cls": b"%d" % number, "b.cls": b"%d" % number, "b.bin": bytes(3000)})
        path.write_bytes(data[:4000] if number % 2 else data)
        urls.append(str(path))
    return urls


def load(urls: list[str], **options: Any) -> Any:
    return AISSourceLister(urls).load_tar(**options)


def last(pipe: Any) -> StageReport:
    """What the last stage of a pipe counted."""
    return stats(pipe).stages[-1]


def survivors(pipe: Any) -> list[tuple[str, int]]:
    return keyed(list(pipe.group_samples()))


def until_error(pipe: Any) -> tuple[list[Any], Exception]:
    """What comes before the error that ends a pipe, and that error."""
    got: list[Any] = []
    iterator = iter(pipe)
    try:
        while True:
            got.append(next(iterator))
    except StopIteration:
        pytest.fail("no error came")
    except Exception as error:
        return got, error


def keyed(samples: list[Any]) -> list[tuple[str, int]]:
    return [(sample["__key__"], int(sample["cls"])) for sample in samples]


ALL = [(key, number) for number in range(10) for key in "ab" if key == "a" or number % 2 == 0]


@pytest.mark.parametrize("policy", ["skip", "warn", wds.ignore_and_continue])
def test_going_on_loses_the_open_samples_only_and_counts_them(policy: Any, half_broken: list[str]) -> None:
    pipe = load(half_broken, on_error=policy)
    assert survivors(pipe) == ALL
    assert last(pipe).skipped == {"TruncatedShardError": 5}
    assert [url for url in half_broken if any(url in text for text in last(pipe).examples)] == half_broken[
        1::2
    ]


def test_webdataset_handlers_that_stop_end_the_stream(half_broken: list[str]) -> None:
    assert survivors(load(half_broken, on_error=wds.ignore_and_stop)) == ALL[:3]


def test_webdataset_handlers_that_raise_raise_our_error(half_broken: list[str]) -> None:
    with pytest.raises(TruncatedShardError):
        survivors(load(half_broken, on_error=wds.reraise_exception))


def test_handlers_are_given_the_error_with_its_place(half_broken: list[str]) -> None:
    met: list[AISError] = []
    survivors(load(half_broken, on_error=lambda error: met.append(error) or True))
    assert [(error.url, error.offset, error.member) for error in met] == [
        (url, 4000, "b.bin") for url in half_broken[1::2]
    ]


@pytest.mark.parametrize("policy", ["skip", lambda error: True], ids=["skip", "handler"])
def test_the_first_error_over_a_count_is_raised_with_the_count(policy: Any, half_broken: list[str]) -> None:
    assert survivors(load(half_broken, on_error=policy, max_errors=5)) == ALL
    got, error = until_error(load(half_broken, on_error=policy, max_errors=2).group_samples())
    assert isinstance(error, TruncatedShardError)
    assert "load_tar() met 3 errors in 6 items, over max_errors=2" in str(error)
    assert keyed(got) == [item for item in ALL if item[1] < 6]
    assert (error.url, error.offset) == (half_broken[5], 4000)


def test_a_budget_of_none_raises_the_first_error(half_broken: list[str]) -> None:
    with pytest.raises(TruncatedShardError, match="met 1 errors"):
        survivors(load(half_broken, on_error="skip", max_errors=0))


def test_a_share_is_looked_at_at_the_end_of_a_short_stream(half_broken: list[str]) -> None:
    assert survivors(load(half_broken, on_error="skip", max_errors=0.5)) == ALL
    got, error = until_error(load(half_broken, on_error="skip", max_errors=0.49).group_samples())
    assert isinstance(error, AISError)
    assert "load_tar() met 5 errors in 10 items, over max_errors=0.49" in str(error)
    assert keyed(got) == ALL
    assert error.url == half_broken[1]


def test_a_share_is_looked_at_from_the_hundredth_item_on() -> None:
    samples = [{"__key__": str(n), "json": b"1" if n % 10 else b"{"} for n in range(300)]
    pipe = decode(samples, on_error="skip", max_errors=0.11)
    assert len(list(pipe)) == 270
    got, error = until_error(decode(samples, on_error="skip", max_errors=0.05))
    assert isinstance(error, DecodeError)
    assert "decode() met 11 errors in 101 items" in str(error)
    assert len(got) == 90  # ten had been skipped before


@pytest.mark.parametrize(("first", "items"), [(93, 101), (94, 100), (95, 101), (96, 102)])
def test_a_share_is_looked_at_from_exactly_the_hundredth_item_on(first: int, items: int) -> None:
    """Of a hundred items five may be given up; of fewer any number, until the end."""
    bad = {*range(first, first + 6), 100}
    samples = [{"__key__": str(n), "json": b"{" if n in bad else b"1"} for n in range(120)]
    _, error = until_error(decode(samples, on_error="skip", max_errors=0.05))
    assert f"decode() met {7 if first == 93 else 6} errors in {items} items" in str(error)


@pytest.mark.parametrize(
    ("items", "skipped", "processes", "at_end", "over"),
    [
        (99, 99, 1, False, False),
        (100, 5, 1, False, False),
        (100, 6, 1, False, True),
        (99, 6, 1, True, True),
        (20, 1, 1, True, False),
        (199, 99, 2, False, False),
        (200, 10, 2, False, False),
        (200, 11, 2, False, True),
    ],
)
def test_a_share_is_over_from_exactly_the_next_error(
    items: int, skipped: int, processes: int, at_end: bool, over: bool
) -> None:
    policy = ErrorPolicy("skip", 0.05)
    assert policy.is_share_over(items, skipped, processes=processes, at_end=at_end) is over


def test_promise_6_a_thousand_items_in_a_row_may_be_given_up_and_not_one_more() -> None:
    """The loader compares the share, and hears nothing of a worker that makes no batch."""
    policy, counts = ErrorPolicy("skip", 0.99), StageStats()
    policy.by_job = True

    def meet(number: int) -> None:
        for _ in range(number):
            counts.items += 1
            assert policy.goes_on(ValueError("x"), counts, "decode")

    meet(1000)
    counts.items += 1  # a good one
    meet(1000)
    with pytest.raises(AISError, match=r"met 2001 errors in 2002 items"):
        meet(1)


def decode(samples: list[Any], *specs: Any, **options: Any) -> Any:
    from torchdata_ais import SampleDecoder

    return SampleDecoder(samples, *specs, **options)


@pytest.mark.parametrize("threads", [0, 3])
def test_a_field_that_cannot_be_decoded_costs_its_whole_sample(threads: int) -> None:
    samples = [{"__key__": key, "__url__": "s.tar", "json": data, "cls": b"1"} for key, data in
               (("a", b"1"), ("b", b"{"), ("c", b"2"))]  # fmt: skip
    assert [s["__key__"] for s in decode(samples, threads=threads, on_error="skip")] == ["a", "c"]
    got, error = until_error(decode(samples, threads=threads))
    assert isinstance(error, DecodeError)
    assert [sample["__key__"] for sample in got] == ["a"]
    assert (error.key, error.field, error.url) == ("b", "json", "s.tar")


FATAL = [MemoryError("x"), ImportError("x"), ModuleNotFoundError("x"), NameError("x"), UnboundLocalError("x"),
         UsageError("x"), KeyboardInterrupt(), SystemExit(3)]  # fmt: skip


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("policy", ["skip", "warn", lambda error: True], ids=["skip", "warn", "handler"])
@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_a_broken_program_is_never_skipped(error: BaseException, policy: Any, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.cls": b"1"})
    fails = raising(error)
    stages = {
        "rename": lambda: load([shard], rename_files=fails, on_error=policy),
        "select": lambda: load([shard], select_files=fails, on_error=policy),
        "group after rename": lambda: load([shard], rename_files=fails, on_error=policy).group_samples(
            on_error=policy
        ),
        "decode": lambda: decode([{"a": b""}], fails, on_error=policy),
        "decode in threads": lambda: decode([{"a": b""}], fails, threads=2, on_error=policy),
        "map_dict": lambda: DictMapper(load([shard]).group_samples(), cls=fails, on_error=policy),
        "map_sample": lambda: SampleMapper(load([shard]).group_samples(), fails, on_error=policy),
    }
    for name, make in stages.items():
        try:
            list(make())
        except type(error):
            continue
        pytest.fail(f"{name} went on")


def test_a_checkpoint_that_does_not_fit_is_never_skipped() -> None:
    with pytest.raises(StateError):
        ErrorPolicy("skip").goes_on(StateError("x"), StageStats(), "load_tar")


@pytest.mark.parametrize("policy", ["skip", lambda error: True], ids=["skip", "handler"])
def test_a_listing_that_fails_is_raised_under_every_policy(policy: Any, tmp_path: Path) -> None:
    pipe = AISSourceLister(str(tmp_path / "none-*.tar")).load_tar(on_error=policy)
    with pytest.raises(NotFoundError):
        list(pipe)


def test_a_missing_shard_is_an_error_with_policy(tmp_path: Path) -> None:
    urls = [str(tmp_path / "gone.tar"), write_shard(tmp_path / "s.tar", {"a.cls": b"1"})]
    with pytest.raises(NotFoundError) as caught:
        list(load(urls))
    assert caught.value.url == urls[0]
    pipe = load(urls, on_error="skip")
    assert survivors(pipe) == [("a", 1)]
    assert last(pipe).skipped == {"NotFoundError": 1}


def test_whole_objects_are_skipped_or_raised_alike(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    urls = [str(tmp_path / "gone.bin"), str(tmp_path / "a.bin")]
    with pytest.raises(NotFoundError):
        list(AISSourceLister(urls).load_objects())
    pipe = AISSourceLister(urls).load_objects(on_error="skip")
    assert list(pipe) == [(urls[1], b"abc")]
    assert last(pipe).skipped == {"NotFoundError": 1}
    with pytest.raises(AISError, match=r"load_objects\(\) met 1 errors in 2 items, over max_errors=0\.2"):
        list(AISSourceLister(urls).load_objects(on_error="skip", max_errors=0.2))


@pytest.mark.parametrize(("policy", "level"), [("warn", "WARNING"), ("skip", "INFO")])
def test_the_first_of_a_class_is_logged_in_full_and_the_others_are_counted(
    policy: str, level: str, half_broken: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    Path(half_broken[8]).write_bytes(b"<html>no</html>" * 100)
    with caplog.at_level(logging.DEBUG, logger="torchdata_ais"):
        survivors(load(half_broken, on_error=policy))
    records = [record for record in caplog.records if "skips after" in record.message]
    assert [record.levelname for record in records] == [level, level]
    cut, html = (record.message for record in records)
    assert cut.startswith(
        "load_tar skips after TruncatedShardError: The shard ends at byte 4000, inside a member"
    )
    assert f'[at] {{"url": "{half_broken[1]}"' in cut
    assert html.startswith("load_tar skips after NotATarError")
    assert records[0].name == "torchdata_ais"


def test_raise_logs_nothing(half_broken: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TruncatedShardError):
        survivors(load(half_broken))
    assert not caplog.records


def test_counts_of_processes_add_up_and_travel() -> None:
    one, two = StageStats(items=3), StageStats(items=4)
    for _ in range(15):
        one.skip(ValueError("v"))
        two.skip(KeyError("k"))
    two.skip(ValueError("w"))
    total = StageStats()
    for part in (one, two):
        total.add(pickle.loads(pickle.dumps(part)))
    assert total.items == 7
    assert total.skipped == {"ValueError": 16, "KeyError": 15}
    assert len(total.examples) == 20


@pytest.mark.parametrize("bad", ["ignore", None, 3, ""])
def test_a_policy_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(UsageError, match="no policy"):
        ErrorPolicy(bad)


def test_errors_of_the_mapping_stages_name_the_sample(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.cls": b"1", "b.cls": b"x", "c.jpg": b""})
    samples = load([shard]).group_samples()
    pipe = DictMapper(samples, cls=int, on_error="skip")
    assert [sample["__key__"] for sample in pipe] == ["a"]
    assert last(pipe).examples[0].startswith("ValueError: ")
    assert all(shard in text for text in last(pipe).examples)
    with pytest.raises(MissingFieldError) as caught:
        list(samples.to_tuple("cls"))
    assert (caught.value.key, caught.value.url) == ("c", shard)
