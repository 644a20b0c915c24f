"""Capacity posterior: learning on synthetic truth, refusing what is not evidence, laws, state."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.capacity import posterior as capacity_belief
from model.capacity.posterior import CapacityPosterior
from tests.model.capacity.taught import SLOT, STEP_MS, Truth, taught


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("declared_factor", [None, 0.7, 1.0, 1.6])
@pytest.mark.parametrize("steepness", [8.0, 25.0])
def test_converges_to_the_truth(seed: int, declared_factor: float | None, steepness: float) -> None:
    truth = Truth(3.7, steepness, seed)
    declared = None if declared_factor is None else truth.capacity * declared_factor
    posterior = taught(CapacityPosterior(declared, smoothing_s=0.0), truth, 800)
    low, middle, high = posterior.quantiles((0.01, 0.5, 0.99))
    assert middle == pytest.approx(truth.capacity, rel=0.1)
    assert low < truth.capacity * 1.06
    assert high > truth.capacity * 0.94
    assert high / low < 1.5
    assert posterior.steepness == pytest.approx(steepness, rel=0.5)


def test_the_capacity_is_where_the_objective_says() -> None:
    """The same service carries more where more may miss: by the power of the curve."""
    strict, loose = (CapacityPosterior(None, objective=o, smoothing_s=0.0) for o in (0.99, 0.9))
    for posterior in (strict, loose):
        taught(posterior, Truth(3.7, 10.0, 5), 1500)
    expected = 3.7 * (99.0 / 9.0) ** 0.1
    assert loose.quantiles((0.5,))[0] == pytest.approx(expected, rel=0.1)
    assert loose.quantiles((0.5,))[0] > strict.quantiles((0.5,))[0]
    assert loose.miss_share(expected) == pytest.approx(0.1, rel=0.5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_follows_a_change_of_the_requests(seed: int) -> None:
    """The requests become twice as heavy under the same load: within half an hour the estimate has followed."""
    before, after = Truth(4.0, 15.0, seed), Truth(2.0, 15.0, seed + 10)
    posterior = taught(CapacityPosterior(4.0, smoothing_s=0.0), before, 1000)
    after._now_ms = before._now_ms
    for load in before.loads(120):
        posterior.observe(after.slot(load))
    assert posterior.quantiles((0.5,))[0] == pytest.approx(after.capacity, rel=0.25)


def test_a_quiet_night_neither_teaches_nor_erases() -> None:
    truth = Truth(4.0, 15.0, 0)
    posterior = taught(CapacityPosterior(3.0, smoothing_s=0.0), truth, 1500)
    before = posterior.quantiles((0.05, 0.5, 0.95))
    for _ in range(1920):
        posterior.observe(truth.slot(0.4))
    assert posterior.quantiles((0.05, 0.5, 0.95)) == pytest.approx(before, rel=0.05)


def test_what_was_carried_raises_the_low_quantiles_and_says_nothing_of_more() -> None:
    posterior = CapacityPosterior(None, smoothing_s=0.0)
    for k in range(40):
        posterior.observe(replace(SLOT, end_ts_ms=(k + 1) * STEP_MS, arrival_rate=300.0))
    low, high = posterior.quantiles((0.01, 0.95))
    assert low > 0.9 * 30.0
    assert high > 2.0 * 30.0  # nothing was seen there: wide


def test_the_grid_follows_loads_far_from_what_was_declared() -> None:
    truth = Truth(400.0, 15.0, 0)
    posterior = taught(CapacityPosterior(1.0, smoothing_s=0.0), truth, 1500)
    assert posterior.quantiles((0.5,))[0] == pytest.approx(truth.capacity, rel=0.15)


def told(posterior: CapacityPosterior, *slots: dict[str, object]) -> list[str]:
    start = 0 if posterior._last_ts_ms is None else posterior._last_ts_ms
    made = (replace(SLOT, end_ts_ms=start + (k + 1) * STEP_MS, **s) for k, s in enumerate(slots))  # type: ignore[arg-type]
    return [posterior.observe(s) for s in made]


def unmoved(posterior: CapacityPosterior, *slots: dict[str, object]) -> list[str]:
    """Verdicts on slots that must leave the posterior as it was."""
    told(posterior, {})
    before = posterior.quantiles((0.05, 0.5, 0.95)).tolist()
    verdicts = told(posterior, *slots)
    assert posterior.quantiles((0.05, 0.5, 0.95)).tolist() == before
    return verdicts


BAD = {"miss_ratio": 0.5}


def test_cold_starts_are_refused() -> None:
    posterior = CapacityPosterior(4.0)
    slots = [BAD | {"pending": 2}, BAD | {"draining": 1}, *([BAD | {"ready": 12}] * 4)]
    assert unmoved(posterior, *slots) == ["fleet_changing", "fleet_changing", *["cold_start"] * 4]
    assert told(posterior, BAD | {"ready": 12}) == ["bad"]


def test_a_fleet_stuck_pending_teaches_after_a_while() -> None:
    posterior = CapacityPosterior(4.0)
    told(posterior, {})
    verdicts = told(posterior, *([{"pending": 1}] * 45))
    assert verdicts[:40] == ["fleet_changing"] * 40
    assert verdicts[41:] == ["good"] * 4


@pytest.mark.parametrize("slot", [{"arrival_rate": None}, {"ready": None}, {"arrival_rate": math.nan}])
def test_what_was_not_observed_is_refused(slot: dict[str, object]) -> None:
    assert unmoved(CapacityPosterior(4.0), BAD | slot) == ["unobserved"]


def test_idle_and_unclear_slots_are_refused() -> None:
    posterior = CapacityPosterior(4.0, smoothing_s=0.0)
    assert unmoved(posterior, {"arrival_rate": 0.0}, {"miss_ratio": None, "waiting": None}) == ["idle", "unclear"]
    assert unmoved(posterior, {"ready": 0}) == ["idle"]


@pytest.mark.parametrize("ready", [1, 2, 7])
def test_a_silence_of_hours_is_idle(ready: int) -> None:
    """The smoothed rate fades down to the smallest number there is, whose share per replica is 0."""
    posterior = CapacityPosterior(4.0)
    silent = {"arrival_rate": 0.0, "miss_ratio": None, "waiting": 0.0, "ready": ready}
    verdicts = told(posterior, {"ready": ready}, *([silent] * 700))
    assert verdicts[-1] == "idle"
    assert told(posterior, {"ready": ready})[0] in ("good", "bad")


def test_a_queue_left_over_explains_misses_while_it_shrinks() -> None:
    posterior = CapacityPosterior(4.0, smoothing_s=0.0)
    told(posterior, {})
    verdicts = told(
        posterior,
        BAD | {"arrival_rate": 60.0, "waiting": 200.0},
        BAD | {"arrival_rate": 60.0, "waiting": 500.0},
        BAD | {"arrival_rate": 10.0, "waiting": 60.0},
        BAD | {"arrival_rate": 10.0, "waiting": 20.0},
        BAD | {"arrival_rate": 10.0, "waiting": 0.0},
        BAD | {"arrival_rate": 10.0, "waiting": 0.0},
        {"arrival_rate": 10.0},
        BAD | {"arrival_rate": 10.0, "waiting": 0.0},
    )
    assert verdicts == ["bad", "bad", "backlog", "backlog", "backlog", "backlog", "good", "bad"]


def test_a_long_queue_is_bad_whatever_the_misses_say() -> None:
    posterior = CapacityPosterior(4.0, smoothing_s=0.0)
    assert told(posterior, {"miss_ratio": None, "waiting": 50.0}, {"miss_ratio": 0.0, "waiting": 60.0}) == ["bad"] * 2
    assert told(CapacityPosterior(4.0), {"miss_ratio": None, "waiting": 5.0}) == ["good"]


def test_few_requests_say_little() -> None:
    few, many = CapacityPosterior(4.0), CapacityPosterior(4.0)
    told(few, {"arrival_rate": 0.2})
    told(many, {"arrival_rate": 200.0})
    assert 0 < few.evidence < 0.2 * many.evidence


def test_an_old_slot_is_ignored() -> None:
    posterior = CapacityPosterior(4.0)
    told(posterior, {}, {})
    assert posterior.observe(replace(SLOT, end_ts_ms=STEP_MS, miss_ratio=1.0)) == "unobserved"


def test_unknown_until_declared_or_seen() -> None:
    posterior = CapacityPosterior(None)
    assert not posterior.known
    with pytest.raises(ValueError, match="capacity is unknown"):
        posterior.quantiles((0.5,))
    told(posterior, *([{}] * 10))
    assert posterior.known
    assert CapacityPosterior(2.0).known
    assert CapacityPosterior(2.0).quantiles((0.5,))[0] == pytest.approx(2.0, rel=0.01)
    with pytest.raises(ValueError, match="declared_rps must be a positive number"):
        CapacityPosterior(-1.0)


observations = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([0.0, 1e-9, 1e12, math.nan, math.inf, -1.0]), st.floats(0.001, 1e4)),
        st.one_of(st.none(), st.floats(0, 1), st.just(math.nan)),
        st.one_of(st.none(), st.floats(0, 1e6)),
        st.integers(0, 40),
        st.sampled_from([0, 0, 0, 1]),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(observations, st.sampled_from([None, 1e-3, 2.0, 1e4]))
def test_whatever_is_observed_the_answers_make_sense_and_the_state_comes_back(
    seen: list[tuple[float | None, float | None, float | None, int, int]], declared: float | None
) -> None:
    posterior = CapacityPosterior(declared)
    for k, (rate, miss, waiting, ready, pending) in enumerate(seen):
        slot = replace(SLOT, end_ts_ms=(k + 1) * STEP_MS, arrival_rate=rate, miss_ratio=miss, waiting=waiting)
        posterior.observe(replace(slot, ready=ready, pending=pending))
        posterior = CapacityPosterior.restore(
            msgspec.msgpack.decode(msgspec.msgpack.encode(posterior.snapshot())), declared
        )
    if not posterior.known:
        return
    quantiles = posterior.quantiles(np.linspace(0.0, 1.0, 33))
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles) >= 0).all()
    assert (quantiles > 0).all()
    risk = [posterior.miss_share(load) for load in np.geomspace(1e-5, 1e6, 60)]
    assert all(0.0 <= a <= 1.0 for a in risk)
    assert (np.diff(risk) >= -1e-12).all()


def test_a_restored_posterior_goes_on_as_the_same() -> None:
    truth = Truth(4.0, 15.0, 3)
    posterior = taught(CapacityPosterior(3.0), truth, 300)
    blob = msgspec.msgpack.encode(posterior.snapshot())
    assert len(blob) < 2500
    restored = CapacityPosterior.restore(msgspec.msgpack.decode(blob), 3.0)
    assert restored.quantiles((0.01, 0.5)).tolist() == posterior.quantiles((0.01, 0.5)).tolist()
    for load in truth.loads(50):
        slot = truth.slot(load)
        assert restored.observe(slot) == posterior.observe(slot)
    assert restored.snapshot() == posterior.snapshot()
    with pytest.raises(ValueError, match="version 3"):
        CapacityPosterior.restore({"v": 3})


def test_draws_follow_the_quantiles_and_the_seed() -> None:
    posterior = CapacityPosterior(4.0)
    draws = posterior.draws(2000, 7)
    assert np.array_equal(draws, posterior.draws(2000, 7))
    assert not np.array_equal(draws, posterior.draws(2000, 8))
    assert np.mean(draws <= posterior.quantiles((0.1,))[0]) == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("declared", [None, 3.0])
@pytest.mark.parametrize("factor", [0.02, 7.0, 400.0])
def test_in_another_unit_it_says_the_same(declared: float | None, factor: float) -> None:
    posterior = taught(CapacityPosterior(declared), Truth(3.7, 15.0, 0), 600)
    in_unit = posterior.converted(factor, None if declared is None else declared * factor)
    levels = (0.05, 0.5, 0.95)
    assert in_unit.quantiles(levels) == pytest.approx(posterior.quantiles(levels) * factor, rel=0.03)
    assert in_unit.evidence == posterior.evidence
    back = in_unit.converted(1.0 / factor, declared)
    assert back.quantiles(levels) == pytest.approx(posterior.quantiles(levels), rel=1e-12)
    kept = ("bins", "weights", "fleet", "changed_ts_ms", "last_ts_ms")
    assert [back.snapshot()[name] for name in kept] == [posterior.snapshot()[name] for name in kept]


@pytest.mark.parametrize("off_by", [1.1, 1.6, 2.2])
def test_a_declared_figure_is_believed_within_the_factor_it_may_be_off_by(off_by: float) -> None:
    low, middle, high = CapacityPosterior(2.0, off_by=off_by).quantiles((0.16, 0.5, 0.84))
    assert middle == pytest.approx(2.0, rel=0.01)
    assert middle / low == pytest.approx(off_by, rel=0.1)
    assert high / middle == pytest.approx(off_by, rel=0.1)


def test_an_estimate_gives_way_to_what_is_seen_sooner_than_a_load_test() -> None:
    """Three times too high: the first bad slots move it further."""
    estimate, tested = (
        taught(CapacityPosterior(6.0, off_by=f, smoothing_s=0.0), Truth(2.0, 15.0, 1), 6) for f in (2.2, None)
    )
    assert estimate.quantiles((0.5,))[0] < tested.quantiles((0.5,))[0]
    assert estimate.quantiles((0.5,))[0] == pytest.approx(2.0, rel=0.5)


def test_how_far_it_may_be_off_is_kept_in_another_unit_and_read_with_a_snapshot() -> None:
    posterior = taught(CapacityPosterior(2.0, off_by=2.2, smoothing_s=0.0), Truth(2.0, 15.0, 1), 3)
    levels = (0.05, 0.5, 0.95)
    restored = CapacityPosterior.restore(posterior.snapshot(), 2.0, off_by=2.2, smoothing_s=0.0)
    assert restored.quantiles(levels).tolist() == posterior.quantiles(levels).tolist()
    tokens = posterior.converted(100.0, 200.0).quantiles(levels) / 100.0
    assert tokens == pytest.approx(posterior.quantiles(levels), rel=0.03)
    for wrong in (1.0, 0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="off_by must be a factor above 1"):
            CapacityPosterior(2.0, off_by=wrong)


def test_a_fleet_keeps_few_grids_and_answers_the_same_without() -> None:
    fleet = [CapacityPosterior(1.0 + n / 100) for n in range(1100)]
    first = [posterior.cumulative()[1] for posterior in fleet]
    assert len(capacity_belief._posteriors) == 1024
    assert fleet[0] not in capacity_belief._posteriors
    assert fleet[-1].cumulative()[1] is first[-1]
    again = fleet[0].cumulative()[1]
    assert again is not first[0]
    assert (again == first[0]).all()
