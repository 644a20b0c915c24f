"""Death at every named point of a stage's life changes nothing; a point that nobody reached fails the test."""

from __future__ import annotations

import random
import signal

import pytest

from infra.worker.fail_points import ALL_POINTS, hit_line
from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything
from tests.faults.hunted import Hunted

REVOKED = tuple(p for p in ALL_POINTS if p.endswith("after_revoked"))
PLAIN = tuple(p for p in ALL_POINTS if p not in REVOKED)
FEW = ("ingest.after_outputs", "forecast.before_outputs", "decide.after_outputs", "restore.partition")


def die_at(hunted: Hunted, point: str, rng: random.Random) -> None:
    """One life that ends at the point, at a random one of its visits."""
    visits = {"restore.partition": 6, "restore.begin": 1, "restore.end": 1}.get(point, 8)
    hunted.begin(fail_points=f"{point}:{rng.randint(1, visits)}")
    hunted.wait_for_death()


def die_revoked(hunted: Hunted, point: str) -> None:
    """Another worker comes; the first dies with its partitions taken away."""
    hunted.begin(fail_points=f"{point}:1")
    hunted.wait_for_work()
    hunted.begin("w1")
    hunted.wait_for_death()
    hunted.wait_for_work()
    hunted.end("w1", signal.SIGKILL)


def sleep_between_output_and_commit(hunted: Hunted, stage: str) -> None:
    """A worker stops itself there; another takes over; the first wakes up and publishes its stale commit record."""
    point = f"{stage}.before_commit"
    hunted.begin("zombie", fail_points=f"{point}:3:stop")
    hunted.wait_for_log("zombie", hit_line(point, "stop"))
    hunted.begin("heir")
    hunted.wait_for_work()
    hunted.resume("zombie")
    hunted.wait_for_work()
    hunted.retire("zombie")
    hunted.end("heir")


def test_a_few_deaths_a_zombie_and_a_few_kills_change_nothing(hunt: Hunt, seed: int) -> None:
    rng = random.Random(seed)
    hunted = hunt()
    for point in FEW:
        die_at(hunted, point, rng)
    sleep_between_output_and_commit(hunted, rng.choice(("ingest", "forecast", "decide")))
    hunted.kill_at_random(rng, 3)
    hunted.finish(hunted.full_course)
    proof = hunted.proof = check_everything(hunted)
    assert proof.compared["plans"] >= 2 * hunted.full_course
    assert proof.compared["commands"] > 0
    hits = hunted.fail_point_hits()
    assert all(hits[point] for point in FEW), hits


@pytest.mark.faults
def test_death_at_every_point_changes_nothing(hunt: Hunt, seed: int) -> None:
    rng = random.Random(seed)
    hunted = hunt()
    hunted.begin()
    hunted.wait_for_work()
    hunted.end(number=signal.SIGKILL)
    for point in rng.sample(PLAIN, len(PLAIN)):
        die_at(hunted, point, rng)
    for point in REVOKED:
        die_revoked(hunted, point)
    hunted.begin()
    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)
    never = set(ALL_POINTS) - set(hunted.fail_point_hits())
    assert not never, f"no worker ever reached {never}"


@pytest.mark.faults
def test_a_zombie_of_each_stage_changes_nothing(hunt: Hunt, seed: int) -> None:
    hunted = hunt()
    for stage in ("ingest", "forecast", "decide"):
        sleep_between_output_and_commit(hunted, stage)
    # And one that is stopped wherever it is, for longer than its session, while it holds all stages.
    hunted.begin("zombie")
    hunted.wait_for_work()
    hunted.pause("zombie")
    hunted.begin("heir")
    hunted.wait_for_work()
    hunted.resume("zombie")
    hunted.wait_for_work()
    hunted.retire("zombie")
    hunted.finish(hunted.full_course)
    proof = hunted.proof = check_everything(hunted)
    assert sum(proof.repeats.values()) > 0, "no zombie wrote anything"
