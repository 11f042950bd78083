"""Loaders: `ais_loader`, datasets for torch's loaders, and their states.

Names are imported on first use, so that importing this package imports neither torch nor torchdata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from torchdata_ais.dataloader2.reading_service import (
        MultiProcessingReadingService as MultiProcessingReadingService,
    )
    from torchdata_ais.loaders.dataset import as_dataset as as_dataset
    from torchdata_ais.loaders.explanation import Explanation as Explanation
    from torchdata_ais.loaders.explanation import explain as explain
    from torchdata_ais.loaders.loader import AISLoader as AISLoader
    from torchdata_ais.loaders.loader import ais_loader as ais_loader
    from torchdata_ais.loaders.sample_dataset import SampleDataset as SampleDataset
    from torchdata_ais.loaders.state import load_state_dict as load_state_dict
    from torchdata_ais.loaders.state import merge_states as merge_states
    from torchdata_ais.loaders.state import state_dict as state_dict
    from torchdata_ais.loaders.state import state_from_json as state_from_json
    from torchdata_ais.loaders.state import state_to_json as state_to_json
    from torchdata_ais.observe.draw import draw as draw
    from torchdata_ais.observe.draw import mermaid as mermaid
    from torchdata_ais.observe.stats import Stats as Stats
    from torchdata_ais.observe.stats import merge_reports as merge_reports
    from torchdata_ais.observe.stats import stats as stats
    from torchdata_ais.observe.stats import with_stats as with_stats

__getattr__, __dir__, __all__ = lazy_loader.attach(
    "torchdata_ais",
    submod_attrs={
        "dataloader2.reading_service": ["MultiProcessingReadingService"],
        "loaders.dataset": ["as_dataset"],
        "loaders.loader": ["AISLoader", "ais_loader"],
        "loaders.sample_dataset": ["SampleDataset"],
        "loaders.state": [
            "load_state_dict",
            "merge_states",
            "state_dict",
            "state_from_json",
            "state_to_json",
        ],
        "observe.draw": ["draw", "mermaid"],
        "loaders.explanation": ["Explanation", "explain"],
        "observe.stats": ["Stats", "merge_reports", "stats", "with_stats"],
    },
)
