"""The commands ``torchdata-ais etl ...``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import command

from torchdata_ais.local import LocalCluster
from torchdata_ais.testing import shard_bytes

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1, etl=True) as running:
        yield running


@pytest.fixture
def run(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("AIS_ENDPOINT", cluster.endpoint)
    monkeypatch.setenv("AIS_AUTHN_TOKEN", cluster.token)
    return partial(command.run, "etl")


@pytest.mark.ci
def test_a_function_is_started_listed_used_and_removed(
    run: Run, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_cli_transform.py").write_text(
        "def upper(sample):\n"
        "    if sample['txt'] == b'bad':\n"
        "        raise ValueError('a bad one')\n"
        "    return {**sample, 'txt': sample['txt'].upper()}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    bucket = cluster.client().bucket("words").create()
    for name, text in (("good.tar", b"good"), ("evil.tar", b"bad")):
        bucket.object(name).get_writer().put_content(shard_bytes({"a.txt": text}))

    assert run("init", "upper-case", "my_cli_transform:upper").exit_code == 0
    assert run("init", "upper-case", "my_cli_transform:upper").exit_code == 0
    listed = json.loads(run("ls", "--json").stdout)
    assert [(row["name"], row["stage"]) for row in listed] == [("upper-case", "Running")]
    assert "upper-case" in run("ls").stdout

    failed = run("run", "upper-case", "ais://words", "ais://new-words")
    assert failed.exit_code == 1
    assert "ValueError: a bad one" in failed.stderr
    done = run("run", "upper-case", "ais://words", "ais://new-words", "--skip", "--json")
    told = json.loads(done.stdout)
    assert (told["objects"], list(told["errors"])) == (1, ["evil.tar"])
    body = cluster.client().bucket("new-words").object("good.tar").get_reader().read_all()
    assert body[512:516] == b"GOOD"

    assert "Traceback" in run("logs", "upper-case", "--lines", "80").stdout
    assert run("rm", "upper-case").exit_code == 0
    assert json.loads(run("ls", "--json").stdout) == []
    gone = run("logs", "upper-case")
    assert gone.exit_code == 1
    assert "upper-case" in gone.stderr


def test_a_function_that_is_not_there_is_one_message(run: Run) -> None:
    result = run("init", "no-module", "no_such_module_here:f")
    assert result.exit_code == 2
    assert "There is no function 'no_such_module_here:f'" in result.stderr
