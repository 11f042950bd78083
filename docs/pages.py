"""Makes pages of the site out of texts that stand elsewhere in the repository, as they are.

README, changelog and the guides in the package link to each other by their places in the repository. `on_files` adds
them, `on_page_markdown` turns those links, and the absolute ones of the README, into links between pages.
"""

from __future__ import annotations

import posixpath
import re
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
REPOSITORY = re.compile(
    r"https://(?:github\.com/NVIDIA/torchdata-ais/(?:blob|tree)|raw\.githubusercontent\.com/NVIDIA/torchdata-ais)/main/"
)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[#)])")


def sources() -> dict[str, Path]:
    """Return the pages by their place in the site: that in the repository, without the package's folder."""
    paths = [ROOT / name for name in TEXTS]
    paths += sorted((ROOT / PACKAGE).glob("*/*.md"))
    return {path.relative_to(ROOT).as_posix().removeprefix(PACKAGE): path for path in paths}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages."""
    for place, path in sources().items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001 - mkdocs' names
    """Link to the page where there is one, and to the repository elsewhere."""
    here = posixpath.dirname(page.file.src_uri)

    def linked(found: re.Match[str]) -> str:
        target = found[1]
        absolute = REPOSITORY.match(target)
        if not absolute and "://" in target:
            return target
        place = target[absolute.end() :] if absolute else posixpath.normpath(posixpath.join(here, target))
        for name in (place.removeprefix(PACKAGE), place.removeprefix("docs/")):
            if files.get_file_from_path(name):
                return posixpath.relpath(name, here or ".")
        return target

    return LINK.sub(linked, markdown)
