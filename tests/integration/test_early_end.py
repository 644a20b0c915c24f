"""Asked to end while it starts, a worker ends, and with success."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

import pytest

from infra.kafka.embedded import EmbeddedKafka
from tests.integration.pipeline import Pipeline, workload_names

pytestmark = pytest.mark.kafka
# What the documentation promises.
END_S = 5.0


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.5, 1.5])
def test_a_worker_told_to_end_while_it_joins_its_group_ends(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path, after_s: float
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, ["a"])
    worker = pipeline.start_worker()
    try:
        deadline = monotonic() + 120
        while "worker_started" not in pipeline.log_of():
            assert monotonic() < deadline and worker.poll() is None, pipeline.log_of()[-3000:]  # noqa: PT018
            sleep(0.02)
        sleep(after_s)
        begun = monotonic()
        worker.terminate()
        assert worker.wait(60) == 0, pipeline.log_of()[-3000:]
        print(f"{monotonic() - begun:.1f} s from SIGTERM to the end")
        assert monotonic() - begun < END_S
    finally:
        worker.kill()
        worker.wait()
    assert "Traceback" not in pipeline.log_of()
    assert "crash" not in pipeline.log_of()


def test_a_worker_at_work_ends_in_good_order_within_the_promise(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(12))
    worker = pipeline.start_worker()
    try:
        pipeline.wait_for_decisions(pipeline.publish_slots(3), 120)
        # A reader of the page, and work under way.
        with urlopen(worker.metrics_url + "/api/events", timeout=20) as events:  # type: ignore[attr-defined]  # noqa: S310
            assert events.readline()
            pipeline.publish_slots(2)
            begun = monotonic()
            worker.terminate()
            assert worker.wait(60) == 0, pipeline.log_of()[-3000:]
            assert monotonic() - begun < END_S
    finally:
        worker.kill()
        worker.wait()
    assert "Traceback" not in pipeline.log_of()
