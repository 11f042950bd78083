"""dSort specifications: typed, old and new, to the words of today's server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aistore.sdk.dsort import DsortAlgorithm, DsortFramework, DsortShardsGroup
from aistore.sdk.multiobj import ObjectRange
from aistore.sdk.types import BucketModel

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.jobs.dsort import (
    ByContent,
    ByName,
    DsortSpec,
    Shuffle,
    Unchanged,
    load_spec,
    translate_spec,
)
from torchdata_ais.jobs.dsort.run import inputs_of, outputs_of
from torchdata_ais.jobs.dsort.spec import check_spec

ARTICLE = {
    "extension": ".tar",
    "bck": {"name": "images"},
    "input_format": "samples-{00..18}",
    "output_format": "shuffled-shard-%d",
    "output_shard_size": "100MB",
    "description": "Create new shuffled shards",
    "algorithm": {"kind": "shuffle"},
}


def test_the_specification_of_the_article_gets_the_names_of_today() -> None:
    assert translate_spec(ARTICLE) == {
        "input_extension": ".tar",
        "input_bck": {"provider": "ais", "name": "images"},
        "input_format": {"template": "samples-{00..18}"},
        "output_format": "shuffled-shard-%d",
        "output_shard_size": "100MB",
        "description": "Create new shuffled shards",
        "algorithm": {"kind": "shuffle"},
        "dsorter_type": "dsort_general",
    }


def test_a_specification_of_today_stays_as_it_is() -> None:
    spec = translate_spec(ARTICLE)
    assert translate_spec(spec) == spec
    assert (
        translate_spec({**spec, "dsorter_type": "dsort_mem", "max_mem_usage": "50%"})["dsorter_type"]
        == "dsort_mem"
    )


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (
            {"bck": {"name": "b", "provider": "gcp"}, "output_bck": {"name": "c"}},
            {"input_bck": {"name": "b", "provider": "gcp"}, "output_bck": {"name": "c", "provider": "ais"}},
        ),
        ({"output_shard_size": 1000}, {"output_shard_size": "1000"}),
        ({"input_format": "x-{0..3}"}, {"input_format": {"template": "x-{0..3}"}}),
        ({"algorithm": {"kind": "shuffle", "seed": 5}}, {"algorithm": {"kind": "shuffle", "seed": "5"}}),
        ({"some_field": 5}, {"some_field": 5}),
    ],
)
def test_values_become_those_of_the_server(given: dict[str, Any], sent: dict[str, Any]) -> None:
    spec = translate_spec({"input_bck": {"name": "b"}, **given} if "bck" not in given else given)
    assert {name: spec[name] for name in sent} == sent


def test_both_names_of_a_field_and_no_bucket_are_refused() -> None:
    with pytest.raises(UsageError, match="both 'bck' and 'input_bck'"):
        translate_spec({"bck": {"name": "a"}, "input_bck": {"name": "b"}})
    with pytest.raises(UsageError, match="names no input bucket"):
        translate_spec({"extension": ".tar"})
    with pytest.raises(UsageError, match="has input_bck='images'"):
        translate_spec({"bck": "images"})


def test_a_typed_job_says_what_the_sdk_would_say() -> None:
    mine = DsortSpec(
        "ais://in/s-{0..3}",
        "ais://out/t-{0..9}",
        "1MB",
        ByContent("cls", "int", decreasing=True),
        description="d",
    ).to_server()
    theirs = DsortFramework(
        DsortShardsGroup(BucketModel(name="in", provider="ais"), "input", ObjectRange("s-", 0, 3), ".tar"),
        DsortShardsGroup(BucketModel(name="out", provider="ais"), "output", ObjectRange("t-", 0, 9), ".tar"),
        DsortAlgorithm(kind="content", extension=".cls", content_key_type="int", decreasing=True),
        description="d",
        output_shard_size="1MB",
    ).to_spec()  # fmt: skip
    del mine["dsorter_type"]  # which the SDK leaves out, and the server cannot do without
    theirs["algorithm"].pop("seed")
    assert mine == json.loads(json.dumps(theirs).replace("..1}", "}"))  # a step of one, said or not


@pytest.mark.parametrize(
    ("order", "algorithm"),
    [
        (Shuffle(), {"kind": "shuffle"}),
        (Shuffle(0), {"kind": "shuffle", "seed": "0"}),
        (ByName(decreasing=True), {"kind": "alphanumeric", "decreasing": True}),
        (Unchanged(), {"kind": "none"}),
    ],
)
def test_orders_in_the_words_of_the_server(order: Any, algorithm: dict[str, Any]) -> None:
    assert DsortSpec("ais://a/s-", "ais://a/t-%d.tgz", order=order).to_server()["algorithm"] == algorithm


def test_sources_that_no_job_can_read_are_refused() -> None:
    for source in ("/data/s.tar", "http://h:1/v1/objects/b/s.tar", [], ["ais://a/s.tar", "ais://b/s.tar"]):
        with pytest.raises(UsageError):
            DsortSpec(source, "ais://b/t-%d").to_server()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": {"kind": "bubble"}}, "no algorithm 'bubble'"),
        ({"algorithm": {"kind": "shuffle", "seed": -1}}, "seed='-1'"),
        ({"algorithm": {"kind": "content"}}, "needs a field"),
        ({"algorithm": {"kind": "content", "extension": ".cls"}}, "needs to know its kind"),
        ({"output_shard_size": "big"}, "output_shard_size='big'"),
        ({"output_shard_size": ""}, "output_shard_size=''"),
        ({"output_format": "one.tar"}, "has no place for their number"),
    ],
)
def test_what_the_server_would_refuse_without_a_word_is_refused_here(
    change: dict[str, Any], message: str
) -> None:
    """The parser of the real server panics over a bad specification, and closes the connection."""
    check_spec(translate_spec(ARTICLE))
    with pytest.raises(UsageError, match=message):
        check_spec(translate_spec({**ARTICLE, **change}))


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ARTICLE))
    (tmp_path / "a.yaml").write_text("extension: .tar\nbck: {name: images}\nalgorithm:\n  kind: shuffle\n")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "broken.json").write_text("{")
    assert load_spec(tmp_path / "a.json") == ARTICLE
    assert load_spec(tmp_path / "a.yaml")["algorithm"] == {"kind": "shuffle"}
    for name in ("list.json", "broken.json"):
        with pytest.raises(UsageError):
            load_spec(tmp_path / name)
    with pytest.raises(NotFoundError):
        load_spec(tmp_path / "none.json")


def test_names_are_told_by_range_prefix_list_and_number() -> None:
    spec = translate_spec(ARTICLE)
    exact = inputs_of(spec).exact
    assert exact is not None
    assert (exact[0], exact[-1], len(exact)) == ("samples-00.tar", "samples-18.tar", 19)
    (pattern,) = outputs_of(spec).patterns
    assert pattern == r"shuffled\-shard\-\d+\.tar"
    prefix = inputs_of(translate_spec({"bck": {"name": "b"}, "extension": ".tar", "input_format": "a.b-"}))
    assert prefix.patterns == (r"a\.b\-.*\.tar",)
    assert outputs_of(spec, ("x-@00.tar", "y-{0..9}")).patterns == (r"x\-\d+\.tar", r"y\-\d+\.tar")
