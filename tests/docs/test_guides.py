"""The guides are true: their python blocks run and print what stands under them, and no error class is left out."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from torchdata_ais import errors
from torchdata_ais.cli import app

FOLDER = Path(errors.__file__).parents[1] / "docs"
GUIDES = sorted(FOLDER.glob("*.md"))
PYTHON = re.compile(r"```python\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```\n)?", re.DOTALL)
COMMANDS = re.compile(
    r"```sh\n(?P<code>(?:torchdata-ais [^\n]+\n)+)```\n```text\n(?P<output>.*?)```\n", re.DOTALL
)
TIMES = re.compile(r" *\b[\d.]+ (ms|s)\b")
LONG = ["large_jobs"]
"""Guides whose blocks take more than a second."""
NEEDS = re.compile(r"# needs: ([\w.]+)(?:>=([\d.]+))?\n")
LINK = re.compile(r"\]\(([\w./]+\.md)(?:#[\w-]+)?\)")


def is_there(library: str, least: str | None) -> bool:
    """Return whether a library, or a part of one (``nvidia.dali``), can be imported, and is not older than `least`."""
    try:
        there = importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:
        return False
    return there and (least is None or Version(version(library)) >= Version(least))


def output_of(commands: str) -> str:
    """Return what commands print, one a line; times are left out, since they differ."""
    done = [CliRunner().invoke(app, shlex.split(line)[1:]) for line in commands.splitlines()]
    return TIMES.sub("", "".join(one.stdout for one in done))


def run_blocks(guide: Path, *, others: bool) -> int:
    """Run the python blocks of a guide as one session, with those that need a library that is there if `others`.

    Commands with their output under them are run, too.

    Returns:
        How many of those ran.
    """
    text = guide.read_text()
    names: dict[str, Any] = {"__name__": "guide"}
    ran = 0
    blocks = sorted([*PYTHON.finditer(text), *COMMANDS.finditer(text)], key=lambda block: block.start())
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        if block.re is COMMANDS:
            assert output_of(block["code"]) == TIMES.sub("", block["output"]), f"{guide.name}, line {line}"
            continue
        if needs := NEEDS.match(block["code"]):
            if not others or not is_there(needs[1], needs[2]):
                continue
            ran += 1
        code = compile("\n" * line + block["code"], guide, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == (block["output"] or ""), f"{guide.name}, line {line}"
    return ran


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logger = logging.getLogger("torchdata_ais")  # a guide sets its level
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.quick(6)
@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(
    "guide",
    [pytest.param(one, marks=[pytest.mark.ci] if one.stem in LONG else []) for one in GUIDES],
    ids=lambda path: path.stem,
)
def test_the_python_blocks_of_a_guide_print_what_stands_under_them(guide: Path) -> None:
    run_blocks(guide, others=False)


WITH_OTHERS = [guide for guide in GUIDES if re.search(r"^# needs: ", guide.read_text(), re.MULTILINE)]


@pytest.mark.ci
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("default")  # what other libraries warn of is theirs
@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("guide", WITH_OTHERS, ids=lambda path: path.stem)
def test_the_blocks_for_other_libraries_print_what_stands_under_them(
    guide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose library is there; `.ci/run` installs ``[guides]``."""
    for name in ("HF_HUB_OFFLINE", "NO_ALBUMENTATIONS_UPDATE"):
        monkeypatch.setenv(name, "1")
    if not run_blocks(guide, others=True):
        pytest.skip("none of its libraries is there: pip install -e '.[guides]'")


