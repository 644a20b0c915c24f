"""`harmony doctor` on a real broker: each finding, and what it says when something is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from time import sleep, time

import pytest
import yaml

from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.tail import TailRecord
from infra.operate.doctor import Finding, _clock, examine
from infra.settings.load import load_settings
from model.network.spec import SHIPPED
from tests.integration.pipeline import Pipeline

pytestmark = pytest.mark.slow

ALL = {
    "python", "java", "kafka jars", "state disk", "cache disk", "web port", "gpu", "model", "sight", "step",
    "capacity", "brokers", "topics", "rights", "transactions", "refused", "telemetry", "workers",
    "lag", "state", "retention", "clock", "maximum",
}  # fmt: skip


@pytest.fixture
def pipeline(broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(broker.bootstrap, topic_prefix, tmp_path, ["w"])
    yield made
    made.producer.close(1)


def findings(pipeline: Pipeline, **changes: object) -> dict[str, Finding]:
    content = yaml.safe_load(pipeline.config.read_text(encoding="utf-8")) | {"web_port": 0} | changes
    path = pipeline.home / "examined.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    found = {f.check: f for f in examine(load_settings(path, environ={}), pipeline.bootstrap)}
    assert all(f.remedy for f in found.values() if f.status == "fail"), "a failure without a remedy"
    return found


def test_an_empty_fleet_then_a_working_one_then_one_with_other_settings(pipeline: Pipeline) -> None:
    empty = findings(pipeline)
    assert empty.keys() == ALL
    assert {empty[c].status for c in ("workers", "lag", "state", "clock")} == {"note"}
    assert {empty[c].status for c in ("brokers", "topics", "rights", "model")} == {"ok"}

    with pipeline.worker() as worker:
        pipeline.wait_for_decisions(pipeline.publish_slots(20), 240, worker)
        busy = findings(pipeline)
        for _ in range(20):  # the group's offsets are acknowledged behind the records that make them count
            if busy["lag"].status != "note":
                break
            sleep(0.5)
            busy = findings(pipeline)
    assert busy["workers"].detail.startswith("1 in the group: w0")
    assert busy["state"].status == "ok", busy["state"]
    assert "1 workloads, epoch 1" in busy["state"].detail
    assert busy["lag"].status == "ok", busy["lag"]
    assert busy["clock"].status == "ok", busy["clock"]

    other = findings(pipeline, fleet="another", step_s=7.0)
    assert other["state"].status == "fail"
    assert "fleet is another, the state has test" in other["state"].detail
    assert "step_s is 7.0, the state has 5.0" in other["state"].detail
    assert "state reset" not in other["state"].remedy
    assert "--config" in other["state"].remedy
    assert busy["maximum"].status == "ok"
    workload = {"id": "w", "replicas": {"min": 0, "max": 1}}
    low = findings(pipeline, workloads=[workload])["maximum"]
    assert (low.status, "at most 1 declared" in low.detail) == ("note", True), low

    resized = findings(pipeline, partitions=3)
    assert resized["topics"].status == "fail"
    assert "state" not in resized


def test_weights_that_would_not_be_used_are_named(pipeline: Pipeline, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(SHIPPED, folder)

    def model(**keys: object) -> Finding:
        advanced = yaml.safe_load(pipeline.config.read_text(encoding="utf-8"))["advanced"] | {"model": keys}
        return findings(pipeline, advanced=advanced)["model"]

    assert model(weights="shipped").status == model(weights=str(folder)).status == "ok"
    assert "allowed_digests" in model(weights=str(folder), allowed_digests=["0" * 64]).detail
    (folder / "weights.safetensors").write_bytes(b"no weights")
    damaged = model(weights=str(folder))
    assert (damaged.status, "digest" in damaged.detail) == ("fail", True)


def test_a_clock_that_is_behind_is_seen() -> None:
    now_ms = int(time() * 1_000)
    record = TailRecord(0, 0, now_ms, None, None, ())
    assert _clock([record]).status == "ok"
    behind = _clock([replace_stamp(record, now_ms + 30_000)])
    assert behind.status == "fail"
    assert "behind the brokers'" in behind.detail
    assert behind.remedy


def replace_stamp(record: TailRecord, stamp_ms: int) -> TailRecord:
    return record._replace(stamp_ms=stamp_ms)
