"""What drives a pipe: the reading service for DataLoader2, `ais_loader`, datasets for torch's loaders, state.

Names are imported on first use, so that importing this package imports neither torch nor torchdata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchdata_ais.lazy import lazy_names

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
    "AISLoader": "torchdata_ais.loaders.loader",
    "Explanation": "torchdata_ais.observe.explain",
    "MultiProcessingReadingService": "torchdata_ais.dataloader2.reading_service",
    "Stats": "torchdata_ais.observe.report",
    "ais_loader": "torchdata_ais.loaders.loader",
    "as_dataset": "torchdata_ais.loaders.dataset",
    "draw": "torchdata_ais.observe.draw",
    "explain": "torchdata_ais.observe.explain",
    "load_state_dict": "torchdata_ais.loaders.bare",
    "merge_reports": "torchdata_ais.observe.report",
    "merge_states": "torchdata_ais.loaders.state",
    "mermaid": "torchdata_ais.observe.draw",
    "state_dict": "torchdata_ais.loaders.bare",
    "state_from_json": "torchdata_ais.loaders.state",
    "state_to_json": "torchdata_ais.loaders.state",
    "stats": "torchdata_ais.observe.report",
    "with_stats": "torchdata_ais.observe.report",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
