"""Asked to end while it starts, a worker ends, and with success."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep

import pytest

from infra.kafka.embedded import EmbeddedKafka
from tests.integration.pipeline import Pipeline

pytestmark = pytest.mark.kafka


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
        worker.terminate()
        assert worker.wait(60) == 0, pipeline.log_of()[-3000:]
    finally:
        worker.kill()
        worker.wait()
    assert "Traceback" not in pipeline.log_of()
    assert "crash" not in pipeline.log_of()
