"""Laws of the counts that evidence of capacity is kept as, held against a lattice that is kept whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity.evidence import BINS, LoadEvidence

weights = st.floats(0.0, 50.0, width=32)
additions = st.lists(st.tuples(st.floats(-20.0, BINS + 20.0), weights, weights), max_size=12)


def made(added: list[tuple[float, float, float]]) -> LoadEvidence:
    evidence = LoadEvidence()
    for place, good, missed in added:
        evidence.add(place, good, missed)
    return evidence


def whole(added: list[tuple[float, float, float]]) -> np.ndarray:
    counts = np.zeros((2, BINS))
    for place, *shares in added:
        inside = min(max(place, 0.0), BINS - 1.001)
        low = int(inside)
        for label, share in enumerate(shares):
            counts[label, low] += share * (1.0 - (inside - low))
            counts[label, low + 1] += share * (inside - low)
    return counts


@given(additions)
def test_the_loads_seen_hold_all_there_is(added: list[tuple[float, float, float]]) -> None:
    counts, evidence = whole(added), made(added)
    kept = np.zeros((2, BINS))
    kept[:, evidence.cells[0].astype(int)] = evidence.cells[1:]
    assert evidence.cells[1:].any(axis=0).all()
    assert (np.diff(evidence.cells[0]) > 0).all()
    assert kept == pytest.approx(counts, rel=1e-5, abs=1e-4)
    assert evidence.total == pytest.approx(counts.sum(), rel=1e-5)


@given(additions, st.floats(0.1, 100.0))
def test_its_middle_and_the_highest_load_carried_are_those_of_the_whole(
    added: list[tuple[float, float, float]], least: float
) -> None:
    counts, evidence = whole(added), made(added)
    if counts.sum() > 1e-3:
        assert evidence.mean() == pytest.approx(counts.sum(0) @ np.arange(BINS) / counts.sum(), rel=1e-4, abs=1e-3)
    else:
        assert evidence.mean() is None or counts.sum() > 0
    above = counts[0, ::-1].cumsum()[::-1]
    found = evidence.highest_good(least)
    if found is None:
        assert above.max() < least * 1.001
    else:
        assert above[found] >= least * 0.999
        assert found == BINS - 1 or above[found + 1] < least * 1.001


@given(additions, additions, st.floats(0.0, 1.0))
def test_what_was_restored_goes_on_with_the_same_bits(
    before: list[tuple[float, float, float]], after: list[tuple[float, float, float]], keep: float
) -> None:
    straight = made(before)
    straight.fade(keep)
    resumed = LoadEvidence.of(straight.stored())
    assert (resumed.total, resumed.mean()) == (straight.total, straight.mean())
    for evidence in (straight, resumed):
        for place, good, missed in after:
            evidence.add(place, good, missed)
    assert resumed.stored() == straight.stored()
    assert resumed.total == straight.total


@given(additions, st.integers(-BINS - 5, BINS + 5))
def test_all_counts_move_alike(added: list[tuple[float, float, float]], shift: int) -> None:
    evidence = made(added)
    moved = evidence.shifted(shift)
    bins, counts = (np.frombuffer(b, t) for b, t in zip(evidence.stored(), ("<i2", "<f4"), strict=True))
    bins_moved, counts_moved = (np.frombuffer(b, t) for b, t in zip(moved.stored(), ("<i2", "<f4"), strict=True))
    inside = (bins + shift >= 0) & (bins + shift < BINS)
    assert (bins_moved == bins[inside] + shift).all()
    assert (counts_moved.reshape(2, -1) == counts.reshape(2, -1)[:, inside]).all()
    if inside.all():
        assert moved.shifted(-shift).stored() == evidence.stored()


def test_counts_in_another_unit_of_an_earlier_release_are_left_behind() -> None:
    evidence, other = made([(300.0, 8.0, 1.0)]), made([(350.0, 8.0, 1.0)])
    assert LoadEvidence.of([*evidence.stored(), *other.stored()]).stored() == evidence.stored()


def test_little_is_forgotten_and_a_damaged_store_refused() -> None:
    evidence = made([(300.0, 1.0, 0.0)])
    evidence.fade(1e-5)
    assert (evidence.total, evidence.mean(), evidence.stored()) == (0.0, None, [b"", b""])
    outside = np.array([BINS], "<i2").tobytes()
    with pytest.raises(ValueError, match=r"outside 0\.\.700"):
        LoadEvidence.of([outside, np.zeros((2, 1), "<f4").tobytes()])
    with pytest.raises(ValueError, match="reshape"):
        LoadEvidence.of([np.array([5], "<i2").tobytes(), np.zeros(3, "<f4").tobytes()])

    with pytest.raises(ValueError, match="not ascending"):
        LoadEvidence.of([np.array([6, 5], "<i2").tobytes(), np.ones(4, "<f4").tobytes()])


def test_a_workload_holds_the_loads_it_has_seen() -> None:
    evidence = made([(at + k / 10, 1.0, 0.1) for at in (300.0, 600.0) for k in range(50)])
    assert evidence.cells.shape == (3, 12)


@given(additions, st.floats(0.0, 1.0))
def test_fading_and_storing_are_what_numpy_makes_of_them(added: list[tuple[float, float, float]], keep: float) -> None:
    evidence = made(added)
    faded = evidence.cells.copy()
    faded[1:] *= np.float32(keep)
    faded[1:][faded[1:] < 1e-4] = 0.0
    faded = faded[:, faded[1:].any(axis=0)]
    evidence.fade(keep)
    assert np.array_equal(evidence.cells, faded)
    assert evidence.stored() == [faded[0].astype("<i2").tobytes(), faded[1:].astype("<f4").tobytes()]
