"""pytest plugin: webdataset's tests import ours under the name of webdataset."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from outcomes import pytest_collection_finish, pytest_runtest_logreport

__all__ = ["pytest_collection_finish", "pytest_configure", "pytest_runtest_logreport"]


def pytest_configure() -> None:
    ours = importlib.import_module("torchdata_ais.webdataset")
    sys.modules["webdataset"] = ours
    for module in pkgutil.iter_modules(ours.__path__):
        name = f"torchdata_ais.webdataset.{module.name}"
        sys.modules[f"webdataset.{module.name}"] = importlib.import_module(name)
