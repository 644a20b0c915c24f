"""The broker stops for 15 s, dies and comes back, stays away for longer than anybody waits: nothing changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic, sleep

import pytest

from infra.kafka.embedded import EmbeddedKafka
from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything

pytestmark = pytest.mark.faults


def jvm_of(kafka: EmbeddedKafka) -> int:
    """Process id of the broker itself, the child of its watchdog."""
    assert kafka._process is not None
    children = Path(f"/proc/{kafka._process.pid}/task/{kafka._process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def resident_mb(pid: int) -> float:
    """0 once the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_a_broker_that_stops_and_one_that_dies_change_nothing(hunt: Hunt, own_broker: EmbeddedKafka, seed: int) -> None:
    hunted = hunt()
    hunted.restarts_left = 6
    hunted.begin()
    hunted.wait_for_work()

    hunted.publish_slots(3)
    jvm = jvm_of(own_broker)
    os.kill(jvm, signal.SIGSTOP)
    sleep(15)
    os.kill(jvm, signal.SIGCONT)
    hunted.wait_for_work()

    hunted.publish_slots(3)
    os.kill(jvm, signal.SIGKILL)
    sleep(4)
    deadline = monotonic() + 60
    while own_broker.running:  # until its watchdog has seen it, on a busy machine
        assert monotonic() < deadline
        sleep(0.2)
    own_broker.start()
    hunted.wait_for_work()
    hunted.restarts_left = 0

    # It is away until the worker gives up, with what it holds in memory bounded, and then for a while longer.
    hunted.publish_slots(3)
    worker, said = hunted.running.pop("w0"), len(hunted.log_of())
    before_mb = resident_mb(worker.pid)
    os.kill(jvm_of(own_broker), signal.SIGKILL)
    largest_mb = before_mb
    while worker.poll() is None:
        largest_mb = max(largest_mb, resident_mb(worker.pid))
        sleep(0.5)
    assert worker.returncode == 1
    assert "check the brokers" in hunted.log_of().rstrip().rsplit("\n", 1)[-1]
    assert largest_mb < before_mb + 100
    # Its clients complain a hundred times a second, each in its own words; the log takes sixty lines a minute of each.
    assert len(hunted.log_of()[said:].splitlines()) < 1_000
    sleep(10)
    own_broker.start()
    hunted.begin()
    hunted.wait_for_work()
    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)
