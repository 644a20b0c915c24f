"""Every right of the documented list is needed: a worker that does not ask beforehand ends, or gets nothing done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from infra.kafka.rights import Right
from tests.faults.logs import Progress
from tests.faults.nursery import Nursery
from tests.integration.pipeline import stop
from tests.integration.test_secure_kafka import PASSWORD, ROLES, SecurePipeline, documented
from tests.secure_kafka import SecureKafka

pytestmark = pytest.mark.faults

UNASKED = ("tests.faults.mutant", "unasked")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    made = SecureKafka(tmp_path_factory.mktemp("rights"))
    try:
        made.start()
        made.add_user("harmony", PASSWORD)
        yield made
    finally:
        made.stop()


# Ten minutes of telemetry, so that a ten-minute mean is written.
COARSE_SLOTS = 124


def test_each_right_of_the_list_is_needed(kafka: SecureKafka, nursery: Nursery, tmp_path: Path) -> None:
    """One life per right that is not granted, on the state of the lives before; between them one with all rights."""
    pipeline = SecurePipeline(kafka, "scram", "rights.", tmp_path)
    progress = Progress(kafka.admin, pipeline.topics)
    everything = documented(pipeline.topics, [*ROLES, "page"])

    def gets_done(rights: list[Right], slots: int) -> bool:
        """Whether a worker with these rights commits everything that is published, within a minute."""
        kafka.grant_only("User:harmony", rights)
        command, environment = pipeline.worker_call("w0", "all", "", UNASKED)
        worker = nursery.start(command[2:], environment, pipeline.home / "w0.log")
        try:
            pipeline.producer.send(pipeline.topics.telemetry_requests, value=b"poison", partition=0)
            pipeline.publish_slots(slots)
            deadline = monotonic() + 60 + slots
            while not progress.reached(pipeline.slot - 1):
                if worker.poll() is not None or monotonic() > deadline:
                    return False
                progress.poll(100)
            return True
        finally:
            stop(worker)

    assert gets_done(everything, COARSE_SLOTS), pipeline.log_of()[-3000:]
    # Ticks are not written in an accelerated run.
    ticks = {(pipeline.topics.telemetry_gpu, "WRITE"), (pipeline.topics.telemetry_requests, "WRITE")}
    cases = {(r.kind, r.name, op) for r in documented(pipeline.topics, ROLES) for op in r.operations}
    needless = []
    for kind, name, operation in sorted(case for case in cases if case[1:] not in ticks):
        without = [
            Right(r.kind, r.name, tuple(o for o in r.operations if (r.kind, r.name, o) != (kind, name, operation)))
            for r in everything
        ]
        if gets_done(without, COARSE_SLOTS if (name, operation) == (pipeline.topics.pages_coarse, "WRITE") else 2):
            needless.append((kind, name, operation))
        print(f"without {operation} on {kind} {name}: {pipeline.log_of().strip().splitlines()[-1][:200]}")
    assert gets_done(everything, 2), pipeline.log_of()[-3000:]
    progress.close()
    pipeline.producer.close(1)
    assert not needless
