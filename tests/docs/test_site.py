"""The documentation site: one command builds it, strictly, and it holds every guide and every public name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchdata_ais

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "api"


def test_every_public_name_stands_in_the_reference() -> None:
    text = "\n".join(path.read_text() for path in PAGES.glob("*.md"))
    named = set(re.findall(r"^::: torchdata_ais\.(\w+)$", text, re.MULTILINE))
    public = set(torchdata_ais.__all__) - {"__version__", "AISError"}  # the errors have a page as a whole
    assert public <= named | {"errors"}, sorted(public - named)


def test_every_guide_stands_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    guides = {path.name for path in (ROOT / "torchdata_ais" / "docs").glob("*.md")}
    assert guides == set(re.findall(r"^ +- docs/(\w+\.md)$", config, re.MULTILINE))
    assert {path.name for path in PAGES.glob("*.md")} == set(
        re.findall(r"- api/(\w+\.md)$", config, re.MULTILINE)
    )


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


needs_mkdocs = pytest.mark.skipif(
    not (importlib.util.find_spec("material") and importlib.util.find_spec("mkdocstrings")),
    reason="needs [docs]",
)


@pytest.mark.ci
@pytest.mark.timeout(240)
@needs_mkdocs
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    """No dead link, no dead anchor, no page that nobody reaches; links between pages stay on the site."""
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    start = (tmp_path / "index.html").read_text()
    assert 'href="docs/order/"' in start  # absolute in the README
    assert 'src="docs/images/pets.jpg"' in start
    reading = (tmp_path / "api" / "reading" / "index.html").read_text()
    assert "Brace templates" in reading
    assert 'class="highlight"' in reading  # the examples of docstrings are code
    assert "AISSourceLister" in (tmp_path / "search" / "search_index.json").read_text()


@pytest.mark.ci
@pytest.mark.timeout(240)
@needs_mkdocs
def test_a_dead_link_is_an_error(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    docs = tmp_path / "docs"
    (docs / "api").mkdir(parents=True)
    (docs / "index.md").write_text("# A\n\n[gone](nowhere.md)\n")
    start = config.index("nav:\n  - Start")
    small = re.sub(r"^hooks:.*\n", "", config[:start], flags=re.MULTILINE) + "nav: [index.md]\n"
    (tmp_path / "mkdocs.yml").write_text(small.replace("[docs/docstrings.py]", "[]"))
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr
