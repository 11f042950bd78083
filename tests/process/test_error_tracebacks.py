"""What an expected error prints when nobody catches it is short, with and without workers; it begins with the cause."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchdata_ais import AISSourceLister, Retry, ais_loader
from torchdata_ais.errors import ConnectError, NotFoundError
from torchdata_ais.local import LocalCluster
from torchdata_ais.testing import example_shards

PROGRAM = """
import sys
from torchdata_ais.loaders import ais_loader
from torchdata_ais.pipes import AISFileLoader
from torchdata_ais.writing import TarWriter
if __name__ == "__main__":
    path, workers = sys.argv[1], int(sys.argv[2])
    with TarWriter(path) as writer:
        writer.write({"__key__": "a", "cls": b"1"})
    for _ in ais_loader(AISFileLoader([path]).group_samples().to_tuple("jpg"), num_workers=workers):
        pass
"""


@pytest.mark.ci
@pytest.mark.parametrize("workers", [0, 1])
def test_the_traceback_of_a_wrong_field_is_short_and_says_where(tmp_path: Path, workers: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), str(tmp_path / "s.tar"), str(workers)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=80)
    lines = done.stderr.splitlines()
    assert len(lines) <= 40, done.stderr
    assert any(
        line.startswith("torchdata_ais.errors.MissingFieldError: The sample 'a' has") for line in lines
    )
    assert ("worker process 0" in done.stderr) == bool(workers)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("shards")
    example_shards(folder)
    with LocalCluster() as cluster:
        cluster.put_dir(folder, "ais://pets")
        yield cluster


@pytest.mark.parametrize("workers", [None, 0])
@pytest.mark.parametrize(
    ("source", "down"),
    [("ais://nope", False), ("ais://pets/x-{0..3}.tar", False), ("ais://pets/x-{0..3}.tar", True)],
    ids=["wrong bucket", "wrong shard", "cluster down"],
)
def test_the_traceback_of_what_cannot_be_read_is_short(
    shards: LocalCluster, source: str, down: bool, workers: int | None
) -> None:
    cluster = "http://127.0.0.1:9" if down else shards
    pipe = AISSourceLister(source, cluster=cluster).load_tar(retry=Retry(attempts=1)).group_samples()
    pipe = pipe.shuffled(10).decode().to_tuple("cls").batched(2)
    with pytest.raises((NotFoundError, ConnectError)) as caught:
        list(pipe if workers is None else ais_loader(pipe, num_workers=workers))
    text = "".join(traceback.format_exception(caught.value))
    assert len(text.splitlines()) <= 40, text
    assert any(line.startswith("torchdata_ais.errors.") for line in text.splitlines()[-4:])
