"""Which versions of the AIStore SDK are taken, and what is said of others."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

from torchdata_ais.errors import MissingLibraryError
from torchdata_ais.store import sdk_names


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    sdk_names.check_version.cache_clear()
    yield
    sdk_names.check_version.cache_clear()


@pytest.mark.parametrize("version", ["1.23", "1.26.0", "2.0.0", "2.1.0rc1", "10.0"])
def test_these_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    sdk_names.check_version()


@pytest.mark.parametrize("version", ["1.22.1", "0.9.2", "1.4.23", "1.9"])
def test_older_ones_are_refused_with_what_to_install(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(
        MissingLibraryError, match=r"SDK .* is too old\. Install it: pip install \"aistore>=1\.23\""
    ):
        sdk_names.namespace_of("@a#b")


def test_none_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingLibraryError, match="is not installed"):
        sdk_names.client_of("http://127.0.0.1:1")
