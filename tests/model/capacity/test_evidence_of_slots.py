"""What a slot is worth as evidence of capacity."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity.evidence import CLUMP, SlotEvidence, misses_of

SLOT = SlotEvidence(15_000, 15.0, 4.0, 0.01, 0.0, 4, 0, 0, ttft_s=2.0, objective=0.99)


def worth(slot: SlotEvidence) -> float:
    assert slot.arrival_rate is not None
    found = misses_of(slot, slot.arrival_rate, slot.miss_ratio, slot.waiting)
    assert found is not None
    return found.requests


@given(st.floats(0.01, 500.0), st.floats(0.0, 600.0), st.sampled_from([1.0, 3.0, 5.0, 7.5, 15.0]))
def test_a_stretch_of_time_is_worth_the_same_however_it_is_cut(rate: float, residence_s: float, step_s: float) -> None:
    whole = replace(SLOT, arrival_rate=rate, residence_s=residence_s)
    assert worth(replace(whole, step_s=step_s)) * 15.0 / step_s == pytest.approx(worth(whole))


@given(st.floats(0.01, 500.0), st.floats(0.0, 600.0), st.floats(1.0, 600.0))
def test_it_is_worth_no_more_than_its_requests_and_than_a_clump_per_stretch(
    rate: float, residence_s: float, step_s: float
) -> None:
    found = worth(replace(SLOT, arrival_rate=rate, residence_s=residence_s, step_s=step_s))
    assert 0.0 < found <= min(rate * step_s, CLUMP * max(1.0, step_s / 15.0)) * (1 + 1e-9)


def test_requests_that_stay_are_seen_again_by_the_next_slots() -> None:
    assert worth(replace(SLOT, residence_s=60.0)) == pytest.approx(worth(SLOT) / 4)
