"""The embedded cluster indexes shards and answers GetBatch as a real one did: recorded exchanges, replayed in order.

What the real one answers with status 200 to ranges that cannot be had are faults of the embedded one. They are switched
on for these exchanges, and then the answers are the same.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais.index.build.ais_format import parse_shard_index, samples_in
from torchdata_ais.local import Action, EndBatch, LocalCluster, Placeholder, WholeObject
from torchdata_ais.local.server.names import SHARD_INDEXES, Node, index_name, object_uname, owner_of

sys.path.insert(0, str(Path(__file__).parent))
import replay

ROWS = [json.loads(line) for line in Path(__file__).with_name("index.jsonl").read_text().splitlines()]
GROUPS = [name for name, _ in groupby(ROWS, key=lambda row: row["group"])]
FIRST = "s-000000.tar.idx"  # which lay where the proxy does not look, or its target had met what is no tar

FAULTS: dict[str, Action] = {  # in a group "-continue", what is not there does not end the batch
    "x-batch-past-end-stream-continue": EndBatch(1),
    "x-batch-past-end-stream-raise": EndBatch(1),
    "x-batch-past-end-multipart-raise": WholeObject(1),
    "x-batch-over-end-stream-continue": EndBatch(0),
    "x-batch-over-end-stream-raise": WholeObject(0),
    "x-batch-over-end-multipart-continue": WholeObject(0),
    "x-batch-over-end-multipart-raise": WholeObject(0),
    "x-batch-missing-stream-raise": Placeholder(1),
    "x-batch-missing-multipart-raise": Placeholder(1),
    "x-batch-arch-missing-stream-raise": Placeholder(0),
    "x-batch-many-missing": EndBatch(8),
}


def differences(row: dict[str, Any], answer: replay.Answer) -> list[str]:
    """Everything in which our answer is not the recorded one, but for what a target or a Go map decides."""
    found = replay.differences(row, answer)
    if row["group"].startswith("x-sys-get") and answer.status == 200:
        recorded, ours = (parse_shard_index(body) for body in (replay.body_of(row["response"]), answer.body))
        assert ours == recorded
        found = [text for text in found if not re.match("header ais-checksum-value|body of", text)]
    elif row["group"].startswith(("x-sys-list", "x-sys-after-bucket")):
        names = re.findall(rb"s-[-\w.]+\.idx", answer.body)
        recorded = row["response"].get("msgpack", row["response"].get("json"))
        wanted = set(re.findall(r"s-[-\w.]+\.idx", json.dumps(recorded)))
        assert {name.decode() for name in names} - {FIRST} == wanted
        found = [text for text in found if "items, recorded" not in text]
    elif row["group"] == "x-index-bad-value":
        assert b"unmarshal" in answer.body
        found = [text for text in found if "body of" not in text]
    elif row["group"] in (
        "x-batch-bad-range",
        "x-batch-negative",
    ):  # where in the JSON that is, is not said here
        assert re.search(rb"unmarshalerDecoder: not satisfiable range \[start=-?\d+,length=\d", answer.body)
        found = [text for text in found if "body.message: " not in text]
    elif (
        "multipart" in row["group"]
    ):  # an entry that came from another target has no provider, and its path is one name
        found = [
            text
            for text in found
            if not re.match(r"metadata\.out\[\d\](\.provider|\.objname|: keys \['archpath'\])", text)
        ]
    elif row["group"] == "x-index-snaps":  # the part of the target without an error is what was recorded
        found = [text for text in found if ".err: " not in text]
    return found


def _place_indexes(root: Path) -> None:
    """Name the targets so that the proxy looks for each recorded index where it lies: on the target of its shard."""
    shards = [
        row["group"].removeprefix("x-sys-get-").removesuffix(".idx")
        for row in ROWS
        if row["group"].startswith("x-sys-get-s-")
    ]
    for number in range(10_000):
        nodes = [Node("target", f"{number:04d}t{place}x{place}", 0) for place in range(2)]
        if all(
            owner_of(nodes, object_uname("goldenx", shard))
            is owner_of(nodes, object_uname(SHARD_INDEXES, index_name("goldenx", shard)))
            for shard in shards
        ):
            root.joinpath("cluster.json").write_text(json.dumps({"targets": [node.id for node in nodes]}))
            return
    raise AssertionError("no names of targets do that")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {name: [] for name in GROUPS}
    root = tmp_path_factory.mktemp("cluster")
    _place_indexes(root)
    with LocalCluster(targets=2, root=root) as cluster:
        session = replay.Replay(cluster.endpoint, cluster.target_urls[0])
        for number, row in enumerate(ROWS):
            action = FAULTS.get(row["group"]) if "TARGET" in row["url"] else None
            fault = cluster.faults.add(action, verb="BATCH") if action else 0
            answer = session.send(row)
            if fault:
                assert cluster.faults.fired(fault) == 1
                cluster.faults.clear(fault)
            out[row["group"]] += [f"exchange {number}: {text}" for text in differences(row, answer)]
            session.learn(row, answer)
    return out


@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_those_of_a_real_node(found: dict[str, list[str]], group: str) -> None:
    assert not found[group], "\n".join(found[group])


def test_without_the_faults_what_cannot_be_had_is_an_error_before_the_first_byte() -> None:
    with LocalCluster(targets=2) as cluster:
        session = replay.Replay(cluster.endpoint, cluster.target_urls[0])
        statuses = {}
        for row in ROWS:
            answer = session.send(row)
            session.learn(row, answer)
            if row["group"] in FAULTS and "TARGET" in row["url"]:
                statuses[row["group"]] = answer.status
    expected = dict.fromkeys(FAULTS, 400) | {name: 404 for name in FAULTS if "missing" in name}
    assert statuses == expected | {"x-batch-many-missing": 200}


def test_samples_are_found_in_what_a_real_node_recorded() -> None:
    for row in ROWS:
        if row["status"] == 200 and row["group"].startswith("x-sys-get-s-") and "TARGET" in row["url"]:
            samples = samples_in(parse_shard_index(replay.body_of(row["response"])), row["url"])
            assert samples.keys
            assert set(samples.fields) <= {("bin", "cls"), ("bin",), ("cls",)}
            assert samples.starts[0] == 0
            assert all(start <= end for start, end in zip(samples.starts, samples.ends, strict=True))
