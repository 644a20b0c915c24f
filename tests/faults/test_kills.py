"""kill -9 at random moments changes nothing."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from time import sleep

import pytest

from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything
from tests.faults.hunted import Hunted
from tests.integration.pipeline import STREAM


def kill_at_random(hunted: Hunted, rng: random.Random, kills: int) -> None:
    """Mostly while it works; now and then while it starts, restores, or has just begun."""
    hunted.begin()
    hunted.wait_for_work()
    while hunted.kills < kills:
        if rng.random() < 0.8:
            for _ in range(rng.randint(1, 6)):
                hunted.publish_slot()
                sleep(rng.uniform(0, 0.1))
            sleep(rng.uniform(0, 0.4))
        else:
            hunted.publish_slot()
            sleep(rng.uniform(0, 6))
        hunted.end(number=signal.SIGKILL)
        hunted.publish_slot()
        hunted.begin()
        if rng.random() < 0.8:
            hunted.wait_for_work()


def test_a_few_kills_change_nothing(hunt: Hunt, seed: int) -> None:
    hunted = hunt()
    kill_at_random(hunted, random.Random(seed), 6)
    hunted.finish(hunted.full_course)
    proof = hunted.proof = check_everything(hunted)
    assert proof.compared["plans"] >= 2 * hunted.full_course
    assert proof.compared["commands"] > 0


@pytest.mark.faults
def test_kills_change_nothing(hunt: Hunt, seed: int) -> None:
    """With a context long enough for the ridge regression, whose futures are drawn."""
    hunted = hunt(replace(STREAM, context_steps=72))
    kill_at_random(hunted, random.Random(seed), 25)
    hunted.finish(hunted.full_course)
    proof = hunted.proof = check_everything(hunted)
    assert hunted.kills >= 25
    assert proof.compared["plans"] >= 2 * hunted.full_course
