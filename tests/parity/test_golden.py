"""The embedded cluster answers what a real node answered: recorded exchanges, replayed in order."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais.local import LocalCluster

sys.path.insert(0, str(Path(__file__).parent))
import replay

GROUPS = [name for name, _ in groupby(replay.load(), key=lambda row: row["group"])]


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """Differences by group, of one replay of the whole sequence against an empty cluster with one target."""
    out: dict[str, list[str]] = {name: [] for name in GROUPS}
    with LocalCluster(targets=1) as cluster:
        session = replay.Replay(cluster.endpoint, cluster.target_urls[0])
        for number, row in enumerate(replay.load()):
            answer = session.send(row)
            place = f"exchange {number}, {row['method']} {row['url']}"
            out[row["group"]] += [f"{place}: {text}" for text in replay.differences(row, answer)]
            session.learn(row, answer)
    return out


@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_those_of_a_real_node(found: dict[str, list[str]], group: str) -> None:
    if group in replay.DIFFERENT:
        assert found[group], f"{group} is the same now: take it out of DIFFERENT"
    else:
        assert not found[group], "\n".join(found[group])


def test_the_comparison_sees_a_wrong_answer() -> None:
    row: dict[str, Any] = next(row for row in replay.load() if row["group"] == "get" and row["status"] == 200)
    body = replay.body_of(row["response"])
    headers = {name.lower(): value for name, value in row["response_headers"].items()}
    right = replay.Answer(200, "OK", headers, body)
    assert replay.differences(row, right) == []
    for wrong in (
        replay.Answer(206, "Partial Content", headers, body),
        replay.Answer(200, "OK", headers, body[:-1] + b"x"),
        replay.Answer(200, "OK", headers | {"ais-checksum-value": "0" * 16}, body),
        replay.Answer(200, "OK", {k: v for k, v in headers.items() if k != "ais-version"}, body),
    ):
        assert replay.differences(row, wrong)
