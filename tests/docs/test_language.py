"""Docstrings and guides follow the language rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "torchdata_ais"
CLAUSE = re.compile(r"(What|Where|Which|Who|How|Whether)\b")
AVOIDED = re.compile(
    r"\b(told|tells|heard|stands|lies|begun|nobody|somebody|whoever|anew|alike|beside|behind|neighbours?|rooms?|house|floor"
    r"|goes on|of its own|is no|are no)\b",
    re.IGNORECASE,
)
EXAMPLES = re.compile(r"^\s*(>>>|\.\.\.).*$", re.MULTILINE)


@cache
def docstrings() -> dict[str, str]:
    """Return the docstrings of modules, classes and functions, by file and line."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    found[f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}"] = text
    return found


def test_first_lines_are_short_and_no_clauses() -> None:
    first = {place: text.partition("\n")[0] for place, text in docstrings().items()}
    assert not [(place, line) for place, line in first.items() if len(line) > 72 or CLAUSE.match(line)]


def test_avoided_words_are_at_most_one_in_a_thousand() -> None:
    texts = {place: EXAMPLES.sub("", text) for place, text in docstrings().items()}
    words = sum(len(text.split()) for text in texts.values())
    found = [(place, word[0]) for place, text in texts.items() for word in AVOIDED.finditer(text)]
    assert len(found) <= words / 1000, found


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a guide without code, tables and headings; inline code counts as a word."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d+\. |\||#)", text):
        if not paragraph.startswith(("|", "#", "<")):
            plain = re.sub(r"`[^`]*`", "CODE", " ".join(paragraph.split()))
            yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z`\[*C])", plain)


def test_sentences_of_guides_and_notebooks_have_at_most_25_words() -> None:
    assert [len(one.split()) for one in sentences("One two. `a b` four\nfive:\n\n- Six\n\n| a b |\n")] == [
        2,
        3,
        2,
    ]
    guides = [*(PACKAGE / "docs").glob("*.md"), PACKAGE.parent / "README.md"]
    texts = {guide.name: guide.read_text() for guide in guides}
    for notebook in (PACKAGE.parent / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        text = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        texts[notebook.name] = "\n\n".join(text)
    long = [
        f"{name}: {one}" for name, text in texts.items() for one in sentences(text) if len(one.split()) > 25
    ]
    assert not long, "\n".join(long)


def test_causes_of_errors_are_sentences_of_at_most_25_words() -> None:
    cells = re.findall(r"^\| `[^`]+` \| (.+) \|$", (PACKAGE / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert len(cells) > 200
    assert not [cell for cell in cells if cell[-1] not in ".?" or cell[0].islower()]
    assert not [one for cell in cells for one in sentences(cell) if len(one.split()) > 25]
