"""The three roles in processes of their own: the same decisions, and the model only where forecasts are made."""

from __future__ import annotations

import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra.kafka.embedded import EmbeddedKafka
from tests.integration.pipeline import Pipeline, workload_names


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_roles_apart_decide_as_one_and_only_forecast_holds_the_model(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(3))
    with ExitStack() as stack:
        workers = {role: stack.enter_context(pipeline.worker(role, role)) for role in ("ingest", "forecast", "decide")}
        for _ in range(2):  # the second time nothing is new to any of them
            pipeline.wait_for_decisions(pipeline.publish_slots(12), timeout_s=120)
        for worker in workers.values():
            for path in ("/", "/metrics"):
                urllib.request.urlopen(f"{worker.metrics_url}{path}", timeout=10).read()  # type: ignore[attr-defined]  # noqa: S310
        holds = {role: Path(f"/proc/{worker.pid}/maps").read_text() for role, worker in workers.items()}
    for library, wanted in (("libtorch", {"forecast"}), ("llvmlite", {"forecast", "ingest"})):
        assert {role for role, maps in holds.items() if library in maps} == wanted, library
