"""Adapters for torchdata's nodes, Hugging Face, Lightning and metrics.

Names are imported on first use, and each needs its framework only then.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
