"""Promise 7 against shards, pictures and compressed fields made to take memory: it stays flat, and errors say why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("hostile_program.py")
COUNT = 40_000  # members of a case; 1,000,000 peak at the same
FLAT = 24  # MiB: what Python's own allocation makes uncertain, and blocks of 1 MiB

pytestmark = pytest.mark.ci

SHARDS = {
    "empty members of one key": '[["z"], {"SampleError": 1}]',
    "members without a key": '[["z"], {}]',
    "members without a key behind a sample": '[["a", "z"], {}]',
    "long names": '[["z"], {"SampleError": 1}]',
    "long names of wide characters": '[["z"], {"SampleError": 1}]',
    "a name of 400 kB": '[[], {"BadHeaderError": 1}]',
    "one global name": '[[], {"SampleError": 1}]',
    "extension headers alone": '[[], {"BadHeaderError": 1}]',
    "global headers alone": "[[], {}]",
    "links": '[["z"], {"SampleError": 1}]',
    "samples with long keys": '[["z"], {}]',
}
FIELDS = [
    "a line of 20000 pixels, shorter=224",
    "a line of 20000 pixels, mask",
    "a line of 20000 pixels, rgba",
    "a column of a million pixels, size=224",
    "a large png",
    "a large png as pil",
    "a large mask",
    "16 bits and four channels",
    "a large png in an icon",
    "a large png in an icns",
    "a large gif of several frames",
    "a large tiff of several frames",
    "a large webp",
    "a large jpeg",
    "a large grey jpeg",
]


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[float, str]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), str(COUNT)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", SHARDS)
def test_promise_7_a_shard_made_to_take_memory(case: str, measured: dict[str, tuple[float, str]]) -> None:
    peak, outcome = measured[case]
    assert outcome == SHARDS[case]
    assert peak < FLAT


@pytest.mark.parametrize("case", FIELDS)
def test_promise_7_a_picture_made_to_take_memory(case: str, measured: dict[str, tuple[float, str]]) -> None:
    peak, outcome = measured[case]
    assert outcome.startswith("DecodeError: Field ")
    assert "max_pixels=" in outcome
    assert "Raise max_pixels=" in outcome
    assert '"key": "k", "field": ' in outcome
    assert peak < FLAT


def test_promise_7_a_field_is_never_held_twice_while_it_is_unpacked(
    measured: dict[str, tuple[float, str]],
) -> None:
    peak, outcome = measured["gzip of 300 MB"]
    assert "unpack to more than max_gz_bytes=8388608" in outcome
    assert peak < 8 + FLAT
    peak, outcome = measured["gzip of 64 MB, allowed"]
    assert outcome == "bytes"
    assert peak < 64 + FLAT
