"""``bench`` and ``doctor``: they answer, whatever is missing, and never with a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.command import run

from torchdata_ais._util.versions import show_versions, versions
from torchdata_ais.cli.checks import Rate, Speed, diagnose, measure
from torchdata_ais.cli.checks import doctor as doctor_module
from torchdata_ais.cli.checks.speed import _advice
from torchdata_ais.dataloader2 import torchdata_names
from torchdata_ais.examples.pets import make_shards
from torchdata_ais.store import StoreOptions


@pytest.mark.ci
def test_bench_times_every_stage_in_a_cluster_and_suggests_workers(ais_bucket: Any, ais_cluster: Any) -> None:
    for number, shard in enumerate(make_shards([6, 6])):
        ais_bucket.object(f"s-{number}.tar").get_writer().put_content(shard)
    result = run(
        *("bench", f"ais://{ais_bucket.name}", "--seconds", "0.1", "--workers", "0,1", "--json"),
        *("--endpoint", ais_cluster.endpoint),
    )
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    stages = ["first read", "raw", "raw x4", "members", "samples", "decoded", "loader(0)", "loader(1)"]
    assert [rate["stage"] for rate in answer["rates"]] == stages
    assert all(rate["bytes"] > 0 or rate["samples"] > 0 for rate in answer["rates"])
    assert answer["advice"][0].startswith("num_workers=")


def test_the_advice_follows_from_the_rates() -> None:
    def advice(raw: int, many: int, decoded: int, cores: int, first: int = 100) -> str:
        rates = [
            Rate("first read", 1, first * 10**6),
            Rate("raw", 1, raw * 10**6),
            Rate("raw x4", 1, many * 10**6),
            Rate("members", 1, 1),
            Rate("samples", 1, 10**6, 10),
            Rate("decoded", 1, samples=decoded),
        ]
        return " | ".join(_advice(Speed(rates, cores, sample_bytes=100_000)))

    assert advice(100, 100, 100, 32).startswith("num_workers=10: so many processes decode")
    assert "decoding is the limit" in advice(100, 100, 100, 4)
    assert advice(100, 100, 100, 4).startswith("num_workers=4")
    assert "open_shards=4" in advice(100, 300, 100, 4)
    assert "open_shards" not in advice(100, 110, 100, 4)
    assert "first read of a shard was slow" in advice(100, 100, 100, 4, first=10)


def test_bench_of_an_empty_bucket_is_an_error(ais_bucket: Any, ais_cluster: Any) -> None:
    result = run("bench", f"ais://{ais_bucket.name}", "--endpoint", ais_cluster.endpoint)
    assert result.exit_code == 1
    assert "no object" in result.stderr
    assert run("bench", "x", "--workers", "two").exit_code == 2


def test_doctor_finds_the_cluster_and_its_clock(ais_cluster: Any) -> None:
    result = run("doctor", "--json", "--endpoint", ais_cluster.endpoint)
    answer = json.loads(result.stdout)
    states = {check["name"]: check["state"] for check in answer["checks"]}
    assert states["cluster"] == states["clock"] == states["torch"] == "ok"
    assert result.exit_code == 0, result.stdout
    assert answer["versions"]["torch"]


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "https://127.0.0.1:9", "http://[::", "nonsense://x"]
)
def test_doctor_says_what_is_wrong_with_a_cluster_that_does_not_answer(endpoint: str) -> None:
    result = run("doctor", "--endpoint", endpoint)
    assert result.exit_code == 1
    assert "bad   cluster" in result.stdout
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_doctor_without_a_cluster_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    assert "export AIS_ENDPOINT=" in run("doctor").stdout


def test_doctor_shows_no_token(ais_cluster: Any) -> None:
    checks = diagnose(StoreOptions(endpoint=ais_cluster.endpoint, token="s3cr3t-token"))
    assert "s3cr3t" not in repr(checks)


def test_a_broken_library_is_a_finding_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise OSError("libnvrtc.so: cannot open shared object file\nmore")

    monkeypatch.setitem(doctor_module._LOCAL, "codecs", broken)
    checks = {check.name: check for check in diagnose(StoreOptions())}
    assert checks["codecs"].state == "bad"
    assert checks["codecs"].text == "OSError: libnvrtc.so: cannot open shared object file"
    assert checks["loaders"].state == "ok"
    assert "DataLoader2, and DataLoader" in checks["loaders"].text


def test_doctor_names_whose_dataloader2_is_used() -> None:
    theirs = torchdata_names.DataLoader2.__module__.startswith("torchdata.")
    expected = "torchdata's DataLoader2" if theirs else "this package's DataLoader2"
    assert expected in doctor_module._loaders().text


def test_versions_name_what_is_installed_and_leave_out_what_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch

    found = versions()
    assert found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
    assert "" not in found.values()
    show_versions()
    assert "torchdata-ais" in capsys.readouterr().out


def test_measure_counts_samples_without_images_too(tmp_path: Any) -> None:
    from torchdata_ais.testing import example_shards

    speed = measure(example_shards(tmp_path), seconds=0.02, workers=(0,))
    rate = speed.rate("loader(0)")
    assert rate is not None
    assert rate.samples_s > 0
