"""Shows the examples of docstrings as code: ours say ``Example:``, griffe knows ``Examples:``."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section while a module is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename it in one docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
