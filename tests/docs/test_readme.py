"""The README is true: its python blocks run and print what stands under them, its commands exist."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchdata_ais import AISSourceLister, Retry
from torchdata_ais.cli import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```\n", re.DOTALL)
PYTHON = re.compile(r"```python\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```\n)?", re.DOTALL)
FILE = re.compile(r"# ((?:conftest|test_\w+)\.py)\n")


def run_blocks() -> list[tuple[str, str]]:
    """Run the python blocks as one session, as a reader would; return (what it prints, what it should) of each."""
    names: dict[str, Any] = {"__name__": "readme"}
    answers = []
    try:
        for block in PYTHON.finditer(TEXT):
            if FILE.match(block["code"]):
                continue
            line = TEXT[: block.start()].count("\n") + 1
            code = compile("\n" * line + block["code"], ROOT / "README.md", "exec")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, names)
            answers.append((printed.getvalue(), block["output"] or ""))
    finally:
        if "cluster" in names:
            names["cluster"].stop()
    return answers


def test_the_python_blocks_print_what_stands_under_them() -> None:
    answers = run_blocks()
    assert len(answers) >= 5
    for printed, stated in answers:
        assert printed == stated


@pytest.mark.ci
def test_the_test_files_of_the_readme_pass(tmp_path: Path) -> None:
    files = {}
    for block in PYTHON.finditer(TEXT):
        if found := FILE.match(block["code"]):
            files[found[1]] = block["code"]
    assert sorted(files) == ["conftest.py", "test_chain.py"]
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_two_commands_stand_there_word_for_word() -> None:
    shell = [code for kind, code in BLOCK.findall(TEXT) if kind == "sh"]
    demo = "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/torchdata-ais demo\n"
    tests = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest -q\n"
    assert shell[:2] == [demo, tests]
    assert tests in (ROOT / ".ci" / "run").read_text()


def test_every_command_and_option_named_exists() -> None:
    named = set(re.findall(r"torchdata-ais (\w[\w-]*)((?: --\w+)*)", TEXT))
    assert {command for command, _ in named} >= {"demo", "serve", "ls", "put", "inspect"}
    for command, options in named:
        shown = CliRunner().invoke(app, [command, "--help"])
        assert shown.exit_code == 0, command
        for option in options.split():
            assert option in shown.stdout


REPOSITORY = re.compile(
    r"https://(?:github\.com/NVIDIA/torchdata-ais/(?:blob|tree)|raw\.githubusercontent\.com/NVIDIA/torchdata-ais)/main/"
)


def test_every_link_holds_on_a_package_index_and_leads_somewhere() -> None:
    """Relative links are dead there; those into the repository lead to what is in it."""
    anchors = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 30
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors, link
            continue
        assert link.startswith("https://"), link
        if found := REPOSITORY.match(link):
            assert (ROOT / link[found.end() :].partition("#")[0]).exists(), link


def test_the_first_screen_says_why_before_how() -> None:
    top, commands, _ = TEXT.partition("## Two commands")
    assert commands
    assert len(re.findall(r"^- \*\*", top, re.MULTILINE)) == 3
    assert len(re.findall(r"^!\[\w[^\]]+\]\(https://", top, re.MULTILINE)) == 2
    assert TEXT.index("## Two commands") < TEXT.index("## Install") < TEXT.index("## The chain")


def test_every_variable_named_is_read() -> None:
    read = "\n".join(path.read_text() for path in (ROOT / "torchdata_ais" / "store").rglob("*.py"))
    for name in set(re.findall(r"`(AIS_\w+)`", TEXT)):
        assert f'"{name}"' in read


def test_every_call_of_the_task_table_is_one_the_stages_accept() -> None:
    names = {"AISSourceLister": AISSourceLister, "Retry": Retry, "is_image": str.isascii}
    lister: Any = AISSourceLister("ais://pets", cluster="http://h:51080")
    sources = {
        ".load_tar": lister,
        ".group_samples": lister.load_tar(),
        ".decode": lister.load_tar().group_samples(),
        ".to_tuple": lister.load_tar().group_samples(),
    }
    calls = [
        call
        for row in re.findall(r"^\|.*\|$", TEXT, re.MULTILINE)
        for call in re.findall(r"`([^`]+\))`", row)
    ]
    calls = [call for call in calls if call.startswith((".", "AISSourceLister"))]
    assert len(calls) >= 10
    for call in calls:
        stage = call.partition("(")[0]
        eval(f"source{call}" if call.startswith(".") else call, {**names, "source": sources.get(stage)})
