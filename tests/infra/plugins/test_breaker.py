"""The breaker against a plain account of its own history."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra.plugins.breaker import Breaker


@given(st.integers(1, 4), st.integers(1, 6), st.lists(st.booleans(), max_size=60))
def test_it_skips_exactly_the_calls_that_its_history_says(failures: int, pause: int, good: list[bool]) -> None:
    breaker = Breaker(failures, pause)
    history: list[str] = []  # ok, bad or skipped, in order of calls
    for outcome in good:
        made = [h for h in history if h != "skipped"]
        tail = len(made) - len("".join(h[0] for h in made).rstrip("b"))  # failed calls in a row, skipped ones apart
        since = len(history) - max((i for i, h in enumerate(history) if h != "skipped"), default=-1) - 1
        expected = not (tail >= failures and since < pause)
        assert breaker.open != expected
        assert breaker.allows() == expected
        if not expected:
            history.append("skipped")
        elif outcome:
            breaker.succeeded()
            history.append("ok")
        else:
            assert breaker.failed() == (tail + 1 >= failures)
            history.append("bad")


@given(st.integers(1, 4), st.integers(1, 6))
def test_one_good_trial_closes_it(failures: int, pause: int) -> None:
    breaker = Breaker(failures, pause)
    for _ in range(failures):
        assert breaker.allows()
        breaker.failed()
    assert [breaker.allows() for _ in range(pause)] == [False] * pause
    assert breaker.allows()
    breaker.succeeded()
    for _ in range(failures - 1):
        assert breaker.allows()
        assert not breaker.failed()
    assert breaker.allows()
