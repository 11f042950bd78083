"""Which versions of torch, torchdata and the AIStore SDK are taken, and what is said of others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais._util.versions import OLDEST, check_versions
from torchdata_ais.errors import MissingLibraryError
from torchdata_ais.store.objects import sdk_names

NEWER = {"torch": "2.15.0+cu132", "torchdata": "0.11.0", "aistore": "2.1.0rc1"}


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    sdk_names.check_version.cache_clear()
    yield
    sdk_names.check_version.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: {**NEWER, **versions}[name])


@pytest.mark.parametrize("version", ["1.24", "1.26.0", "2.0.0", "2.1.0rc1", "10.0"])
def test_these_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, aistore=version)
    check_versions()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        *(("aistore", version) for version in ("1.22.1", "0.9.2", "1.4.23", "1.9")),
        ("torch", "2.0.1+cu118"),
        ("torch", "2.3.0+cu121"),
        ("torch", "1.13.0"),
        ("torchdata", "0.6.1"),
        ("torchdata", "0.7.1"),
    ],
)
def test_older_ones_are_refused_with_what_to_install(
    name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, **{name: version})
    least = ".".join(map(str, OLDEST[name]))
    told = re.escape(f'{name} {version} is too old. Install a newer one: pip install "{name}>={least}"')
    with pytest.raises(MissingLibraryError, match=f"(?i){told}"):
        check_versions()


def test_it_is_said_at_import(tmp_path: Path) -> None:
    found = tmp_path / "aistore-1.22.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: aistore\nVersion: 1.22.0\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torchdata_ais"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "1.22.0 is too old" in done.stderr.splitlines()[-1]


def test_the_oldest_are_those_that_pip_is_told() -> None:
    told = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    for name, oldest in OLDEST.items():
        assert f'"{name}>={".".join(map(str, oldest))}' in told


def test_no_torchdata_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> Any:
        if name == "torchdata":
            raise metadata.PackageNotFoundError(name)
        return NEWER[name]

    monkeypatch.setattr(metadata, "version", version)
    check_versions()


def test_no_sdk_is_said_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    check_versions()
    with pytest.raises(MissingLibraryError, match="is not installed"):
        sdk_names.client_of("http://127.0.0.1:1")
