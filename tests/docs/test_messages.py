"""Every message an error of this package can have is found, by its words, in the entry of its class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from torchdata_ais import errors
from torchdata_ais.errors.text import sentence_case

PACKAGE = Path(errors.__file__).parents[1]
ROW = re.compile(r"^\| `([^`]+)` \| .+ \|$", re.MULTILINE)
OTHERS = 6
"""Messages whose first words are in no row: they begin with a value."""
SHORT = 8  # letters: a fragment below says nothing ("…: …")


def rows(guide: str) -> Iterator[tuple[str, str]]:
    """Yield (section, quoted message) of the tables of a guide."""
    for section in re.split(r"^## ", (PACKAGE / "docs" / guide).read_text(), flags=re.MULTILINE)[1:]:
        name, _, body = section.partition("\n")
        if "| it says |" in body:
            yield from ((name, message) for message in ROW.findall(body))


def text_of(node: ast.AST) -> str:
    """Return the text of an expression, with … for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return "…"


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]


def messages() -> Iterator[tuple[str, str, str]]:
    """Yield (class, message, file) of all errors that are built with a text of their own.

    Not those of wrong calls: they say what to write instead. Nor those of the facade, whose texts are webdataset's.
    """
    for path, tree in sources():
        if "webdataset" in path.parts:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at":
                name = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
                if name.endswith("Error") and name != "UsageError" and node.args:
                    yield name, sentence_case(text_of(node.args[0])), path.name


def pieces(message: str) -> list[str]:
    return [piece.strip() for piece in message.split("…") if len(piece.strip()) > 1]


def has(text: str, piece: str) -> bool:
    """Return whether a piece is in the text, be it at the beginning of a sentence in one and not in the other."""
    return piece in text or piece[0].lower() + piece[1:] in text or piece[0].upper() + piece[1:] in text


def test_every_message_has_a_row_in_the_entry_of_its_class() -> None:
    entries: dict[str, list[str]] = {}
    for section, message in rows("errors.md"):
        entries.setdefault(section, []).append(message)
    missing = []
    checked = 0
    for name, message, file in messages():
        if not any(len(piece) >= SHORT for piece in pieces(message)):
            continue
        checked += 1
        if not any(all(has(message, piece) for piece in pieces(quoted)) for quoted in entries.get(name, [])):
            missing.append(f"{name}: {message} ({file})")
    assert not missing, "add rows to docs/errors.md:\n" + "\n".join(missing)
    assert checked > 80


def test_rows_begin_with_the_first_words_of_their_message() -> None:
    """A search for these words finds the row; a few messages begin with a value or a word for it."""
    quoted = [message for _, message in rows("errors.md")]
    others = []
    for _, message, _ in messages():
        first = next((piece for piece in (one.lstrip(":,;. ") for one in pieces(message)) if piece), "")
        words = " ".join(first.split()[:3])
        if len(message) >= SHORT and first and not any(has(row, words) or has(first, row) for row in quoted):
            others.append(message)
    assert len(others) <= OTHERS, others


def test_every_message_quoted_is_one_of_the_package() -> None:
    texts = [
        node.value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    known = "\n".join(re.sub(r"%[ds.\d]+|%r", "…", text) for text in texts)
    stale = [
        f"{section}: {message}"
        for guide in ("errors.md", "debugging.md")
        for section, message in rows(guide)
        if not all(has(known, piece) for piece in pieces(message))
    ]
    assert not stale, stale
