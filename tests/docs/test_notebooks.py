"""The notebooks run from top to bottom, on an embedded cluster, and what they kept of a run is small and clean."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
MAX_BYTES = 250_000


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def text_of(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def printed(path: Path) -> list[str]:
    """Return what each cell prints, with numbers and the bottleneck of a machine written over."""
    texts = []
    for cell in code_cells(path):
        shown = [
            text_of(output.get("text") or output.get("data", {}).get("text/plain", ""))
            for output in cell["outputs"]
            if output.get("name") != "stderr"
        ]
        text = re.sub(r"processes, .*", "", "\n".join(shown))
        texts.append(" ".join(re.sub(r"\b(0x[0-9a-f]+|\d[\d.]*( [kM]?B\b| m?s\b)?)", "N", text).split()))
    return texts


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the developer's cluster, and end all that it leaves behind."""
    environment = {name: value for name, value in os.environ.items() if name != "AIS_ENDPOINT"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    # A notebook keeps its data, for whoever goes on with it; here they are removed.
    environment["TMPDIR"] = data = tempfile.mkdtemp()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=150)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(data)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def test_there_is_a_first_notebook_and_one_for_each_workflow() -> None:
    assert [name[:2] for name in NAMES] == ["0_", "a_", "b_", "c_", "d_"]
    first = json.loads(NOTEBOOKS[0].read_text())["cells"]
    assert len(first) == 10
    text = "\n".join(text_of(cell["source"]) for cell in first)
    for shown in (
        "LocalCluster(",
        "display_shard_images(",
        "progress(",
        ".stats()",
        "SampleIndex",
        "load_state_dict(",
    ):
        assert shown in text


def test_the_table_of_guides_links_every_notebook() -> None:
    table = (ROOT / "torchdata_ais" / "docs" / "README.md").read_text()
    assert all(f"](../../notebooks/{path.name})" in table for path in NOTEBOOKS)


def test_the_pictures_of_the_notebooks_say_what_they_show() -> None:
    """Masks are decoded as masks, classes have names, and no notebook leaves the kernel in another folder."""
    sources = {
        path.stem[0]: "\n".join(text_of(cell["source"]) for cell in code_cells(path)) for path in NOTEBOOKS
    }
    assert 'imagehandler("torchmask", "trimap.png")' in sources["b"]
    assert "classes=FLOWERS" in sources["c"]
    assert not any("os.chdir" in source for source in sources.values())


KERNELS = bool(importlib.util.find_spec("nbmake") and importlib.util.find_spec("ipykernel"))


@pytest.mark.ci
@pytest.mark.timeout(170)
@pytest.mark.skipif(KERNELS, reason="runs in a kernel, by the test below")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """Its code as one program: what a kernel does, without the packages that a kernel needs."""
    program = tmp_path / f"{path.stem}.py"
    program.write_text("\n\n".join(text_of(cell["source"]) for cell in code_cells(path)))
    done = run([sys.executable, str(program)], tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr


@pytest.mark.ci
@pytest.mark.timeout(170)
@pytest.mark.skipif(not KERNELS, reason="needs [notebooks]")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_prints_in_a_kernel_what_it_keeps(path: Path, tmp_path: Path) -> None:
    ran = tmp_path / path.name
    shutil.copy(path, ran)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbmake",
        "--overwrite",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        str(ran),
    ]
    done = run([*command, "--rootdir", str(tmp_path)], tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
    assert printed(ran) == printed(path), "store the outputs of a run of today in the notebook"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_the_outputs_kept_are_of_one_whole_run_and_small(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [
        output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"
    ]
    assert path.stat().st_size < MAX_BYTES
    assert not any(word in path.read_text() for word in ("/home/", "/root/", "/Users/"))
