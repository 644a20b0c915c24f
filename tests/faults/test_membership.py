"""Workers join, leave, die, and share the stages out among processes: nothing changes."""

from __future__ import annotations

import random
import signal
from time import monotonic

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


def test_ten_restarts_in_good_order_repeat_no_answer(hunt: Hunt, seed: int) -> None:
    """SIGTERM at work: exit code 0 within 20 s; no page, plan, commit, decision or command comes twice."""
    rng = random.Random(seed)
    hunted = hunt()
    names = ("w0", "w1")
    for name in names:
        hunted.begin(name)
    seconds = []
    for restart in range(10):
        hunted.wait_until_ready(name := names[restart % 2])
        hunted.publish_slots(rng.randint(1, 4))
        started = monotonic()
        assert hunted.end(name) == 0
        seconds.append(monotonic() - started)
        hunted.publish_slots(rng.randint(1, 2))
        hunted.begin(name)
    hunted.finish()
    proof = hunted.proof = check_everything(hunted)
    print("seconds from SIGTERM to the end: " + " ".join(f"{s:.1f}" for s in sorted(seconds)))
    assert max(seconds) < 20
    # What was read after the last page or plan is read again by the next one; nothing else is said twice.
    assert not {name: n for name, n in proof.repeats.items() if n}.keys() - {"dead letters", "forecasts"}
