"""Only for pickles of 0.1, which name this module: they are refused in words."""

from torchdata_ais.stage.pickled import GoneClass as EpochSeed

__all__ = ["EpochSeed"]
