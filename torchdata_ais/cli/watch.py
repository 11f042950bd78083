"""``torchdata-ais watch``: how a running job stands, rank by rank, and who holds it up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, command

if TYPE_CHECKING:
    from torchdata_ais.observe.across import Readiness

_MOST_RANKS = 32


@command("torchdata_ais.observe.across")
def watch(
    run_dir: str,
    every: Annotated[float, typer.Option(min=0)] = 0.0,
    page: str = "",
    as_json: AsJson = False,
) -> None:
    """Show how each rank of a running job stands, and in one sentence which one holds the others up, and why.

    The ranks tell every 5 s, in small files; nothing is asked of them. Of many ranks those are shown that waited most.

    Args:
        run_dir (FOLDER): The run_dir= that the program passes to ais_loader.
        every: Look again every so many seconds; 0: once.
        page (FILE): Also write a page with plots there.
        as_json: Print one JSON object a look.

    Examples:
        torchdata-ais watch runs/7
        torchdata-ais watch runs/7 --every 5
        torchdata-ais watch runs/7 --page run.html
    """
    from torchdata_ais.cli._files import check_new_file
    from torchdata_ais.observe.across import readiness_of
    from torchdata_ais.observe.run_folder import read_run
    from torchdata_ais.observe.watch_page import write_page

    check_new_file(Path(page) if page else None)
    while True:
        found = readiness_of(*read_run(run_dir))
        if as_json:
            echo_json(_plain(found))
        else:
            _show(found)
        if page:
            write_page(found, Path(page))
        if not every:
            return
        time.sleep(every)


def _plain(found: Readiness) -> dict[str, object]:
    from torchdata_ais.observe.across import row_of

    head = ("rank", "node", "step", "wait_p50", "wait_p99", "loop_p50", "waited", "worker", "skipped")
    verdict = found.verdict
    return {
        "sentence": found.sentence,
        "cause": verdict.cause,
        "rank": verdict.rank,
        "place": verdict.place,
        "missing": found.missing,
        "notes": found.notes,
        "ranks": [dict(zip(head, row_of(one), strict=True)) for one in found.ranks],
    }


def _show(found: Readiness) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from torchdata_ais.cli._echo import shown_line
    from torchdata_ais.observe.across import HEAD, row_of

    table = Table(box=None, pad_edge=False)
    for name in HEAD:
        table.add_column(name, justify="left" if name == "node" else "right")
    most = sorted(found.ranks, key=lambda one: -one.wait.total_s)[:_MOST_RANKS]
    for one in sorted(most, key=lambda one: one.rank):
        style = "bold yellow" if one.rank == found.verdict.rank else ""
        table.add_row(*(Text(shown_line(cell), style) for cell in row_of(one)))
    Console(highlight=False).print(table)
    if len(found.ranks) > _MOST_RANKS:
        echo(f"{len(found.ranks)} ranks; shown are the {_MOST_RANKS} that waited longest")
    echo(*(f"note: {note}" for note in found.notes), found.sentence)
