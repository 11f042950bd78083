"""Readme of the distribution: the README with links that hold outside of the repository.

Hatchling runs it for each build. On a package index relative links lead nowhere: they become absolute where
``repository`` in ``pyproject.toml`` names one, and plain text elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]+\)\n\n?", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


def readme(text: str, repository: str) -> str:
    """Return the text of the README for a distribution.

    Args:
        text: That of the repository.
        repository: The URL before the places of files, such as ``https://example.org/torchdata_ais/blob/main``; empty
            where there is none.
    """
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub("", text))
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({repository}/\1)", text)


class ReadmeHook(MetadataHookInterface):
    """Fills in the readme, which ``pyproject.toml`` names dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        made = readme(text, self.config.get("repository", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": made}
