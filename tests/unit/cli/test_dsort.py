"""The command ``torchdata-ais dsort``."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import command

from torchdata_ais import AISSourceLister
from torchdata_ais.testing import shard_bytes

Run = Callable[..., Any]


@pytest.fixture
def run(ais_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint)
    return partial(command.run, "dsort")


@pytest.fixture
def bucket(ais_bucket: Any) -> Any:
    for shard in range(3):
        members = [(f"k{shard}{n}.cls", b"%d" % (7 * (4 * shard + n) % 12)) for n in range(4)]
        ais_bucket.object(f"s-{shard}.tar").get_writer().put_content(shard_bytes(members))
    return ais_bucket


def test_shards_are_sorted_by_content_and_checked(run: Run, bucket: Any) -> None:
    source, target = f"ais://{bucket.name}/s-{{0..2}}.tar", f"ais://{bucket.name}/t-%d.tar"
    result = run(source, target, "--order", "content", "--size", 6, "--check")
    assert result.exit_code == 0, result.output
    assert result.stdout.count(f"ais://{bucket.name}/t-") >= 2
    assert "checked: 12 samples, the same" in result.stderr
    assert "━" not in result.stderr  # no bar in a pipe
    labels = [int(one["cls"]) for one in AISSourceLister([bucket], prefix="t-").load_tar().group_samples()]
    assert labels == list(range(12))
    again = run(source, target)
    assert again.exit_code == 2
    assert "are there already" in again.stderr
    assert run(source, target, "--overwrite").exit_code == 0


def test_a_specification_file_in_its_old_form_is_run_and_told_as_json(
    run: Run, bucket: Any, tmp_path: Path
) -> None:
    file = tmp_path / "shuffle.json"
    file.write_text(
        json.dumps(
            {
                "extension": ".tar",
                "bck": {"name": bucket.name},
                "input_format": "s-{0..3}",
                "output_format": "new-%d",
                "output_shard_size": "1MB",
                "algorithm": {"kind": "shuffle"},
            }
        )
    )
    result = run(file, "--check", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["samples"], told["missing"]) == (12, ["s-3.tar"])
    assert [row["url"] for row in told["shards"]] == [f"ais://{bucket.name}/new-0.tar"]


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["ais://b/s-{0..2}.tar"], "PATTERN is missing", 2),
        (["ais://b/s-", "ais://b/t-%d.tar", "--order", "colour"], "'colour' is not one of", 2),
        (["spec.json", "ais://b/t-%d.tar"], "says where to write", 2),
        (["no-such-file.json"], "No such file", 1),
        (["ais://b-no-such/s-{0..2}.tar", "ais://b-no-such/t-%d.tar"], "b-no-such", 1),
    ],
)
def test_what_cannot_be_done_is_one_message_and_its_exit_code(
    run: Run, words: list[str], message: str, code: int
) -> None:
    result = run(*words)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
