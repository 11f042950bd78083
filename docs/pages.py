"""Makes pages of the site out of texts that stand elsewhere in the repository, as they are.

README, changelog and the guides in the package link to each other by their places in the repository. `on_files` adds
them, `on_page_markdown` turns those links into links between pages.
"""

from __future__ import annotations

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PACKAGE = "torchdata_ais/"
TEXTS = (
    "README.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
INLINE_CODE = re.compile(r"<code>([^<\n]+)</code>")
LONG_WORD = 24


def sources() -> dict[str, Path]:
    """Return pages and pictures by their place in the site: that in the repository, without the package's folder."""
    paths = [ROOT / name for name in TEXTS]
    paths += sorted((ROOT / PACKAGE).glob("*/*.md"))
    paths += sorted((ROOT / PACKAGE / "docs" / "images").iterdir())
    return {path.relative_to(ROOT).as_posix().removeprefix(PACKAGE): path for path in paths}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages."""
    for place, path in sources().items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001 - mkdocs' names
    """Link to the page where there is one; name files that are not on the site without a link."""
    here = posixpath.dirname(page.file.src_uri)
    if here == "docs":
        page.meta.setdefault("search", {"boost": 2})  # a guide is found before the reference

    def linked(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        if "://" in target:
            return found[0]
        place = posixpath.normpath(posixpath.join(here, target))
        for name in (place.removeprefix(PACKAGE), place.removeprefix("docs/")):
            if files.get_file_from_path(name):
                return f"[{text}]({posixpath.relpath(name, here or '.')}{anchor or ''})"
        there = (Path(page.file.abs_src_path).parent / target).exists()
        return text if there else found[0]  # not a link, but code

    return LINK.sub(linked, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep the words of inline code whole: a browser would break a line within ``--help``. Long ones may break."""

    def whole(word: str) -> str:
        return f'<span class="whole">{word}</span>' if 1 < len(unescape(word)) <= LONG_WORD else word

    return INLINE_CODE.sub(
        lambda code: "<code>" + " ".join(whole(word) for word in code[1].split(" ")) + "</code>", html
    )
