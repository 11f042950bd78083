"""Shows docstrings as griffe and Markdown understand them.

Examples and literal blocks are code. Order, memory, and what is yielded are paragraphs: griffe takes sections that it
does not know for admonitions, and the words before a colon for a type.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

SECTION = re.compile(
    r"^(?P<name>Example:|Order|Memory|Yields|Returns):\n(?P<body>(?: +\S.*\n|\n)+)", re.MULTILINE
)
WORDS_BEFORE_COLON = re.compile(r"\S*[` ][^\n]*?:\s")
DOCTEST = re.compile(r"^>>> .*\n(?:\S.*\n)*", re.MULTILINE)
LITERAL = re.compile(r"^(?P<text>.*?) ?::\n(?=\n* +\S)", re.MULTILINE)


def section(found: re.Match[str]) -> str:
    """Return a section as the site shows it."""
    name, body = found["name"], textwrap.dedent(found["body"]).strip() + "\n"
    if name == "Example:":
        return "Examples:\n" + textwrap.indent(f"```python\n{body}```\n\n", "    ")
    if name == "Returns" and not WORDS_BEFORE_COLON.match(body):
        return found[0]
    return f"**{name}:** " + DOCTEST.sub(r"\n```pycon\n\g<0>```\n", body) + "\n"


def shown(text: str) -> str:
    """Return a docstring as the site shows it."""
    text = SECTION.sub(section, text + "\n")
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return LITERAL.sub(lambda found: f"{found['text']}:\n" if found["text"].strip() else "\n", text).rstrip()


class Examples(griffe.Extension):
    """Rewrites each docstring while a module is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = shown(obj.docstring.value)
