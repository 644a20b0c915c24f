"""Laws of the online calibration of stated risks."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.calibration.risk import FinishedRequests, RiskCalibration, state_risks

STEP_MS = 15_000
COMMIT_MS = 60_000
risks = st.floats(0.0, 1.0)


def finished(bad: list[bool], delay_s: float = 0.0) -> FinishedRequests:
    """As many requests in each slot as it has seconds, all or none of them missed."""
    cells = np.stack([np.ones(len(bad)), bad], axis=1).astype(np.float32)
    return FinishedRequests(cells, np.ones(cells.shape, np.bool_), (0, 1), len(bad) * STEP_MS, STEP_MS, delay_s)


def stated(calibration: RiskCalibration, p_miss: float, stderr: float = 0.0) -> tuple[float, float]:
    """What is published for a computed risk and its standard error."""
    p, errors = np.array([[p_miss]]), np.array([[stderr]])
    state_risks(p, errors, np.array([1]), np.array([calibration.shift]))
    return float(p[0, 0]), float(errors[0, 0])


def lived(computed: float, bad: list[bool]) -> tuple[RiskCalibration, list[float]]:
    """A planner that computes one risk at every slot; returns what was published."""
    calibration, published = RiskCalibration(), []
    for k in range(len(bad)):
        now_ms = (k + 1) * STEP_MS
        calibration.settle(3, now_ms, finished(bad[: k + 1]), 0.99, STEP_MS / 1000)
        published.append(stated(calibration, computed)[0])
        calibration.offer(now_ms, now_ms + COMMIT_MS, [(2, 0.9), (3, published[-1])])
    return calibration, published


@pytest.mark.parametrize(("risk", "share"), [(0.02, 0.2), (0.2, 0.05), (0.002, 0.0)])
def test_it_learns_by_time_however_seldom_plans_are_made(risk: float, share: float) -> None:
    shifts = {}
    for every in (1, 4):
        rng, calibration, seen = np.random.default_rng(3), RiskCalibration(), []
        bad = (rng.random(400) < share).tolist()
        for k in range(len(bad)):
            now_ms = (k + 1) * STEP_MS
            calibration.settle(3, now_ms, finished(bad[: k + 1]), 0.99, STEP_MS / 1000, every)
            if k % every == 0:
                calibration.offer(now_ms, now_ms + COMMIT_MS, [(3, stated(calibration, risk)[0])])
            seen.append(calibration.shift)
        shifts[every] = np.mean(seen[200:])
    assert shifts[4] == pytest.approx(shifts[1], rel=0.35, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(risks, risks, st.floats(0.0, 1.0))
def test_published_risks_keep_their_order(p: float, q: float, share: float) -> None:
    calibration, _ = lived(0.01, (np.random.default_rng(5).random(400) < share).tolist())
    low, high = sorted((p, q))
    assert stated(calibration, low) <= stated(calibration, high)
    assert 0.0 <= stated(calibration, p)[0] <= 1.0


@pytest.mark.parametrize(("risk", "share"), [(0.005, 0.02), (0.05, 0.1), (0.2, 0.05)])
def test_in_the_long_run_as_many_windows_are_missed_as_was_stated(risk: float, share: float) -> None:
    rng = np.random.default_rng(11)
    bad = (rng.random(12_000) < share).tolist()
    calibration, published = lived(risk, bad)
    # A window of four slots is missed when any of them is.
    realized = 1.0 - (1.0 - share) ** 4
    settled = float(np.mean(published[6_000:]))
    assert settled == pytest.approx(realized, rel=0.25), (risk, share, calibration.shift)


def hours_at(calibration: RiskCalibration, published: float | None, hours: int) -> float:
    """The shift after so many hours without a miss, run at this risk, or without a plan."""
    slots, since = hours * 3_600_000 // STEP_MS, 1_000
    calm = finished([False] * 8)
    for k in range(since, since + slots):
        calibration.settle(3, k * STEP_MS, replace(calm, end_ts_ms=k * STEP_MS), 0.99, STEP_MS / 1000)
        if published is not None:
            calibration.offer(k * STEP_MS, k * STEP_MS + COMMIT_MS, [(3, published)])
    return calibration.shift


@pytest.mark.parametrize("published", [None, 0.0, 1e-4])
def test_what_a_bad_hour_taught_fades_by_half_an_hour_while_nothing_can_miss(published: float | None) -> None:
    bad, _ = lived(0.01, [True] * 40)
    assert bad.shift > 1.0
    expected = bad.shift * 0.5**3
    assert hours_at(bad, published, 3) == pytest.approx(expected, rel=0.1)


def test_a_shift_that_windows_bear_out_is_kept() -> None:
    told, untold = lived(0.01, [True] * 40)[0], lived(0.01, [True] * 40)[0]
    fair = told.shift
    rng, slots = np.random.default_rng(3), 2_880
    bad = (rng.random(slots) < 0.1).tolist()
    for k in range(8, slots):
        now_ms = (k + 1_000) * STEP_MS
        told.settle(3, now_ms, replace(finished(bad[k - 7 : k + 1]), end_ts_ms=now_ms), 0.99, STEP_MS / 1000)
        told.offer(now_ms, now_ms + STEP_MS, [(3, 0.1)])  # a window of one slot, missed as often as is stated
    assert told.shift > 0.5 * fair
    assert hours_at(untold, None, 12) < 0.01 * fair


def test_before_any_window_has_ended_risks_stand_as_computed() -> None:
    assert [stated(RiskCalibration(), p, 0.002) for p in (0.0, 0.01, 1.0)] == [(p, 0.002) for p in (0.0, 0.01, 1.0)]


def test_only_the_count_that_came_into_force_is_judged() -> None:
    for replicas, moved in ((2, False), (3, True), (7, False)):
        calibration = RiskCalibration()
        calibration.offer(0, COMMIT_MS, [(3, 0.01)])
        for k in range(1, 8):
            calibration.settle(replicas if k == 1 else 3, k * STEP_MS, finished([True] * k), 0.99, 15.0)
        assert (calibration.shift > 0) is moved, replicas


def test_a_window_is_judged_only_once_its_requests_have_finished() -> None:
    calibration = RiskCalibration()
    calibration.offer(0, COMMIT_MS, [(3, 0.01)])
    for k in range(1, 6):
        calibration.settle(3, k * STEP_MS, finished([True] * k, delay_s=30.0), 0.99, 15.0)
        assert calibration.shift == 0.0
    calibration.settle(3, 6 * STEP_MS, finished([True] * 6, delay_s=30.0), 0.99, 15.0)
    assert calibration.shift > 0.0


@pytest.mark.parametrize("objective", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_as_many_misses_as_the_objective_allows_are_no_missed_window(objective: float) -> None:
    one = round(1 / (1 - objective))  # of so many requests one may miss
    for allowed in range(1, 30):
        total = one * allowed
        for missed in (allowed, allowed + 1):
            cells = np.array([[total / STEP_MS * 1000, 1 - (total - missed) / total]], np.float32)
            window = FinishedRequests(cells, np.ones(cells.shape, np.bool_), (0, 1), STEP_MS, STEP_MS, 0.0)
            assert window.missed(0, STEP_MS, objective) is (None if total < 5 else missed > allowed)


def test_a_window_with_few_requests_says_nothing() -> None:
    cells = np.array([[0.1, 1.0]], np.float32)
    few = FinishedRequests(cells, cells > 0, (0, 1), STEP_MS, STEP_MS, 0.0)
    assert few.missed(0, COMMIT_MS, 0.99) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 19))
def test_a_restored_calibration_goes_on_with_the_same_bits(bad: list[bool], cut: int) -> None:
    straight, resumed = RiskCalibration(), RiskCalibration()
    for k in range(len(bad)):
        if k == cut:
            resumed = RiskCalibration.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(resumed.snapshot())))
        for calibration in (straight, resumed):
            calibration.settle(3, (k + 1) * STEP_MS, finished(bad[: k + 1]), 0.99, 15.0)
            calibration.offer((k + 1) * STEP_MS, (k + 3) * STEP_MS, [(3, stated(calibration, 0.02)[0])])
    assert resumed.snapshot() == straight.snapshot()


def test_other_versions_are_refused_and_none_starts_anew() -> None:
    with pytest.raises(ValueError, match="version 2"):
        RiskCalibration.restore({"v": 2})
    assert RiskCalibration.restore({}).snapshot() == RiskCalibration().snapshot()


@given(st.floats(0.001, 0.999), st.floats(0.0001, 0.1), st.integers(1, 40))
def test_a_stated_risk_errs_by_as_much_as_it_moves_with_the_computed_one(p: float, stderr: float, misses: int) -> None:
    calibration, _ = lived(0.01, [True] * misses)
    _, error = stated(calibration, p, stderr)
    little = 1e-6 * min(p, 1.0 - p)
    slope = (stated(calibration, p + little)[0] - stated(calibration, p - little)[0]) / (2.0 * little)
    assert error == pytest.approx(stderr * slope, rel=1e-3)


@given(st.integers(0, 2**32 - 1))
def test_rows_are_stated_by_the_logit_of_each_and_what_is_beside_them_stays(seed: int) -> None:
    """Against the formula, and to the bit of the computed risk where nothing has been learned."""
    rng = np.random.default_rng(seed)
    p, stderr = rng.choice([0.0, 1e-5, 0.3, 1.0, 1.0 - 1e-5], (4, 6)) * rng.random((4, 6)), rng.random((4, 6))
    numbers, shifts = rng.integers(0, 7, 4), rng.uniform(-1.0, 4.0, 4) * (rng.random(4) < 0.8)
    found, errors = p.copy(), stderr.copy()
    state_risks(found, errors, numbers, shifts)
    for b in range(4):
        for k in range(6):
            inside = min(max(p[b, k], 1e-4), 1.0 - 1e-4)
            moved = 1.0 / (1.0 + np.exp(-np.log(inside / (1.0 - inside)) - shifts[b]))
            stays = k >= numbers[b] or shifts[b] == 0.0
            told = 1e-4 < p[b, k] < 1.0 - 1e-4 and not stays
            slope = moved * (1.0 - moved) / (p[b, k] * (1.0 - p[b, k])) if told else 1.0
            assert found[b, k] == pytest.approx(p[b, k] if stays else moved, rel=1e-12, abs=0.0)
            assert errors[b, k] == pytest.approx(stderr[b, k] * slope, rel=1e-12)
