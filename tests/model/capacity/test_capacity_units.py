"""What is known of a capacity, in another unit: each slot at the load that it had in that, through a restart too."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity.posterior import CapacityPosterior
from tests.model.capacity.taught import SLOT, STEP_MS

ONE_AND_THE_SAME = 0.04  # places of the lattice are 3 % apart


def lived(posterior: CapacityPosterior, slots: list[tuple[float, float | None, float]], first: int = 0) -> None:
    """Slots of ten replicas: requests/s, tokens/s, and the share that misses."""
    for k, (rate, tokens, missed) in enumerate(slots, first):
        end_ts_ms = (k + 1) * STEP_MS
        posterior.observe(
            replace(SLOT, end_ts_ms=end_ts_ms, arrival_rate=rate, other_rate=tokens, miss_ratio=missed, waiting=None)
        )


def middle(posterior: CapacityPosterior) -> float:
    return float(posterior.quantiles((0.5,))[0])


@given(st.floats(5.0, 50.0), st.floats(2.0, 600.0))
def test_requests_that_stay_alike_are_the_same_capacity_in_both_units(rate: float, tokens: float) -> None:
    counted, told = CapacityPosterior(), CapacityPosterior()
    slots = [(rate, 0.0), (1.1 * rate, 0.0), (1.2 * rate, 0.05), (0.9 * rate, 0.0)] * 10
    lived(counted, [(r, None, missed) for r, missed in slots])
    lived(told, [(r, r * tokens, missed) for r, missed in slots])
    assert middle(told) == middle(counted), "the other unit changes nothing here"
    by_factor, measured = counted.converted(tokens, None), told.converted(tokens, None)
    assert middle(measured) == pytest.approx(middle(by_factor), rel=ONE_AND_THE_SAME)
    assert middle(measured.converted(1.0 / tokens, None)) == pytest.approx(middle(told), rel=1e-12)


def test_misses_of_requests_that_are_longer_count_at_the_tokens_that_they_came_at() -> None:
    """In requests/s fewer were missed than carried; a mean length would put both at the same tokens/s."""
    posterior = CapacityPosterior()
    lived(posterior, [(20.0, 400.0, 0.0)] * 40 + [(12.0, 6_000.0, 0.6)] * 12)
    low, high = posterior.converted(20.0, None).quantiles((0.05, 0.95))
    assert 40.0 < low < high < 600.0, "tokens/s: 40 were carried, 600 were not"


def test_what_is_carried_counts_as_no_more_than_requests_were_found_to_be() -> None:
    """Answers have just become longer: tokens/s have risen, and whether these answers miss is not told yet."""
    begun, told = CapacityPosterior(), CapacityPosterior()
    lived(begun, [(20.0, 400.0, 0.0)] * 20)
    lived(told, [(20.0, 400.0, 0.0)] * 20)
    for posterior, length in ((begun, 20.0), (told, 200.0)):
        for k in range(20, 30):
            slot = replace(SLOT, end_ts_ms=(k + 1) * STEP_MS, other_rate=4_000.0, others_per_unit=length)
            posterior.observe(slot)
    assert middle(begun) == middle(told), "in requests/s they are the same"
    assert middle(begun.converted(20.0, None)) < 0.3 * middle(told.converted(20.0, None))


def test_slots_that_tell_no_tokens_count_in_requests_alone() -> None:
    posterior = CapacityPosterior()
    lived(posterior, [(20.0, 400.0, 0.0)] * 10 + [(30.0, None, 0.0)] * 10)
    assert posterior.evidence == pytest.approx(2.0 * posterior.converted(20.0, None).evidence, rel=0.05)


def test_a_restart_in_the_middle_changes_nothing() -> None:
    slots = [(20.0 + k % 7, 400.0 + 90.0 * (k % 5), 0.03 * (k % 9 == 8)) for k in range(60)]
    straight, stopped = CapacityPosterior(), CapacityPosterior()
    lived(straight, slots)
    lived(stopped, slots[:25])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(stopped.snapshot()))
    again = CapacityPosterior.restore(stored)
    lived(again, slots[25:], first=25)
    assert again.snapshot() == straight.snapshot()
    assert again.converted(20.0, None).snapshot() == straight.converted(20.0, None).snapshot()


def test_the_state_of_a_release_that_kept_one_unit_is_read() -> None:
    posterior = CapacityPosterior()
    lived(posterior, [(20.0, 400.0, 0.0)] * 10)
    older = {key: value for key, value in posterior.snapshot().items() if key not in ("others", "other_rate")}
    again = CapacityPosterior.restore(older)
    assert middle(again) == middle(posterior)
    lived(again, [(20.0, 400.0, 0.0)], first=10)
    assert middle(again.converted(20.0, None)) == pytest.approx(20.0 * middle(again), rel=ONE_AND_THE_SAME)


def test_a_queue_that_stands_is_missed_in_tokens_at_what_the_replicas_generate() -> None:
    """Two requests/s come to ten replicas, of 400 tokens each, then of 4,000.

    They generate 2,000 tokens/s then and take in half a request/s: what they generate per request that comes is a
    quarter of what a request has.
    """
    posterior = CapacityPosterior()
    few = [replace(SLOT, arrival_rate=2.0, other_rate=800.0, miss_ratio=0.0, waiting=0.0, residence_s=10.0)] * 40
    waiting = 0.0
    overloaded = []
    for _ in range(8):
        waiting += 1.5 * SLOT.step_s
        overloaded.append(replace(few[0], other_rate=2_000.0, miss_ratio=0.0, waiting=waiting))
    verdicts = [
        posterior.observe(replace(slot, end_ts_ms=(k + 1) * STEP_MS)) for k, slot in enumerate([*few, *overloaded])
    ]
    assert "bad" in verdicts[len(few) :]
    in_tokens = posterior.converted(400.0, None)
    assert in_tokens.clear_rps == pytest.approx(200.0, rel=0.3), "of each replica"
    assert middle(in_tokens) > 80.0, "what was carried still is"
