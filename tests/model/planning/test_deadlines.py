"""Work with deadlines: the closed condition against earliest-deadline-first played out, and laws of the floor."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from model.planning.deadlines import DEADLINE_EXTENSION_S, Floor, Job, Means, meets, min_replicas_for_deadlines

STEP_S = 10.0


def means(online: list[float], capacity: float = 1.0, ready: int = 1, lead_s: float = 30.0) -> Means:
    return Means(np.array(online, np.float64), STEP_S, capacity, ready, lead_s)


def played_out(jobs: list[Job], given_means: Means, replicas: int) -> bool:
    """Whether all deadlines are met when the job due first always has all that is left over: exact, slice by slice."""
    end = max(job.due_s for job in jobs)
    step, lead = Fraction(given_means.step_s), Fraction(given_means.lead_s)
    arrives = -(-lead // step) * step
    cuts = {Fraction(0), arrives, *(Fraction(t) for job in jobs for t in (max(job.release_s, 0.0), job.due_s))}
    cuts |= {step * k for k in range(int(end / given_means.step_s) + 2)}
    times = sorted(t for t in cuts if 0 <= t <= end)
    left = [Fraction(job.work) for job in jobs]
    for start, stop in pairwise(times):
        at = min(int(start // step), len(given_means.online) - 1)
        serving = replicas if start >= arrives else min(replicas, given_means.ready)
        rate = serving * Fraction(given_means.capacity) - Fraction(float(given_means.online[at]))
        room = max(rate, Fraction(0)) * (stop - start)
        for k in sorted(range(len(jobs)), key=lambda k: jobs[k].due_s):
            if jobs[k].release_s <= start:
                done = min(left[k], room)
                left[k] -= done
                room -= done
        if any(left[k] > 0 for k in range(len(jobs)) if jobs[k].due_s <= stop):
            return False
    return True


quarters = st.integers(0, 40).map(lambda k: k / 4)
jobs_of = st.lists(
    st.builds(
        lambda release, length, work: Job(release, release + length, work),
        release=st.sampled_from([-5.0, 0.0, 5.0, 20.0, 60.0, 100.0]),
        length=st.sampled_from([10.0, 25.0, 40.0, 90.0]),
        work=st.integers(1, 200).map(lambda k: k / 2),
    ),
    min_size=1,
    max_size=5,
)
means_of = st.builds(
    means,
    online=st.lists(quarters, min_size=1, max_size=8),
    capacity=st.sampled_from([0.5, 1.0, 2.0]),
    ready=st.integers(0, 4),
    lead_s=st.sampled_from([0.0, 10.0, 15.0, 30.0, 70.0]),
)


@settings(max_examples=300)
@given(jobs_of, means_of, st.integers(0, 30))
def test_the_condition_holds_exactly_when_playing_it_out_meets_all_deadlines(
    jobs: list[Job], given_means: Means, replicas: int
) -> None:
    assume(all(job.due_s > 0 for job in jobs))
    assert meets(jobs, given_means, replicas) == played_out(jobs, given_means, replicas)


@settings(max_examples=150)
@given(jobs_of, means_of, st.integers(0, 3), st.integers(0, 25))
def test_the_floor_is_the_first_count_that_meets_them(jobs: list[Job], given_means: Means, low: int, more: int) -> None:
    assume(all(job.due_s > 0 for job in jobs))
    high = low + more
    enough = [n for n in range(low, high + 1) if played_out(jobs, given_means, n)]
    found = min_replicas_for_deadlines(jobs, given_means, low, high)
    assert found.in_time == bool(enough)
    if enough:
        assert found.replicas == enough[0]
    assert low <= found.replicas <= high


@given(jobs_of, means_of)
def test_more_work_earlier_deadlines_or_more_load_never_need_fewer(jobs: list[Job], given_means: Means) -> None:
    base = min_replicas_for_deadlines(jobs, given_means, 0, 500)
    assume(base.in_time)
    more = min_replicas_for_deadlines([job._replace(work=job.work * 2) for job in jobs], given_means, 0, 500)
    busier = Means(given_means.online + 1.0, STEP_S, given_means.capacity, given_means.ready, given_means.lead_s)
    for harder in (more, min_replicas_for_deadlines(jobs, busier, 0, 500)):
        assert harder.replicas >= base.replicas or not harder.in_time


def test_no_work_needs_no_replica() -> None:
    assert min_replicas_for_deadlines([], means([5.0]), 0, 9) == Floor(0, in_time=True)
    assert min_replicas_for_deadlines([Job(0.0, 10.0, 0.0)], means([5.0]), 2, 9) == Floor(2, in_time=True)


def test_a_day_of_work_needs_what_is_left_beside_online_load() -> None:
    """72,000 requests in ten hours are 2/s; 1.5/s are online; a replica carries 1/s."""
    night = [Job(0.0, 36_000.0, 72_000.0)]
    assert min_replicas_for_deadlines(night, means([1.5], ready=4), 1, 64) == Floor(4, in_time=True)
    assert min_replicas_for_deadlines(night, means([1.5], ready=3), 1, 64) == Floor(4, in_time=True)
    later = [Job(18_000.0, 36_000.0, 72_000.0)]
    assert min_replicas_for_deadlines(later, means([1.5]), 1, 64).replicas == 6


NIGHT_SHIFT = Means(np.zeros(1), 600.0, 1.0, 20, 60.0)
PRESSING = Job(0.0, 900.0, 7_000.0)  # needs eight
OVERDUE, TOO_SOON = Job(-600.0, -1.0, 1.0), Job(0.0, 60.0, 2_000.0)


@pytest.mark.parametrize("late", [OVERDUE, TOO_SOON, Job(-9_000.0, -7_195.0, 200.0)])
def test_what_is_late_gives_nothing_else_more_time(late: Job) -> None:
    assert min_replicas_for_deadlines([PRESSING], NIGHT_SHIFT, 1, 20) == Floor(8, in_time=True)
    assert min_replicas_for_deadlines([PRESSING, late], NIGHT_SHIFT, 1, 20) == Floor(8, in_time=False)


late_jobs = st.lists(
    st.builds(
        lambda due_s, work: Job(-20_000.0, due_s, work),
        due_s=st.sampled_from([-9_000.0, -3_600.0, -1.0, 0.0]),
        work=st.sampled_from([1.0, 50.0, 1e3, 1e5]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=150)
@given(jobs_of, late_jobs, means_of, st.integers(0, 25))
def test_late_work_never_lowers_the_floor_of_what_can_be_done_in_time(
    jobs: list[Job], late: list[Job], given_means: Means, high: int
) -> None:
    alone = min_replicas_for_deadlines(jobs, given_means, 0, high)
    assume(alone.in_time)
    both = min_replicas_for_deadlines([*late, *jobs], given_means, 0, high)
    assert alone.replicas <= both.replicas <= high
    assert not both.in_time
    assert min_replicas_for_deadlines([*jobs, *late], given_means, 0, high) == both


@pytest.mark.parametrize("work", [3_600.0, 36_000.0, 70_000.0])
def test_the_hour_of_what_is_late_counts_from_its_deadline(work: float) -> None:
    """The floor is obeyed each minute."""
    left, late_s = work, 0.0
    while left > 0:
        assert late_s < DEADLINE_EXTENSION_S
        left -= 60.0 * min_replicas_for_deadlines([Job(-600.0, -late_s, left)], NIGHT_SHIFT, 0, 20).replicas
        late_s += 60.0


def test_just_before_its_hour_is_over_a_rest_does_not_cost_all_there_is() -> None:
    assert min_replicas_for_deadlines(
        [Job(-9_000.0, 10.0 - DEADLINE_EXTENSION_S, 1_000.0)], NIGHT_SHIFT, 0, 20
    ) == Floor(1, in_time=False)


@pytest.mark.parametrize("due_s", [-100.0, 0.0, 20.0])
def test_what_cannot_be_done_in_time_is_done_within_the_hour_and_not_at_any_price(due_s: float) -> None:
    """Nobody ordered now can help before the deadline."""
    found = min_replicas_for_deadlines([Job(-500.0, due_s, 3470.0)], means([0.0], ready=0, lead_s=30.0), 0, 64)
    assert found == Floor(1, in_time=False)
    assert DEADLINE_EXTENSION_S == 3600.0
    assert min_replicas_for_deadlines([Job(0.0, due_s, 1e9)], means([0.0]), 0, 64) == Floor(64, in_time=False)
