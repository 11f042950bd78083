"""The README is true: its python blocks run and print what stands under them, its commands exist."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from torchdata_ais import AISSourceLister, Retry
from torchdata_ais.cli import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```\n", re.DOTALL)
PYTHON = re.compile(r"```python\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```\n)?", re.DOTALL)


def photos(folder: Path) -> None:
    """Make the folder that the README begins with: 84 pictures of two classes."""
    for name, count in (("cat", 40), ("dog", 44)):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (60, 40), (number, 0, 0)).save(folder / "photos" / name / f"{number:03d}.jpg")


def run_blocks(folder: Path) -> list[tuple[str, str]]:
    """Run command and python blocks as one session, as a reader would.

    Returns:
        What each prints, and what it should.
    """
    photos(folder)
    (command,) = re.findall(r"^torchdata-ais (convert .*)$", TEXT, re.MULTILINE)
    assert CliRunner().invoke(app, shlex.split(command)).exit_code == 0
    names: dict[str, Any] = {"__name__": "readme"}
    answers = []
    try:
        for block in PYTHON.finditer(TEXT):
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


def test_the_python_blocks_print_what_stands_under_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = run_blocks(tmp_path)
    assert len(answers) == 2
    for printed, stated in answers:
        assert printed == stated


def test_the_two_commands_stand_there_word_for_word() -> None:
    shell = [code for kind, code in BLOCK.findall(TEXT) if kind == "sh"]
    demo = "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/torchdata-ais demo\n"
    tests = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest -q\n"
    assert {demo, tests} <= set(shell)
    assert tests in (ROOT / ".ci" / "run").read_text()


def test_every_command_and_option_named_exists() -> None:
    named = set(re.findall(r"torchdata-ais (\w[\w-]*)((?: --\w+)*)", TEXT))
    assert {command for command, _ in named} >= {"demo", "convert", "ls", "put", "inspect"}
    for command, options in named:
        shown = CliRunner().invoke(app, [command, "--help"])
        assert shown.exit_code == 0, command
        for option in options.split():
            assert option in shown.stdout


def test_every_link_is_relative_and_leads_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 20
    for link in links:
        place, _, anchor = link.partition("#")
        assert (ROOT / place).exists(), link
        assert place or anchor in anchors, link


def test_the_first_screen_has_ways_in_a_picture_and_code_within_1400_words() -> None:
    assert len(TEXT.split()) <= 1400
    top, *_ = TEXT.partition("## Stream or index")
    assert re.findall(r"^- \*\*(?:an? )?(\w+)", top, re.MULTILINE)[:3] == ["folders", "webdataset", "AIStore"]
    assert len(re.findall(r"^!\[\w[^\]]+\]\(torchdata_ais/docs/images/", top, re.MULTILINE)) == 1
    assert top.count("```python") == 1


def test_the_readme_of_a_distribution_has_no_relative_link() -> None:
    """Read from the file: a build imports it with hatchling alone."""
    spec = importlib.util.spec_from_file_location("readme_hook", ROOT / "docs" / "readme_hook.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = "![A pet](docs/a.jpg)\n\n[one](docs/b.md#c), [two](#d), [three](https://h/e)\n"
    assert hook.readme(text, "") == "one, [two](#d), [three](https://h/e)\n"
    base = "https://example.org/t/blob/main"
    said = f"![A pet]({base}/docs/a.jpg)\n\n[one]({base}/docs/b.md#c), [two](#d), [three](https://h/e)\n"
    assert hook.readme(text, base) == said
    assert not re.search(r"\]\((?!https?:|#)", hook.readme(TEXT, ""))


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
