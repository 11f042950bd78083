"""Start the cluster process: ``python .../local/server/__main__.py``.

Started by its file path, this file has no parent package, so no ``torchdata_ais/__init__`` runs and no torch is
loaded. The folder is made importable under a private name; the script's own entry of ``sys.path`` goes away first, so
that no module of this folder can hide one of the standard library.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

NAME = "_ais_local_server"


def load() -> object:
    """Import this folder as package `NAME` and return its `serving` module."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    spec = importlib.util.spec_from_file_location(NAME, here / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{NAME}.serving")


if __name__ == "__main__":
    load().main()  # type: ignore[attr-defined]
