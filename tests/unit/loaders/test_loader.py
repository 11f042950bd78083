"""Signature and warnings of `ais_loader`."""

from __future__ import annotations

import dataclasses
import inspect

from torchdata_ais import ais_loader
from torchdata_ais._util.world import WorldOptions


def test_every_option_of_a_loader_is_in_its_signature() -> None:
    parameters = inspect.signature(ais_loader).parameters
    assert not [one.name for one in parameters.values() if one.kind is one.VAR_KEYWORD]
    for option in (field for field in dataclasses.fields(WorldOptions) if field.init):
        assert parameters[option.name].default == option.default, option.name
    assert {"global_batch", "tail", "trace", "run_dir", "device", "normalize"} <= parameters.keys()


def test_every_option_of_a_loader_is_described() -> None:
    text = inspect.getdoc(ais_loader) or ""
    for name in inspect.signature(ais_loader).parameters:
        assert f"\n    {name}: " in text, name
