"""The broker stops for 15 s, dies and comes back: nothing changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import sleep

import pytest

from infra.kafka_embedded import EmbeddedKafka
from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything

pytestmark = pytest.mark.faults


def jvm_of(kafka: EmbeddedKafka) -> int:
    """Process id of the broker itself, the child of its watchdog."""
    assert kafka._process is not None
    children = Path(f"/proc/{kafka._process.pid}/task/{kafka._process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


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
    assert not own_broker.running
    own_broker.start()
    hunted.wait_for_work()
    hunted.restarts_left = 0
    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)
