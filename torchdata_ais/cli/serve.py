"""``torchdata-ais serve``: an embedded cluster that stays up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from torchdata_ais.cli._echo import echo
from torchdata_ais.cli._run import command
from torchdata_ais.errors import ConnectError

_LIVENESS_S = 0.5


@command("torchdata_ais.local")
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 51080,
    root: Path | None = None,
    targets: Annotated[int, typer.Option(min=1)] = 2,
    etl: bool = False,
) -> None:
    """Run an AIStore cluster on this machine until Ctrl-C.

    It is embedded, in pure Python, for tests and trials. Use it in another shell by the lines it prints.
    AIS_AUTHN_TOKEN is for making and changing transforms (--etl), which run code as you: keep it to yourself.

    Args:
        port: Port of the proxy on 127.0.0.1; 0 takes a free one.
        root: Folder for the data, kept. Default: a temporary one, removed at the end.
        targets: Number of targets.
        etl: Run transforms: they may do all that you may.

    Examples:
        torchdata-ais serve
        torchdata-ais serve --root /data/ais --port 0
    """
    from torchdata_ais.local import LocalCluster

    with LocalCluster(targets=targets, root=root, port=port, etl=etl) as cluster:
        echo(f"export AIS_ENDPOINT={cluster.endpoint}")
        typer.echo(f"export AIS_AUTHN_TOKEN={cluster.token}")  # echo would hide it
        echo(f"data in {cluster.root}; stop with Ctrl-C", err=True)
        try:
            while cluster.running:
                time.sleep(_LIVENESS_S)
        except KeyboardInterrupt:
            return
    raise ConnectError.at(
        "the cluster's process has ended", todo=f"look at {root or 'the temporary folder'}/server.log"
    )
