"""Workers join, leave, die, and share the stages out among processes: nothing changes."""

from __future__ import annotations

import random
import signal

import pytest

from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything

pytestmark = pytest.mark.faults


def test_from_one_worker_to_three_and_back(hunt: Hunt, seed: int) -> None:
    rng = random.Random(seed)
    hunted = hunt()
    names = ["w0", "w1", "w2"]
    for name in names:
        hunted.begin(name)
        hunted.wait_for_work()
    hunted.end(rng.choice(names), signal.SIGKILL)
    hunted.wait_for_work()
    leaver = rng.choice(list(hunted.running))
    assert hunted.end(leaver) == 0
    hunted.wait_for_work()
    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)


def test_stages_in_processes_of_their_own(hunt: Hunt, seed: int) -> None:
    rng = random.Random(seed)
    hunted = hunt()
    roles = ["ingest", "forecast", "decide"]
    for role in roles:
        hunted.begin(role, role)
    hunted.wait_for_work()
    for role in rng.sample(roles, 3):
        hunted.end(role, rng.choice((signal.SIGKILL, signal.SIGTERM)))
        hunted.publish_slot()
        hunted.begin(role, role)
        hunted.wait_for_work()
    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)
