"""A misspelt field of live telemetry is named by the worker's log, check and page, by status, explain and doctor."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from infra.kafka.embedded import EmbeddedKafka
from infra.operate import cli as cli_operate
from infra.operate.doctor import examine_letters
from infra.settings.load import load_settings
from streams.records.schema import encode_packed, encode_sample
from tests.integration.pipeline import Pipeline

SAYS = (
    "pod-1 sends neither requests_started_total nor requests_finished_total, so requests are not counted; sent "
    "instead: `requests_started_totl` (did you mean `requests_started_total`?), not known"
)


class Misspelling(Pipeline):
    """Beside the workload of the pipeline, another one whose publisher misspells the counter of requests."""

    def publish_slot(self) -> int:
        start_ms = self.slot * self.stream.step_ms
        values = {"requests_started_totl": float(self.slot), "num_requests_running": 2.0}
        record = (
            encode_sample("requests", "wrong", "pod-1", start_ms + 500, values)
            if self.slot % 2
            else encode_packed("requests", "wrong", ["pod-1"], [start_ms + 500], {n: [x] for n, x in values.items()})
        )
        self._send(self.topics.telemetry_requests, b"wrong", record)
        return super().publish_slot()


@pytest.fixture
def pipeline(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Misspelling]:
    made = Misspelling(broker.bootstrap, topic_prefix, tmp_path, ["w"])
    monkeypatch.setenv("HARMONY_TOPIC_PREFIX", topic_prefix)
    monkeypatch.setenv("HARMONY_BROKERS", broker.bootstrap)
    yield made
    made.producer.close(1)


def harmony(*arguments: str) -> str:
    app = typer.Typer()
    cli_operate.register(app)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def test_the_name_and_the_nearest_known_one_are_told_everywhere(pipeline: Misspelling) -> None:
    def answer(path: str) -> Any:
        return json.loads(urllib.request.urlopen(f"{url}{path}", timeout=10).read())  # noqa: S310

    with pipeline.worker() as worker:
        url: str = worker.metrics_url  # type: ignore[attr-defined]
        pipeline.wait_for_decisions(pipeline.publish_slots(6), worker=worker)
        pipeline._send(pipeline.topics.telemetry_requests, b"other-key", encode_sample("gpu", "w", "x", 1, {}))
        pipeline.producer.flush(30)
        pipeline.until("the notice", lambda: "telemetry_unused" in pipeline.log_of())
        pipeline.until("the letters", lambda: pipeline.count(pipeline.topics.dead_letters) >= 2)
        assert SAYS in pipeline.log_of()
        check = answer("/readyz")["checks"]["telemetry_usable"]
        assert (check["ok"], check["required"], check["detail"]) == (False, False, f"wrong: {SAYS}")
        pipeline.until("the page", lambda: SAYS in answer("/api/workloads/wrong")["because"])
        assert SAYS in answer("/api/fleet")["worker"]["problem"]
        assert [letter["reason"] for letter in answer("/api/dead-letters")["letters"]] == ["kind"]

    status = json.loads(harmony("status", "--json"))
    assert [p for p in status["problems"] if SAYS in p] == [f"wrong: requests: {SAYS}."]
    (refused,) = [p for p in status["problems"] if "refused" in p]
    assert refused.startswith("Records refused within the hour: 1 (kind 1), the newest at ")
    assert f"! wrong: requests: {SAYS}." in harmony("status")
    assert f"! now: wrong: requests: {SAYS}." in harmony("explain", "wrong")
    assert "! now" not in harmony("explain", "w")
    assert "refused at" in harmony("dlq", "list")
    assert SAYS not in harmony("dlq", "list")
    (notice,) = json.loads(harmony("dlq", "list", "--reason", "unused", "--json"))["dead_letters"][-1:]
    assert (notice["key"], notice["value"], notice["detail"]) == ("wrong", None, f"requests: {SAYS}")
    found = {f.check: f for f in examine_letters(load_settings(pipeline.config, environ={}), pipeline.bootstrap)}
    assert found["refused"].detail.startswith("within the hour: 1 (kind 1)")
    assert found["telemetry"].detail == f"wrong: requests: {SAYS}"
    assert {f.status for f in found.values()} == {"note"}
