"""A pipe as a picture: text, mermaid, or the table that notebooks show."""

from __future__ import annotations

from collections.abc import Iterator

from torchdata_ais._util.formatting import html_table
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import parents, upstream
from torchdata_ais.pipes.checkpoint.ledger import Obstacle, obstacle_of

_WIDTH = 64


def draw(pipe: IterDataPipe[object]) -> str:
    """Return the graph of `pipe` as text: one stage a line, data flowing down.

    Each line has the stage with its arguments, its effect on sharding and checkpoints, and its memory bound in one
    process. Branches that meet are indented before the stage that joins them.

    Example:
        >>> from torchdata_ais.pipes import AISFileLoader
        >>> print(draw(AISFileLoader(["a.tar"]).group_samples().shuffled(100).batched(8)))
        IterableWrapper
        sharding_filter   splits over ranks and workers
        load_tar()        position saved                  32 MiB + 1 x (sample + member + 5 MiB)
        group_samples()                                   1 sample + 2 x (2 MB or 22 bytes a sample)
        shuffled(100)     places saved                    100 items
        batched(8)                                        16 items
    """
    if not isinstance(pipe, IterDataPipe):
        raise UsageError.at(
            f"this is no pipe, but a {type(pipe).__name__}", todo="pass the last stage of a chain"
        )
    rows = [(prefix + _short(title), marks, memory) for prefix, title, marks, memory in _rows(pipe)]
    widths = [max(len(row[column]) for row in rows) + 3 for column in range(2)]
    lines = [f"{title:{widths[0]}}{marks:{widths[1]}}{memory}".rstrip() for title, marks, memory in rows]
    return "\n".join(lines)


def mermaid(pipe: IterDataPipe[object]) -> str:
    """Return the graph of `pipe` as a mermaid flowchart.

    GitHub and many notebooks render it.

    Example:
        >>> from torchdata_ais.pipes import Shuffler
        >>> print(mermaid(Shuffler(["a"], 10)))
        flowchart TD
            s0["IterableWrapper"]
            s1["shuffled(10)"]
            s0 --> s1
    """
    stages = list(upstream(pipe))[::-1]
    number = {id(part): index for index, part in enumerate(stages)}
    boxes = [f'    s{index}["{_quoted(stage_of(part).describe())}"]' for index, part in enumerate(stages)]
    arrows = [
        f"    s{number[id(source)]} --> s{index}"
        for index, part in enumerate(stages)
        for source in parents(part)
    ]
    return "\n".join(["flowchart TD", *boxes, *arrows])


def html(pipe: IterDataPipe[object]) -> str:
    """Return the graph of `pipe` as a small table, for notebooks."""
    rows = [
        (prefix.replace(" ", "\N{NO-BREAK SPACE}") + title, marks, memory)
        for prefix, title, marks, memory in _rows(pipe)
    ]
    return html_table(("stage", "sharding, checkpoints", "holds at most"), rows, left=3)


def _rows(pipe: IterDataPipe[object]) -> Iterator[tuple[str, str, str, str]]:
    refused = obstacle_of(pipe)
    for prefix, part in _tree(pipe, set()):
        stage = stage_of(part)
        yield prefix, stage.describe(), marks_of(part, refused), stage.memory_bound().text


def _tree(pipe: IterDataPipe[object], seen: set[int]) -> list[tuple[str, IterDataPipe[object]]]:
    """Return the stages in the order of the data, with the lines left of them."""
    if id(pipe) in seen:  # a fork: drawn where it was met first
        return []
    seen.add(id(pipe))
    above = parents(pipe)
    if len(above) <= 1:
        return [*(_tree(above[0], seen) if above else []), ("", pipe)]
    lines: list[tuple[str, IterDataPipe[object]]] = []
    for branch in above:
        for index, (prefix, part) in enumerate(_tree(branch, seen)):
            lines.append((("|- " if index == 0 else "|  ") + prefix, part))
    return [*lines, ("", pipe)]


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 4] + "...)"


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def marks_of(pipe: IterDataPipe[object], refused: Obstacle | None) -> str:
    """Return a stage's effect on sharding and checkpoints."""
    stage = stage_of(pipe)
    if stage.splits:
        return "splits over ranks and workers"
    if refused:
        return "no checkpoint" if pipe is refused.stage else ""
    if stage.reads:
        return "position saved"
    return "places saved" if stage.resumable and stage.effect().holds else ""
