"""The suite can fail: a worker that publishes its commit record before its outputs is found out."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("stage", ["forecast", "decide"])
def test_a_commit_record_before_its_outputs_is_found_out(hunt: Hunt, seed: int, stage: str) -> None:
    mutant = ("tests.faults.mutant", "commit-first")
    hunted = hunt()
    hunted.in_table = False
    hunted.begin(program=mutant)
    hunted.wait_for_work()
    hunted.end()
    hunted.begin(fail_points=f"{stage}.before_outputs:3", program=mutant)
    hunted.wait_for_death()
    hunted.begin(program=mutant)
    hunted.finish(16)
    with pytest.raises(AssertionError, match="missing"):
        check_everything(hunted)
