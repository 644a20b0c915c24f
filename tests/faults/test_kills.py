"""kill -9 at random moments changes nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything
from tests.integration.pipeline import STREAM


@pytest.mark.faults
def test_kills_change_nothing(hunt: Hunt, seed: int) -> None:
    """With a context long enough for the ridge regression, whose futures are drawn."""
    hunted = hunt(replace(STREAM, context_steps=72))
    hunted.kill_at_random(random.Random(seed), 25)
    hunted.finish(hunted.full_course)
    proof = hunted.proof = check_everything(hunted)
    assert hunted.kills >= 25
    assert proof.compared["plans"] >= 2 * hunted.full_course
