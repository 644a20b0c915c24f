"""Another model and another policy, put in force in the middle of a history and of a publication."""

from __future__ import annotations

import pytest

from agents.planning.codec import CONTROLS_PARTITION, decode_plan
from tests.faults.conftest import Hunt
from tests.faults.exactness import ANSWERS, ROLES, Proof, answer_all, check_pages, compare, undisturbed
from tests.faults.logs import ends_of, read_log

pytestmark = pytest.mark.faults

OTHER = ("tests.faults.mutant", "other-model")


def test_a_new_model_and_policy_leave_the_past_as_it_is(hunt: Hunt, seed: int) -> None:
    """The first life dies with plans published and not committed; the second, with the new model, must adopt them.

    What the first life wrote is what an undisturbed worker of the old model writes. What the second wrote is what an
    undisturbed worker of the new model writes that starts from the very logs that the first left behind.
    """
    hunted = hunt()
    hunted.begin()
    hunted.wait(lambda: hunted.num_slots > 24, "a forecast or two")
    hunted.settle()
    hunted.end()
    hunted.begin(fail_points="forecast.before_commit:4")
    hunted.wait_for_death()
    ends = {
        name: ends_of(hunted.bootstrap, getattr(hunted.topics, name)) for names in ANSWERS.values() for name in names
    }
    old = hunted.home / "old.yaml"
    old.write_text(hunted.config.read_text(encoding="utf-8"), encoding="utf-8")
    hunted.set_keys({}, epsilon=0.02)
    hunted.begin(program=OTHER)
    hunted.finish(hunted.full_course)

    proof = Proof()
    check_pages(hunted, proof)
    logged = [decode_plan(e.value) for e in read_log(hunted.bootstrap, hunted.topics.plans)]
    # Control records come apart from the slots, and name neither model nor policy.
    plans = [p for p in logged if p.partition != CONTROLS_PARTITION]
    assert len({p.model_fingerprint for p in plans}) == len({p.policy_fingerprint for p in plans}) == 2
    before = {role: undisturbed(hunted, role, name="before", settings=old) for role in ROLES}
    after = {role: undisturbed(hunted, role, {n: ends[n] for n in ANSWERS[role]}, "after") for role in ROLES}
    answer_all(before, hunted.last_slot)
    answer_all(after, hunted.last_slot, OTHER)
    for role, names in ANSWERS.items():
        for name in names:
            compare(hunted, before[role], name, role, Proof(), until=ends[name])
            compare(hunted, after[role], name, role, proof)
    hunted.proof = proof
