"""The chain as type checkers see it: generated from the signatures of the stages.

Run this file (``python tests/unit/pipes/base/test_methods.py``) to write ``torchdata_ais/pipes/base/methods.pyi`` anew.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import methods_source

import torchdata_ais.pipes.base

TARGET = Path(torchdata_ais.pipes.base.__file__).with_name("methods.pyi")


def test_the_methods_for_type_checkers_match_the_stages() -> None:
    assert TARGET.read_text() == methods_source.render(), f"run python {Path(__file__).name}"


def test_every_stage_is_registered_under_its_functional_name() -> None:
    from torch.utils.data import IterDataPipe

    names = dict(methods_source.stages())
    assert {
        "list_ais",
        "load_tar",
        "load_objects",
        "group_samples",
        "decode",
        "shuffled",
        "batched",
        "to_tuple",
    } <= names.keys()
    for name, cls in names.items():
        assert IterDataPipe.functions[name].args[0] is cls
        assert next(iter(inspect.signature(cls).parameters)) in ("source", "ais_sources")


if __name__ == "__main__":
    TARGET.write_text(methods_source.render())
