"""The documentation site: one command builds it, strictly, and it holds every guide and every public name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
    assert guides == set(re.findall(r"^ +-(?: [\w, ]+:)? docs/(\w+\.md)$", config, re.MULTILINE))
    assert {path.name for path in PAGES.glob("*.md")} == set(
        re.findall(r"-(?: [\w ]+:)? api/(\w+\.md)$", config, re.MULTILINE)
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


class Links(HTMLParser):
    """The local links and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.anchors.update(value for name, value in attrs if name == "id" and value)
        self.targets += [value for name, value in attrs if name in ("href", "src") and value]


def dead_links(site: Path) -> list[str]:
    """Return links and pictures of the pages whose file or anchor does not exist."""
    pages = {path: Links(path) for path in site.rglob("*.html") if path.name != "404.html"}
    dead = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            anchors = pages[file].anchors if file in pages else set()
            lacks_anchor = bool(parts.fragment) and unquote(parts.fragment) not in anchors
            if not parts.scheme and (not file.exists() or lacks_anchor):
                dead.append(f"{path.relative_to(site)}: {target}")
    return dead


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
    assert not dead_links(tmp_path.resolve())
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]*src="?https?:|<link[^>]*href="?https?:|url\(.?https?:"""
    )
    assert not [path for path in tmp_path.rglob("*.html") if loaded.search(path.read_text())]
    start = (tmp_path / "index.html").read_text()
    assert 'href="docs/order/"' in start  # absolute in the README
    assert 'src="docs/images/pets.jpg"' in start
    reading = (tmp_path / "api" / "reading" / "index.html").read_text()
    assert "Brace templates" in reading
    assert 'class="highlight"' in reading  # the examples of docstrings are code
    for page in (tmp_path / "api").rglob("*.html"):
        text = page.read_text()
        assert "<blockquote" not in text, page  # and so are those below "Memory:"
        assert "Example:" not in text, page
    assert '<span class="whole">--help</span>' in (tmp_path / "docs/command_line/index.html").read_text()
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
