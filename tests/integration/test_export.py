"""`harmony export`: through a real broker and worker, out to a file, and into `forecast` and `train --data`."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.kafka.embedded import EmbeddedKafka
from infra.lab.series import read_series
from tests.integration.pipeline import Pipeline, workload_names

SLOTS = 140


def harmony(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def pipeline(broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Pipeline:
    """Telemetry of two workloads whose slots an ingest worker has closed."""
    made = Pipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(2))
    with made.worker(role="ingest"):
        made.publish_slots(SLOTS)
        deadline = monotonic() + 60
        while _closed(made) < 2 * SLOTS:
            assert monotonic() < deadline, made.log_of()
            sleep(0.3)
    return made


def _closed(pipeline: Pipeline) -> int:
    """Pages of the partitions that hold a workload; each of these samples fits one chunk."""
    pages = pipeline.log(pipeline.topics.pages)
    homes = {partition for partition, *_, value in pages if value and b"service-" in value}
    return sum(partition in homes for partition, *_ in pages) // max(len(homes), 1)


def test_a_history_goes_from_kafka_to_a_file_to_forecast_and_train(pipeline: Pipeline, tmp_path: Path) -> None:
    place = ("--config", str(pipeline.config), "--brokers", pipeline.bootstrap)
    file = tmp_path / "history.csv.gz"
    done = harmony("export", str(file), *place)
    assert done.exit_code == 0, (done.output, done.exception)
    assert f"{2 * SLOTS} slots of 5 s" in done.stderr

    tables = {table.item_id: table for table in read_series(file)}
    assert sorted(tables) == sorted(pipeline.workloads)
    for table in tables.values():
        assert (table.step_ms, len(table.values), table.num_gaps) == (5_000, SLOTS, 0)
        assert table.start_ts_ms + SLOTS * 5_000 == pipeline.slot * 5_000
        rate = table.values[1:, table.indicators.index("request.arrival_rate")]
        assert np.isfinite(rate).all(), "a counter has no rate in its first slot, and one in every other"
        assert 3 <= np.median(rate) <= 7, "the pipeline's loads are of 3 to 6 requests per second"
        assert np.isfinite(table.values[:, table.indicators.index("gpu.power_w")]).all()
        assert "request.ttft_p95_s" not in table.indicators, "never observed"

    forecast = harmony("forecast", str(file), "--prediction-length", "4", "--json", "--model", "pool")
    assert forecast.exit_code == 0, (forecast.output, forecast.exception)
    assert sorted({item["item_id"] for item in json.loads(forecast.stdout)["forecasts"]}) == sorted(pipeline.workloads)
    trained = harmony("train", "--out", str(tmp_path / "weights"), "--data", str(file), "--steps", "1")
    assert trained.exit_code == 0, (trained.output, trained.exception)

    one = harmony("export", "-w", pipeline.workloads[0], "--since", "10m", *place)
    assert one.exit_code == 0, (one.output, one.exception)
    rows = one.stdout.splitlines()
    assert len(rows) == 1 + 120
    assert all(row.startswith(f"{pipeline.workloads[0]},") for row in rows[1:])
    assert (
        rows[1:]
        == [
            row for row in harmony("export", *place).stdout.splitlines() if row.startswith(f"{pipeline.workloads[0]},")
        ][-120:]
    )


def test_what_cannot_be_exported_is_said(pipeline: Pipeline, tmp_path: Path) -> None:
    place = ("--config", str(pipeline.config), "--brokers", pipeline.bootstrap)
    for arguments, words in (
        (("-w", "nobody"), pipeline.workloads[0]),
        ((str(tmp_path / "out.xlsx"),), ".csv or .csv.gz"),
        (("--since", "soon"), "--since"),
        ((str(tmp_path / "no" / "out.csv"),), "No such file"),
    ):
        refused = harmony("export", *arguments, *place)
        assert isinstance(refused.exception, HarmonyError), arguments
        assert words in refused.exception.message
    assert not list(tmp_path.glob("*.part"))
