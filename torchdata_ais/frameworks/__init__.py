"""Loaders where other frameworks expect theirs: torchdata's nodes, Hugging Face, Lightning; and where counts go.

Names are imported on first use, and each needs its framework only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from torchdata_ais.frameworks.hugging_face import to_hf as to_hf
    from torchdata_ais.frameworks.lightning_module import lightning_data as lightning_data
    from torchdata_ais.frameworks.metrics import OpenTelemetryStats as OpenTelemetryStats
    from torchdata_ais.frameworks.metrics import TensorBoardStats as TensorBoardStats
    from torchdata_ais.frameworks.metrics import WandbStats as WandbStats
    from torchdata_ais.frameworks.nodes import as_node as as_node
    from torchdata_ais.frameworks.trainer import trainer_callback as trainer_callback

__getattr__, __dir__, __all__ = lazy_loader.attach(
    "torchdata_ais",
    submod_attrs={
        "frameworks.hugging_face": ["to_hf"],
        "frameworks.lightning_module": ["lightning_data"],
        "frameworks.metrics": ["OpenTelemetryStats", "TensorBoardStats", "WandbStats"],
        "frameworks.nodes": ["as_node"],
        "frameworks.trainer": ["trainer_callback"],
    },
)
