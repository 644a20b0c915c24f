"""Laws of the shape of requests: what counts as a change, how long it is remembered, and the state."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity.request_shape import Lengths, RequestShape

STEP_MS = 15_000
HOUR = 3_600_000 // STEP_MS


def exactly(output: float, prompt: float = 800.0) -> Lengths:
    return Lengths(prompt, output, output, output)


def lived(shape: RequestShape, lengths: Lengths | None, slots: int, first: int = 0) -> list[bool]:
    return [shape.observe((first + k + 1) * STEP_MS, lengths) for k in range(slots)]


@given(st.lists(st.floats(0.83, 1.2), min_size=1, max_size=200), st.floats(1.0, 5_000.0))
def test_lengths_that_differ_by_less_than_half_are_no_change(factors: list[float], tokens: float) -> None:
    shape = RequestShape()
    assert not any(shape.observe((k + 1) * STEP_MS, exactly(tokens * f)) for k, f in enumerate(factors))
    assert shape.output_tokens is not None
    assert tokens * min(factors) * 0.999 <= shape.output_tokens <= tokens * max(factors) * 1.001


@given(st.floats(20.0, 2_000.0), st.sampled_from([0.1, 0.3, 3.0, 12.0]))
def test_a_change_is_seen_at_once_remembered_for_a_day_and_hardly_moves_the_usual(tokens: float, factor: float) -> None:
    shape = RequestShape()
    assert not any(lived(shape, exactly(tokens, prompt=0.0), HOUR))
    assert all(lived(shape, exactly(tokens * factor, prompt=0.0), 3, HOUR))
    assert shape.output_tokens == pytest.approx(tokens, rel=0.02)
    assert all(lived(shape, exactly(tokens, prompt=0.0), 24 * HOUR - 1, HOUR + 3))
    assert not any(lived(shape, exactly(tokens, prompt=0.0), 10, 25 * HOUR + 3))


def test_what_may_be_chance_is_no_change() -> None:
    shape = RequestShape()
    lived(shape, exactly(50.0), HOUR)
    assert not any(lived(shape, Lengths(800.0, 150.0, 90.0, 200.0), 3, HOUR))
    assert not any(lived(shape, Lengths(800.0, 10.0, 5.0, 26.0), 3, HOUR + 3))
    assert not any(lived(shape, None, 3, HOUR + 6))
    assert all(lived(shape, Lengths(800.0, 400.0, 300.0, 500.0), 1, HOUR + 9))


def test_the_usual_begins_with_requests_of_which_as_many_were_answered_as_came() -> None:
    shape = RequestShape()
    assert not any(lived(shape, exactly(20.0)._replace(settled=False), 20))  # the answers of most are still to come
    assert shape.output_tokens is None
    assert not any(lived(shape, exactly(50.0), HOUR, 20))
    assert shape.output_tokens == pytest.approx(50.0)
    assert all(lived(shape, exactly(400.0)._replace(settled=False), 1, HOUR + 20)), "answers that grow queue up"


def test_where_prompts_are_most_of_the_work_answers_tell_little() -> None:
    shape = RequestShape()
    lived(shape, exactly(40.0, prompt=2_400.0), HOUR)  # 200 of 240
    assert not any(lived(shape, exactly(120.0, prompt=2_400.0), 20, HOUR))
    assert not any(lived(shape, exactly(40.0, prompt=9_600.0), 20, HOUR + 20))
    assert all(lived(shape, exactly(400.0, prompt=2_400.0), 1, HOUR + 40))


def test_half_as_much_again_is_a_change_where_it_lasts() -> None:
    more, lasts = exactly(160.0, prompt=0.0), 600_000 // STEP_MS
    shape = RequestShape()
    lived(shape, exactly(100.0, prompt=0.0), HOUR)
    assert not any(lived(shape, more, lasts, HOUR))
    assert not any(lived(shape, exactly(100.0, prompt=0.0), 1, HOUR + lasts))
    assert lived(shape, more, lasts + 1, HOUR + lasts + 1) == [False] * lasts + [True]
    less = RequestShape()
    lived(less, exactly(160.0, prompt=0.0), HOUR)
    assert lived(less, exactly(100.0, prompt=0.0), lasts + 1, HOUR) == [False] * lasts + [True]


def test_what_grows_slowly_is_found_out_within_a_day() -> None:
    """Eightfold over eight hours: each hour looks much like the one before."""
    shape = RequestShape()
    lived(shape, exactly(100.0), HOUR)
    grown = [100.0 * 8 ** (k / (8 * HOUR)) for k in range(8 * HOUR)]
    found = [shape.observe((HOUR + k + 1) * STEP_MS, exactly(tokens)) for k, tokens in enumerate(grown)]
    assert grown[found.index(True)] < 250.0  # 320 and 67 of work, 167 before, by then
    assert all(found[found.index(True) :])


def test_the_usual_follows_within_days_and_no_faster_after_a_silence() -> None:
    shape = RequestShape()
    lived(shape, exactly(100.0), HOUR)
    lived(shape, exactly(140.0), 48 * HOUR, HOUR)
    assert shape.output_tokens == pytest.approx(140.0 * (100 / 140) ** math.exp(-2.0), rel=0.01)
    silent = RequestShape()
    lived(silent, exactly(100.0), HOUR)
    silent.observe(100 * HOUR * STEP_MS, exactly(160.0))
    assert silent.output_tokens is not None
    assert silent.output_tokens < 105.0


lengths = st.one_of(st.none(), st.floats(0.0, 1e6).map(exactly))


@given(st.lists(lengths, max_size=30), st.lists(lengths, max_size=30))
def test_what_was_restored_goes_on_as_the_same(before: list[Lengths | None], after: list[Lengths | None]) -> None:
    shape = RequestShape()
    for k, found in enumerate(before):
        shape.observe((k + 1) * STEP_MS, found)
    again = RequestShape.restore(shape.snapshot())
    known = shape.output_tokens is not None
    for k, found in enumerate(after):
        at = (len(before) + k + 1) * STEP_MS
        told = shape.observe(at, found), again.observe(at, found)
        assert told[0] == told[1]
    if known or before:
        assert again.output_tokens == shape.output_tokens


DAMAGED = ([1.0], [1, None, 2.0], [1, 1, 2.0, 2.0, 1, 1], [None, None, 1.0, 1.0], [1, None, None, 1.0])


@pytest.mark.parametrize("state", DAMAGED)
def test_a_damaged_state_is_refused(state: list[float | int | None]) -> None:
    with pytest.raises(ValueError, match="shape of requests"):
        RequestShape.restore(state)


def test_the_state_of_a_release_that_knew_no_lasting_change_is_read() -> None:
    shape = RequestShape()
    lived(shape, exactly(100.0), HOUR)
    again = RequestShape.restore(shape.snapshot()[:4])
    assert again.snapshot() == shape.snapshot()
