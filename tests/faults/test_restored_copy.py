"""A backup is a copy of the topics: workers that are started on it go on as those of the original do, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.kafka_embedded import EmbeddedKafka
from tests.faults.logs import copy_log, read_log
from tests.integration.pipeline import Pipeline, stop, workload_names

pytestmark = pytest.mark.faults

STATE = ("telemetry_gpu", "telemetry_requests", "pages", "pages_coarse", "plans", "commits")
# Pages and plans carry the stamps of the broker, which differ; what is decided does not depend on them.
ANSWERS = ("forecasts", "decisions", "commands")
SLOTS_AFTER = 8


def test_a_copy_of_the_topics_goes_on_as_the_original_does(own_broker: EmbeddedKafka, tmp_path: Path) -> None:
    names = workload_names(2)
    original = Pipeline(own_broker.bootstrap, "original.", tmp_path / "original", names)
    with original.worker() as worker:
        original.wait_for_decisions(original.publish_slots(30), 240, worker)

    restored = Pipeline(own_broker.bootstrap, "restored.", tmp_path / "restored", names)
    for name in STATE:
        copy_log(own_broker.bootstrap, getattr(original.topics, name), getattr(restored.topics, name))
    # Both are told the same from here on.
    restored.slot = original.slot
    restored._counters = {key: list(values) for key, values in original._counters.items()}
    restored._rng.setstate(original._rng.getstate())
    for pipeline in (original, restored):
        worker = pipeline.start_worker()
        try:
            pipeline.wait_for_decisions(pipeline.publish_slots(SLOTS_AFTER), 240, worker)
        finally:
            assert stop(worker) == 0

    for name in ANSWERS:
        went_on, goes_on = (newest(p, name) for p in (original, restored))
        assert len(goes_on) >= SLOTS_AFTER
        assert goes_on == went_on, name


def newest(pipeline: Pipeline, name: str) -> list[tuple[bytes | None, bytes | None]]:
    """What a public topic holds of the steps after the copy."""
    first_ts_ms = (pipeline.slot - SLOTS_AFTER + 1) * pipeline.stream.step_ms
    found = []
    for entry in read_log(pipeline.bootstrap, getattr(pipeline.topics, name)):
        body = json.loads(entry.value or b"{}")
        if body.get("origin_ts_ms", body.get("issued_ts_ms", 0)) >= first_ts_ms:
            found.append((entry.key, entry.value))
    return sorted(found, key=str)
