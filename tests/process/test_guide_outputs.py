"""Outputs in guides that take several processes: they are made again and compared, without their numbers.

Times, counts of steps and process ids differ from run to run: every number stands for any other. Lines are wrapped in
guides: white space is compared as one space.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import run_forked
from service_sessions import run_module

import torchdata_ais
from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.errors import LoaderError
from torchdata_ais.examples.pets import make_shards
from torchdata_ais.observe.diagnosis.rank_table import Readiness
from torchdata_ais.testing import example_shards

GUIDES = Path(torchdata_ais.__file__).parent / "docs"
pytestmark = [pytest.mark.ci, pytest.mark.timeout(240)]


def output(guide: str, begin: str) -> str:
    """Return the ``text`` block of a guide that begins so."""
    blocks = re.findall(r"```text\n(.*?)```", (GUIDES / f"{guide}.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if block.startswith(begin)]
    return str(block)


def shape(text: str) -> str:
    """Return an output with every number, unit of time and name of a machine written over."""
    text = re.sub(r"\b\d[\d.,:-]*", "N", text.replace(platform.node(), "node0"))
    return " ".join(re.sub(r"N (ms|us|s)\b", "N s", text).split())


def test_numbers_and_line_ends_are_no_difference() -> None:
    assert shape(f"rank 1 on {platform.node()} holds:\n 5.8 ms") == shape("rank 0 on node0 holds: 12 s")
    assert shape("rank 1") != shape("worker 1")


def test_the_epochs_of_multi_node() -> None:
    begun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    (command,) = re.findall(
        r"^torchrun --nproc-per-node 2 (.*)$", (GUIDES / "multi_node.md").read_text(), re.MULTILINE
    )
    assert shape(run_module(*begun, *command.split(), timeout_s=200)) == shape(
        output("multi_node", "epoch 0")
    )


def seeds_differ(rank: int, job: dict[str, Any]) -> None:
    pipe = AISSourceLister(job["shards"]).shuffle().load_tar().group_samples().decode().to_tuple("cls")
    with ais_loader(pipe.batched(2), seed=rank, epoch_steps=4) as loader:
        list(loader)


def test_ranks_with_other_arguments_of_rank_failures(tmp_path: Path) -> None:
    answers = run_forked(seeds_differ, 2, tmp_path / "job", shards=example_shards(tmp_path))
    expected = output("rank_failures", "UsageError")
    for answer in answers:
        message = f"{answer['kind']}: {answer['error']}".partition("\n")[0]
        assert message == " ".join(expected.split())


def one_is_killed(rank: int, job: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    pipe = AISSourceLister(job["shards"]).load_tar().group_samples().decode().to_tuple("cls").batched(2)
    try:
        with ais_loader(pipe, epoch_steps="shortest") as loader:
            for number, _ in enumerate(loader):
                if rank == 1 and number == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
    except LoaderError as error:
        return f"LoaderError: {error}", dict(error.place)
    raise AssertionError("the rank that is left ended")


def test_a_killed_rank_of_rank_failures(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, [60, 60])
    first, _ = run_forked(one_is_killed, 2, tmp_path / "job", shards=shards)
    message, place = first["value"]
    assert shape(message) == shape(output("rank_failures", "LoaderError"))
    assert place["failed_rank"] == 1


def augment(sample: Any) -> Any:
    time.sleep(0.004 if dist.get_rank() == 1 else 0.00001)
    return sample


def one_augments_slowly(rank: int, job: dict[str, Any]) -> Readiness:
    pipe: Any = AISSourceLister(job["shards"]).load_tar().group_samples()
    pipe = pipe.map_sample(augment).decode().to_tuple("cls").batched(14)
    with ais_loader(pipe, num_workers=1, trace=True, epoch_steps=24) as loader:
        for _ in loader:
            time.sleep(0.005)
            dist.barrier()
        return loader.report(dist.group.WORLD)


def test_the_table_of_tracing(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, [400, 400])
    answers = run_forked(one_augments_slowly, 2, tmp_path / "job", shards=shards)
    assert shape(str(answers[0]["value"])) == shape(output("tracing", "rank   node"))


STALL = """import time
from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.testing import example_shards

def resize(sample):
    if int(sample["cls"]) >= 4:
        time.sleep(60)
    return sample

pipe = AISSourceLister(example_shards("shards", (20, 20))).load_tar().group_samples().decode()
with ais_loader(pipe.map_sample(resize).batched(2), num_workers=2, stall_after=3, run_dir="run") as loader:
    list(loader)
"""


def test_the_flight_record_of_tracing(tmp_path: Path) -> None:
    program = tmp_path / "stall.py"
    program.write_text(STALL)
    (tmp_path / "shards").mkdir()
    ran = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, timeout=100, check=False
    )
    assert b"StallError" in ran.stderr
    (flight,) = (tmp_path / "run").glob("flight-*.json")
    diagnosis, _, _ = run_module("torchdata_ais", "doctor", str(flight), timeout_s=60).partition("\n\n")

    def lasting(text: str) -> str:  # a request of so few bytes may have ended before
        return re.sub(r"^  under way .*\n", "", text, flags=re.MULTILINE)

    printed = lasting(diagnosis.replace(f"{tmp_path}/", ""))
    assert shape(printed) == shape(lasting(output("tracing", "rank 0 of 1")))


def test_the_statistics_of_tuning(tmp_path: Path) -> None:
    """Names, counts of items and the bottleneck; the times are of one machine."""
    for number, shard in enumerate(make_shards([60] * 4)):
        (tmp_path / f"pets-{number}.tar").write_bytes(shard)
    pipe: Any = AISSourceLister(f"{tmp_path}/pets-*.tar").shuffle().load_tar().group_samples()
    pipe = pipe.shuffled(20).decode("torchrgb8", size=224, only="image.jpg cls").to_tuple("image.jpg", "cls")
    with ais_loader(pipe.batched(16), num_workers=2, seed=0) as loader:
        for _ in loader.epochs(4):
            list(loader)
        report = str(loader.stats())
    expected = output("tuning", "stage ")
    header = expected.splitlines()[0]
    width = header.index("items") + len("items")  # to the right of the counts are times

    def counts(table: str) -> list[str]:
        return [line[:width] for line in table.splitlines()[:-1]]

    assert report.splitlines()[0] == header
    assert counts(report) == counts(expected)
    # A quick machine measures less than a second, and the report says so.
    bottleneck, _, _ = report.splitlines()[-1].partition("; only ")
    assert shape(bottleneck) == shape(expected.splitlines()[-1])