def test_the_extra_for_guides_brings_what_their_blocks_need() -> None:
    texts = "".join(guide.read_text() for guide in WITH_OTHERS)
    project = (FOLDER.parents[1] / "pyproject.toml").read_text()
    extra = re.search(r"^guides = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert extra is not None
    brought = set(re.findall(r"\b(\w+)\b", extra[1]))
    others = {
        "soundfile": "audio",
        "nvidia.dali": "nvidia",
        "torchdata.nodes": "nodes",
    }  # packages, and extras of ours
    others |= dict.fromkeys(("accelerate", "datasets", "transformers"), "hf")
    for library in {name for name, _ in NEEDS.findall(texts)} - {"torch"}:
        assert others.get(library, library) in brought, library


def error_classes() -> dict[str, type[errors.AISError]]:
    """Return all error classes of the package, wherever they are defined."""
    sources = [path for path in FOLDER.parent.rglob("*.py") if "class " in path.read_text()]
    found: dict[str, type[errors.AISError]] = {}
    for path in sources:
        if re.search(r"^class \w+\(.*Error\b.*\):", path.read_text(), re.MULTILINE):
            name = ".".join(path.relative_to(FOLDER.parents[1]).with_suffix("").parts).removesuffix(
                ".__init__"
            )
            for value in vars(importlib.import_module(name)).values():
                if inspect.isclass(value) and issubclass(value, errors.AISError):
                    found[value.__name__] = value
    return {name: value for name, value in found.items() if not name.startswith("_")}


def test_every_error_class_has_its_entry_and_no_other_has_one() -> None:
    text = (FOLDER / "errors.md").read_text()
    entries = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    classes = error_classes()
    assert sorted(entries) == sorted(classes)
    linked = re.findall(r"\[(\w+)\]\(#(\w+)\)", text)  # GitHub and the site make the same anchors
    assert sorted(linked) == sorted((name, name.lower()) for name in classes)


def test_the_kinds_of_lint_are_explained() -> None:
    folder = FOLDER.parent / "cli" / "checks"
    text = "\n".join(path.read_text() for path in folder.glob("*.py"))
    kinds = set(re.findall(r"Problem\(\s*\"(\w+)\"", text))
    assert kinds == set(
        re.findall(r"^\| `(\w+)`(?: \(note\))? \|", (FOLDER / "inspecting.md").read_text(), re.MULTILINE)
    )


def test_every_entry_says_what_to_do() -> None:
    text = (FOLDER / "errors.md").read_text()
    for entry in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name, _, body = entry.partition("\n")
        raised = name not in ("TransportError", "UsageError")
        assert "**Remedy:**" in body or not raised, name
        builtins = [
            base.__name__ for base in error_classes()[name].__bases__ if base.__module__ == "builtins"
        ]
        shown = ("FileNotFoundError", "ConnectionError", "TimeoutError", "EOFError", "PermissionError")
        for builtin in set(builtins) & set(shown):
            assert builtin in body, f"{name} is also a {builtin}"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_the_links_and_commands_of_a_guide_exist(guide: Path) -> None:
    text = guide.read_text()
    for target in LINK.findall(text):
        assert (guide.parent / target).exists(), target
    for command, rest in re.findall(r"torchdata-ais (\w[\w-]*)([^`\n]*)", text):
        shown = CliRunner().invoke(app, [command, "--help"])
        assert shown.exit_code == 0, command
        for option in re.findall(r"--[\w-]+", rest):
            assert option in shown.stdout, f"{command} {option}"
    for path in re.findall(r"`torchdata_ais/([\w/]+\.py)`", text):
        assert (FOLDER.parent / path).exists(), path


def test_the_index_names_every_guide() -> None:
    named = set(LINK.findall((FOLDER / "README.md").read_text()))
    assert {path.name for path in GUIDES} - {"README.md"} <= named


def test_names_of_the_package_in_the_guides_exist() -> None:
    """Every ``name(argument=`` of a guide is an argument that the stage, or the class, has."""
    import torchdata_ais
    from torchdata_ais.pipes import AISFileLoader, SampleDecoder, TarSampleGrouper, TupleMaker

    owners: dict[str, Any] = {
        "load_tar": AISFileLoader,
        "group_samples": TarSampleGrouper,
        "decode": SampleDecoder,
        "to_tuple": TupleMaker,
        "ais_loader": torchdata_ais.ais_loader,
        "StoreOptions": torchdata_ais.StoreOptions,
        "Retry": torchdata_ais.Retry,
    }
    from torchdata_ais.codecs import Decoder

    extra = set(inspect.signature(Decoder).parameters)
    checked = 0
    for guide in GUIDES:
        for name, argument in re.findall(r"\b(\w+)\((?:\.\.\.,\s*)?(\w+)=", guide.read_text()):
            if name in owners:
                assert argument in set(inspect.signature(owners[name]).parameters) | extra, (
                    f"{name}({argument}=)"
                )
                checked += 1
    assert checked > 15


BRINGS = {
    "albumentations": {"numpy"},
    "hydra": {"omegaconf"},
    "nvidia.dali": {"numpy"},
    "transformers": {"tokenizers"},
}
"""What comes with a library that a block needs."""


def test_python_blocks_need_nothing_but_the_package() -> None:
    """A block that needs another library says so in its first line, so that it is not run without."""
    for guide in GUIDES:
        for block in PYTHON.finditer(guide.read_text()):
            modules = set(re.findall(r"^(?:from|import) (\w+)", block["code"], re.MULTILINE))
            foreign = (
                modules
                - {"torch", "torchdata", "pyarrow", "numpy", "PIL", "torchdata_ais"}
                - set(sys.stdlib_module_names)
            )
            needs = NEEDS.match(block["code"])
            brought = {needs[1].partition(".")[0]} | BRINGS.get(needs[1], set()) if needs else set()
            assert foreign <= brought, guide.name


def test_the_readme_leads_to_the_table_of_guides() -> None:
    assert "](torchdata_ais/docs/README.md)" in (FOLDER.parents[1] / "README.md").read_text()
