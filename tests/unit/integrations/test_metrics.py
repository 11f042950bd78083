"""What the stages counted, where training jobs look at it: the same figures as `stats` has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.errors import MissingLibraryError
from torchdata_ais.integrations import OpenTelemetryStats, TensorBoardStats, WandbStats
from torchdata_ais.observe import stats_text
from torchdata_ais.testing import example_shards, write_shard


def run(on_stats: Any, shards: Any, **options: Any) -> Any:
    pipe = AISSourceLister(shards).load_tar().group_samples().decode("pil", on_error="skip")
    with ais_loader(pipe, on_stats=on_stats, **options) as loader:
        return len(list(loader)), loader.stats()


@pytest.fixture
def shard(tmp_path: Path) -> str:
    return str(write_shard(tmp_path / "a.tar", {"a.cls": b"1", "b.jpg": b"no picture", "c.cls": b"3"}))


class Log:
    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[float, int]]] = {}
        self.logged: list[tuple[dict[str, float], bool]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.setdefault(name, []).append((value, step))

    def log(self, values: dict[str, float], *, commit: bool) -> None:
        self.logged.append((values, commit))


def test_tensorboard_gets_every_count_at_the_step_of_training(shard: str) -> None:
    log = Log()
    assert run(TensorBoardStats(log, step=lambda: 70), shard)[0] == 2
    assert log.scalars["data/group_samples/items_total"] == [(3, 70)]
    assert log.scalars["data/decode/items_total"] == [(2, 70)]
    assert log.scalars["data/decode/skipped_total/DecodeError"] == [(1, 70)]
    assert log.scalars["data/load_tar/bytes_total"][0][0] > 0


def test_wandb_gets_them_with_the_next_step_of_the_loop(shard: str) -> None:
    log = Log()
    run(WandbStats(log), shard)
    ((values, commit),) = log.logged
    assert values["data/decode/items_total"] == 2
    assert commit is False


def test_two_stages_of_one_name_are_told_apart() -> None:
    log = Log()
    pipe = AISSourceLister(example_shards()).load_tar().group_samples().map_sample(dict).map_sample(dict)
    with ais_loader(pipe, on_stats=TensorBoardStats(log)) as loader:
        found = len(list(loader))
    numbered = [name for name in log.scalars if "map_sample." in name and name.endswith("items_total")]
    assert len(numbered) == 2
    assert log.scalars[numbered[1]] == [(found, 1)]


def test_tensorboard_reads_what_was_written(shard: str, tmp_path: Path) -> None:
    writers = pytest.importorskip("torch.utils.tensorboard")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with writers.SummaryWriter(str(tmp_path / "log")) as writer:
        run(TensorBoardStats(writer), shard)
    events = reading.EventAccumulator(str(tmp_path / "log")).Reload()
    assert [event.value for event in events.Scalars("data/decode/items_total")] == [2]


def test_opentelemetry_reads_the_counts_of_all_workers(shard: str) -> None:
    reading = pytest.importorskip("opentelemetry.sdk.metrics.export")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = reading.InMemoryMetricReader()
    sink = OpenTelemetryStats(sdk.MeterProvider([reader]).get_meter("a test"), rank="3")
    assert reader.get_metrics_data() is None  # nothing was counted yet
    _, report = run(sink, shard)
    found = {
        (metric.name, point.attributes["stage"], point.attributes.get("error")): point
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert {metric for metric, _, _ in found} >= {"torchdata_ais.items_total", "torchdata_ais.bytes_total"}
    assert found["torchdata_ais.items_total", "decode", None].value == report["decode"].items == 2
    assert found["torchdata_ais.skipped_total", "decode", "DecodeError"].value == 1
    assert all(point.attributes["rank"] == "3" for point in found.values())


def test_opentelemetry_that_is_not_there_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingLibraryError, match='pip install "opentelemetry-api"'):
        OpenTelemetryStats()


def test_prometheus_and_the_others_count_the_same(shard: str) -> None:
    _, report = run(None, shard)
    lines = report.to_prometheus(rank="0").splitlines()
    for metric in stats_text.METRICS:
        assert f"# TYPE torchdata_ais_{metric.name} {metric.kind}" in lines
    assert 'torchdata_ais_items_total{rank="0",stage="decode",number="4"} 2' in lines
