"""Mixes of requests go on as they went on before: laws of the paths of work, and an independent count of the past."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.bursts.mixes import ROWS, work_paths
from model.capacity.law import EngineLaw, EngineSlot

PROMPT, LIGHT, HEAVY = 300.0, 40.0, 400.0
STEP_S, HORIZON, PATHS = 15.0, 28, 256
RATE_RPS = 2.0


def law(answer: float = LIGHT) -> EngineLaw:
    """A law that has seen requests with answers of so many tokens."""
    seen = EngineLaw(0.15, 5.0, 0.3)
    slot = EngineSlot(STEP_S, 2, RATE_RPS, RATE_RPS * PROMPT, RATE_RPS * answer, 4.0, 0.0, 0.2)
    for _ in range(200):
        seen.observe(slot)
    return seen


def means_of(answers: list[float], rate: float = RATE_RPS) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    rows = np.array([(rate, rate * PROMPT, rate * answer) for answer in answers], np.float32)
    return rows, np.ones(rows.shape, np.bool_)


def paths_of(
    answers: list[float], *, present: float = LIGHT, rate: float = RATE_RPS, origin_ts_ms: int = 0
) -> NDArray[np.float32] | None:
    return work_paths(law(present), *means_of(answers, rate), "w", origin_ts_ms, STEP_S, (HORIZON, PATHS))


def heavier(present: float = LIGHT, later: float = HEAVY) -> float:
    """Work of a request with the later answer, by that with the present one."""
    work = law(present).relative_work(np.array([PROMPT]), np.array([later]))
    assert work is not None
    return float(work[0])


def test_a_mix_that_never_changed_stays() -> None:
    assert paths_of([LIGHT] * ROWS) is None
    assert paths_of([LIGHT, 1.01 * LIGHT] * 72) is None


def test_as_many_paths_turn_heavy_as_did_before() -> None:
    """Of 24 stretches of six rows the last row is heavy, so a light row is followed by a heavy one once in five."""
    answers = ([LIGHT] * 5 + [HEAVY]) * 24
    shares = []
    for origin_ts_ms in range(0, 40_000, 1_000):
        paths = paths_of(answers, origin_ts_ms=origin_ts_ms)
        assert paths is not None
        shares.append((paths[-1] > 0.5 * heavier()).mean())
    # A path that begins somewhere within ten minutes has (HORIZON - 1/2) steps ahead of it.
    expected = (HORIZON - 0.5) * STEP_S / 600.0 / 5.0
    assert np.mean(shares) == pytest.approx(expected, rel=0.1)


def test_a_change_has_the_size_it_had() -> None:
    paths = paths_of(([LIGHT] * 2 + [HEAVY] * 2) * 36)
    assert paths is not None
    changed = paths[paths > 1.5]
    assert len(changed)
    assert changed == pytest.approx(np.full(len(changed), heavier()), rel=1e-3)


def test_heavy_requests_become_light_again() -> None:
    paths = paths_of(([LIGHT] * 2 + [HEAVY] * 2) * 36, present=HEAVY)
    assert paths is not None
    assert (paths < 0.5).any()
    assert (paths <= 1.0 + 1e-6).all()


def test_a_mix_never_seen_before_lasts() -> None:
    assert paths_of([HEAVY, 2 * HEAVY] * 72) == pytest.approx(np.ones((HORIZON, PATHS)), abs=1e-6)


def test_rows_with_few_requests_and_gaps_tell_nothing() -> None:
    assert paths_of([LIGHT, HEAVY] * 72, rate=0.1) is None
    means, observed = means_of(([LIGHT] * 5 + [HEAVY]) * 24)
    observed[5::6] = False  # all the heavy ones
    assert work_paths(law(), means, observed, "w", 0, STEP_S, (HORIZON, PATHS)) is None


def test_without_a_known_mix_nothing_is_said() -> None:
    means, observed = means_of([LIGHT, HEAVY] * 72)
    assert work_paths(EngineLaw(0.15, 5.0, 0.3), means, observed, "w", 0, STEP_S, (HORIZON, PATHS)) is None


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(1.0, 5_000.0), min_size=2, max_size=ROWS),
    st.floats(1.0, 60.0),
    st.integers(1, 64),
    st.integers(1, 300),
    st.integers(0, 2**40),
)
def test_paths_are_finite_positive_and_fixed_by_workload_and_origin(
    answers: list[float], step_s: float, horizon: int, paths: int, origin_ts_ms: int
) -> None:
    answers = [*answers, 1.0, 5_000.0]  # so that there is a change
    made = [work_paths(law(), *means_of(answers), "w", origin_ts_ms, step_s, (horizon, paths)) for _ in range(2)]
    assert made[0] is not None
    assert made[1] is not None
    assert np.isfinite(made[0]).all()
    assert (made[0] > 0).all()
    assert np.array_equal(made[0], made[1])
