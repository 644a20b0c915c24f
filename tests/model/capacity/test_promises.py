"""Which promise was missed: what percentiles say of a slot, and counts that never part from those of both together."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity.attribution import UNTOLD, MissedBy, Strain, counts_by_promise, missed_by
from model.capacity.evidence import LoadEvidence, misses_of
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from tests.model.capacity.taught import SLOT, STEP_MS, Truth

TTFT, TPOT, BOTH = MissedBy(1.0, 0.0), MissedBy(0.0, 1.0), MissedBy(1.0, 1.0)
LEVELS = (0.05, 0.5, 0.95)


@pytest.mark.parametrize(
    ("ttft", "tpot", "queued", "who"),
    [
        (1.2, 0.9, False, TTFT),
        (0.9, 1.2, False, TPOT),
        (1.1, 9.0, False, BOTH),
        (0.3, 0.8, False, TPOT),
        (0.8, 0.3, False, TTFT),
        (None, 0.8, False, UNTOLD),
        (2.0, None, False, UNTOLD),
        (None, None, False, UNTOLD),
        (None, None, True, TTFT),
        (0.1, 0.9, True, TTFT),
        (0.1, 1.1, True, BOTH),
    ],
)
def test_a_promise_above_its_limit_owns_what_missed(
    ttft: float | None, tpot: float | None, queued: bool, who: MissedBy
) -> None:
    assert missed_by(Strain(ttft, tpot), queued) == who
    assert missed_by(None, queued) == UNTOLD


def test_only_a_queue_too_long_for_all_is_said_to_be_one() -> None:
    long, short = (misses_of(replace(SLOT, waiting=w), 20.0, 0.1, w) for w in (50.0, 30.0))
    assert long is not None
    assert short is not None
    assert (long.share, long.queued) == (1.0, True)
    assert (short.share, short.queued) == (0.1, False)


weights = st.floats(0.0, 50.0, width=32)
owners = st.sampled_from((UNTOLD, TTFT, TPOT, BOTH))
places = st.floats(100.0, 400.0) | st.sampled_from((250.0, 251.0, 700.0))
added = st.tuples(st.just("add"), places, weights, weights, owners)
faded = st.tuples(st.just("fade"), st.floats(0.0, 1.0))
others = st.sampled_from(("store", "copy", "move up", "move down")).map(lambda name: (name,))
replaced = st.tuples(st.just("replace"), st.floats(0.0, 1.0))
steps = st.lists(added | faded | others | replaced, max_size=25)


def lived(history: list[tuple[object, ...]], told: bool) -> LoadEvidence:
    """What a history leaves; not told, nobody knows what was missed."""
    evidence, before = LoadEvidence(), LoadEvidence()
    for name, *what in history:
        match name:
            case "add":
                place, good, missed, by = what
                evidence.add(place, good, missed, by if told else UNTOLD)  # type: ignore[arg-type]
            case "fade":
                evidence.fade(float(what[0]))  # type: ignore[arg-type]
            case "store":
                evidence = LoadEvidence.of(evidence.stored(), evidence.stored_promises())
            case "copy":
                before = evidence.copy()
            case "move up":
                evidence = evidence.shifted(7)
            case "move down":
                evidence = evidence.shifted(-3)
            case "replace":
                evidence.replace(float(what[0]), before)  # type: ignore[arg-type]
    return evidence


@given(steps)
def test_what_missed_a_promise_stays_beside_what_missed_any(history: list[tuple[object, ...]]) -> None:
    evidence = lived(history, told=True)
    for unit in (evidence, evidence.shifted(5)):
        cells = unit.cells_by_promise
        assert (cells[3:] >= 0.0).all()
        assert (cells[3:] <= cells[2]).all()
    again = LoadEvidence.of(evidence.stored(), evidence.stored_promises())
    assert (again.stored(), again.stored_promises()) == (evidence.stored(), evidence.stored_promises())
    assert np.array_equal(again.cells_by_promise, evidence.cells_by_promise)


@given(steps)
def test_what_is_told_of_both_together_is_the_same_bits(history: list[tuple[object, ...]]) -> None:
    evidence, untold = lived(history, told=True), lived(history, told=False)
    assert np.array_equal(evidence.cells, untold.cells)
    assert (evidence.total, evidence.mean()) == (untold.total, untold.mean())
    assert evidence.cells.flags.c_contiguous
    assert evidence.stored() == untold.stored(), "what a release reads that does not know of promises"
    assert untold.stored_promises() == []
    known = evidence.stored_promises()
    assert not known or any(any(counts) for counts in known)
    assert all(len(counts) in (0, len(joint)) for counts, joint in zip(known, evidence.stored()[1::2], strict=False))


def test_what_earlier_releases_stored_is_read() -> None:
    bins, counts = np.array([300, 301], "<i2").tobytes(), np.array([[9.0, 8.0], [1.0, 2.0]], "<f4").tobytes()
    evidence = LoadEvidence.of([bins, counts])
    assert evidence.cells_by_promise.tolist() == [[300.0, 301.0], [9.0, 8.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert evidence.stored() == [bins, counts]
    assert list(counts_by_promise(evidence.cells_by_promise)) == []


def cells(*columns: tuple[float, float, float, float]) -> np.ndarray:
    """Good, missed, and what is known to have missed each promise, from place 300 on."""
    return np.array([(300 + k, *column) for k, column in enumerate(columns)], np.float32).T.copy()


def test_what_missed_only_the_other_promise_counts_as_good() -> None:
    counts = dict(counts_by_promise(cells((10.0, 4.0, 1.0, 3.0), (5.0, 6.0, 6.0, 6.0))))
    assert counts["ttft"].tolist() == [[300.0, 301.0], [13.0, 5.0], [1.0, 6.0]]
    assert counts["tpot"].tolist() == [[300.0, 301.0], [11.0, 5.0], [3.0, 6.0]]


def test_what_missed_nobody_knows_what_is_taken_to_be_like_the_rest() -> None:
    counts = dict(counts_by_promise(cells((10.0, 4.0, 3.0, 1.0), (5.0, 2.0, 0.0, 0.0))))
    assert counts["ttft"].tolist() == [[300.0, 301.0], [11.0, 5.5], [3.0, 1.5]]
    assert counts["tpot"].tolist() == [[300.0, 301.0], [13.0, 6.5], [1.0, 0.5]]


def test_next_to_nothing_known_is_not_told() -> None:
    assert dict(counts_by_promise(cells((10.0, 4.0, 0.9, 3.1)))).keys() == {"tpot"}
    assert list(counts_by_promise(cells((10.0, 0.9, 0.9, 0.0)))) == []
    assert list(counts_by_promise(cells((10.0, 9.0, 2.0, 2.0)))) == []


class Service:
    """Two promises, each missed as the curve of a capacity of its own says."""

    def __init__(self, ttft: float, tpot: float, seed: int) -> None:
        self.ttft, self.tpot = ttft, tpot
        self._truths = Truth(ttft, 20.0, seed), Truth(tpot, 20.0, seed + 1)

    def slots(self, num: int) -> list[SlotEvidence]:
        phase = np.linspace(0.0, 6.0 * math.pi, num)
        made = []
        for load in (self.ttft * self.tpot) ** 0.5 * (0.8 + 0.6 * np.sin(phase)):
            first, second = (truth.slot(float(load)) for truth in self._truths)
            strain = Strain(float(load / self.ttft) ** 3, float(load / self.tpot) ** 3)
            shares = (first.miss_ratio or 0.0, second.miss_ratio or 0.0)
            made.append(replace(first, miss_ratio=max(shares), strain=strain))
        return made


def taught(slots: list[SlotEvidence], declared_rps: float | None = None) -> CapacityPosterior:
    posterior = CapacityPosterior(declared_rps, smoothing_s=0.0)
    for slot in slots:
        posterior.observe(slot)
    return posterior


def middle(posterior: CapacityPosterior, promise: str) -> float:
    return float(posterior.promises()[promise].quantiles((0.5,))[0])  # type: ignore[index]


@pytest.mark.parametrize("declared", [None, 2.0])
@pytest.mark.parametrize(("ttft", "tpot"), [(3.0, 2.0), (2.0, 3.0), (2.0, 2.6)])
def test_each_promise_has_a_capacity_of_its_own(ttft: float, tpot: float, declared: float | None) -> None:
    posterior = taught(Service(ttft, tpot, 1).slots(1200), declared)
    assert middle(posterior, "ttft") == pytest.approx(ttft, rel=0.15)
    assert middle(posterior, "tpot") == pytest.approx(tpot, rel=0.15)
    assert float(posterior.quantiles((0.5,))[0]) == pytest.approx(min(ttft, tpot), rel=0.1)


@given(st.sampled_from([(3.0, 2.0), (2.0, 2.4), (2.0, 9.0)]), st.integers(0, 5), st.lists(st.floats(1e-3, 1e3)))
def test_more_load_is_never_expected_to_miss_less(
    capacities: tuple[float, float], seed: int, loads: list[float]
) -> None:
    posterior = taught(Service(*capacities, seed).slots(300))
    promises = posterior.promises()
    assert promises
    for belief in promises.values():
        shares = [belief.miss_share(load) for load in sorted(loads)]
        assert all(0.0 <= share <= 1.0 for share in shares)
        assert all(a <= b + 1e-12 for a, b in pairwise(shares))
        low, mid, high = belief.quantiles(LEVELS)
        assert low < mid < high


def test_what_is_planned_by_is_the_same_bits_whether_promises_are_told_or_not() -> None:
    slots = Service(3.0, 2.0, 3).slots(800)
    slots[400:440] = [replace(slot, waiting=900.0) for slot in slots[400:440]]
    slots[600:640] = [replace(slot, miss_ratio=1.0, arrival_rate=4.0) for slot in slots[600:640]]
    told, untold = CapacityPosterior(2.0), CapacityPosterior(2.0)
    for slot in slots:
        assert told.observe(slot) == untold.observe(replace(slot, strain=None))
        assert told.miss_share(1.9) == untold.miss_share(1.9)
    assert "fall" in told.snapshot()
    assert told.quantiles(LEVELS).tolist() == untold.quantiles(LEVELS).tolist()
    assert untold.promises() == {}
    stored = told.snapshot()
    assert stored.pop("promises")
    assert stored["fall"].pop("promises")
    assert stored == untold.snapshot(), "what a release reads that does not know of promises"


def test_nothing_missed_costs_nothing() -> None:
    told, untold = CapacityPosterior(2.0), CapacityPosterior(2.0)
    for k in range(100):
        slot = replace(SLOT, end_ts_ms=(k + 1) * STEP_MS)
        untold.observe(slot)
        told.observe(replace(slot, strain=Strain(0.2, 0.9)))
    assert told.snapshot() == untold.snapshot()
    assert told.promises() == {}


def test_where_one_promise_is_all_that_is_missed_it_is_the_capacity() -> None:
    slots = [replace(slot, strain=Strain(0.2, 0.9)) for slot in Service(9.0, 2.0, 4).slots(600)]
    posterior = taught(slots, 2.0)
    belief = posterior.promises()["tpot"]
    assert posterior.promises().keys() == {"tpot"}
    assert belief.quantiles(LEVELS).tolist() == posterior.quantiles(LEVELS).tolist()
    assert belief.miss_share(1.8) == posterior.miss_share(1.8)


def test_a_queue_that_stands_is_the_first_tokens() -> None:
    posterior = CapacityPosterior(2.0, smoothing_s=0.0)
    for k in range(40):
        slot = replace(SLOT, end_ts_ms=(k + 1) * STEP_MS, arrival_rate=25.0, miss_ratio=0.9, waiting=60.0 + 40.0 * k)
        posterior.observe(replace(slot, strain=Strain(None, None)))
    assert posterior.promises().keys() == {"ttft"}


def test_it_outlives_a_restart_and_another_unit() -> None:
    posterior = taught(Service(3.0, 2.0, 5).slots(600), 2.0)
    again = CapacityPosterior.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(posterior.snapshot())), 2.0)
    for promise, belief in posterior.promises().items():
        assert again.promises()[promise].quantiles(LEVELS).tolist() == belief.quantiles(LEVELS).tolist()
    tokens = posterior.converted(200.0, 400.0)
    for promise in ("ttft", "tpot"):
        assert middle(tokens, promise) == pytest.approx(200.0 * middle(posterior, promise), rel=0.05)
