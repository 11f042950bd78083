"""pytest plugin: webdataset's tests import ours under the name of webdataset."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from outcomes import pytest_collection_finish, pytest_runtest_logreport

import torchdata_ais.webdataset

__all__ = ["pytest_collection_finish", "pytest_runtest_logreport"]

sys.modules["webdataset"] = torchdata_ais.webdataset
for _module in pkgutil.iter_modules(torchdata_ais.webdataset.__path__):
    sys.modules[f"webdataset.{_module.name}"] = importlib.import_module(
        f"torchdata_ais.webdataset.{_module.name}"
    )
