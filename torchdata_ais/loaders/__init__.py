"""What drives a pipe: the reading service for DataLoader2, `ais_loader`, datasets for torch's loaders, state.

Names are imported on first use, so that importing this package imports neither torch nor torchdata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata_ais.dataloader2.reading_service import MultiProcessingReadingService
    from torchdata_ais.loaders.bare import load_state_dict, state_dict
    from torchdata_ais.loaders.dataset import as_dataset
    from torchdata_ais.loaders.loader import AISLoader, ais_loader
    from torchdata_ais.loaders.state import merge_states, state_from_json, state_to_json
    from torchdata_ais.observe.draw import draw, mermaid
    from torchdata_ais.observe.explain import Explanation, explain
    from torchdata_ais.observe.report import Stats, merge_reports, stats, with_stats

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
    "AISLoader": "loaders.loader",
    "Explanation": "observe.explain",
    "MultiProcessingReadingService": "dataloader2.reading_service",
    "Stats": "observe.report",
    "ais_loader": "loaders.loader",
    "as_dataset": "loaders.dataset",
    "draw": "observe.draw",
    "explain": "observe.explain",
    "load_state_dict": "loaders.bare",
    "merge_reports": "observe.report",
    "merge_states": "loaders.state",
    "mermaid": "observe.draw",
    "state_dict": "loaders.bare",
    "state_from_json": "loaders.state",
    "state_to_json": "loaders.state",
    "stats": "observe.report",
    "with_stats": "observe.report",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"torchdata_ais.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
