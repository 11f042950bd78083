"""What a newcomer is told by the commands when something is wrong: little, and what to do next."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run

from torchdata_ais.cli._run import sentence
from torchdata_ais.cli.checks import doctor
from torchdata_ais.errors import UsageError
from torchdata_ais.local import Stall
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import write_shard


@pytest.fixture
def scattered(tmp_path: Path) -> Path:
    """Two shards: in one the members of ten samples do not stand together, the other is sound."""
    keys = [f"{index:02d}" for index in range(10)]
    write_shard(tmp_path / "s-0.tar", [(f"{key}.{field}", b"1") for field in ("cls", "txt") for key in keys])
    write_shard(tmp_path / "s-1.tar", [("a.cls", b"1"), ("a.txt", b"1"), ("b.cls", b"1"), ("b.txt", b"1")])
    return tmp_path


def test_lint_shows_three_problems_of_a_kind_and_counts_the_others(scattered: Path) -> None:
    result = run("lint", f"{scattered}/s-*.tar")
    lines = result.stdout.splitlines()
    assert sum("NonAdjacentKeyError: " in line for line in lines) == 3
    assert lines[3].endswith("s-0.tar: 7 more errors of this shard (such as NonAdjacentKeyError)")
    assert "10 errors in 1 shard, 0 not whole" in lines[-1]
    assert "--fix" in result.stderr, "what to do next"


def test_lint_does_not_call_shards_sound_when_no_sample_has_the_field_to_decode(scattered: Path) -> None:
    result = run("lint", scattered / "s-1.tar", "--only", "jpg cls")
    assert result.exit_code == 1
    assert "NoSuchField: no sample has the field 'jpg'" in result.stdout
    assert "The fields are cls txt" in result.stdout


@pytest.mark.parametrize(
    ("target", "says"), [("one.tar", "no pattern of shards"), ("s-%d.tar", "shards of this pattern already")]
)
def test_a_target_that_cannot_be_written_is_told_before_the_shards_are_read(
    scattered: Path, target: str, says: str
) -> None:
    result = run("lint", f"{scattered}/s-*.tar", "--fix", scattered / target)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr
    assert "=True" not in result.stderr, "arguments of functions are none of a command"


def test_errors_of_a_command_name_its_own_options(tmp_path: Path) -> None:
    write_shard(tmp_path / "out-000000.tar", [("a.txt", b"1")])
    source = write_shard(tmp_path / "s.tar", [("a.txt", b"1")])
    result = run("convert", source, f"{tmp_path}/out-%06d.tar")
    assert result.exit_code == 2
    assert "or pass --resume with --manifest, or --overwrite" in result.stderr
    error = UsageError.at("more than max_pixels=5", todo="Raise max_pixels= if images may be that large")
    assert sentence(error, {"max_pixels": "--max-pixels"}).endswith(
        "--max-pixels=5. Raise --max-pixels if images may be that large"
    )


def test_inspect_of_a_bucket_or_a_prefix_names_the_command_that_lists(
    ais_bucket: Any, ais_cluster: Any
) -> None:
    ais_bucket.object("s-0.tar").get_writer().put_content(b"x")
    for url in (f"ais://{ais_bucket.name}", f"ais://{ais_bucket.name}/s-"):
        result = run("inspect", url, "--endpoint", ais_cluster.endpoint)
        assert result.exit_code in (1, 2)
        assert f"torchdata-ais ls {url} shows" in result.stderr


def test_bench_of_a_bad_shard_leads_to_lint(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.tar", [("a.txt", b"1" * 5000)])
    Path(path).write_bytes(Path(path).read_bytes()[:2000])
    result = run("bench", path, "--seconds", "0.01", "--workers", "0")
    assert result.exit_code == 1
    assert "torchdata-ais lint finds all that are bad" in result.stderr


def test_nothing_found_names_no_argument_of_a_function(tmp_path: Path) -> None:
    result = run("lint", f"{tmp_path}/none-*.tar")
    assert result.exit_code == 1
    assert "Check the path" in result.stderr
    assert "allow_empty" not in result.stderr


def test_doctor_shows_the_reason_and_no_object_of_a_library() -> None:
    (check,) = doctor._cluster(StoreOptions(endpoint="http://127.0.0.1:9"))
    assert check.state == "bad"
    assert "refused" in check.text
    assert "Connection(" not in check.text


@pytest.mark.ci
def test_ctrl_c_ends_lint_while_a_node_sends_nothing(
    ais_bucket: Any, ais_cluster: Any, ais_faults: Any
) -> None:
    ais_bucket.object("s-0.tar").get_writer().put_content(b"x" * 2000)
    rule = ais_faults.add(Stall(at=100), bucket=ais_bucket.name)
    words = ["lint", f"ais://{ais_bucket.name}", "--endpoint", ais_cluster.endpoint]
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # off in a shell's background
        "from torchdata_ais.cli import main; main()"
    )
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not ais_faults.fired(rule):
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(15) == 130, "before the node is given up, after 20 s"
        finally:
            process.kill()
