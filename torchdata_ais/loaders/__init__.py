"""What drives a pipe: the reading service for DataLoader2, `ais_loader`, datasets for torch's loaders, state.

Names are imported on first use, so that importing this package imports neither torch nor torchdata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata_ais.loaders.bare import load_state_dict, state_dict
    from torchdata_ais.loaders.dataset import as_dataset
    from torchdata_ais.loaders.drawing import draw, mermaid
    from torchdata_ais.loaders.explanation import Explanation, explain
    from torchdata_ais.loaders.loader import AISLoader, ais_loader
    from torchdata_ais.loaders.reading_service import MultiProcessingReadingService
    from torchdata_ais.loaders.report import Stats, merge_reports, stats, with_stats
    from torchdata_ais.loaders.state import merge_states, state_from_json, state_to_json

__all__ = [
    "AISLoader",
    "Explanation",
    "MultiProcessingReadingService",
    "Stats",
    "ais_loader",
    "as_dataset",
    "draw",
    "explain",
    "load_state_dict",
    "merge_reports",
    "merge_states",
    "mermaid",
    "state_dict",
    "state_from_json",
    "state_to_json",
    "stats",
    "with_stats",
]

_HOMES = {
    "AISLoader": "loader",
    "Explanation": "explanation",
    "MultiProcessingReadingService": "reading_service",
    "Stats": "report",
    "ais_loader": "loader",
    "as_dataset": "dataset",
    "draw": "drawing",
    "explain": "explanation",
    "load_state_dict": "bare",
    "merge_reports": "report",
    "merge_states": "state",
    "mermaid": "drawing",
    "state_dict": "bare",
    "state_from_json": "state",
    "state_to_json": "state",
    "stats": "report",
    "with_stats": "report",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
