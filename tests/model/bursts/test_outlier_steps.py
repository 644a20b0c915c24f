"""Steps that no engine felt: against the definition in plain Python, and what must never be taken for one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.bursts.kernel import outlier_steps

STEP_S = 15.0
COLUMNS = np.arange(4)
Window = tuple[NDArray[np.float32], NDArray[np.bool_]]


def found(values: NDArray[np.float32], observed: NDArray[np.bool_], columns: NDArray[np.int64] = COLUMNS) -> list[int]:
    unfelt = np.empty(len(values), np.bool_)
    number = outlier_steps(values, observed, columns, STEP_S, unfelt)
    assert number == unfelt.sum()
    return np.flatnonzero(unfelt).tolist()


def steady(length: int = 32, rate: float = 4.0, running: float = 20.0) -> Window:
    values = np.tile(np.array([rate, running, 0.0, 0.0], np.float32), (length, 1))
    return values, np.ones((length, 4), np.bool_)


def plainly(values: NDArray[np.float32], observed: NDArray[np.bool_]) -> list[int]:
    rates = values[:, 0].tolist()
    systems = [r + w * known for (_, r, w, _), known in zip(values.tolist(), observed[:, 2].tolist(), strict=True)]
    told = []
    for t in range(len(values)):
        beside = [u for u in (t - 2, t - 1, t + 1, t + 2) if 0 <= u < len(values) and observed[u, :2].all()]
        if (
            observed[t, :2].all()
            and rates[t] * STEP_S >= 50
            and len(beside) >= 2
            and rates[t] > 8 * max(rates[u] for u in beside)
            and systems[t] <= 2 * max(systems[u] for u in beside) + 2
            and not (observed[t, 3] and values[t, 3] > 0)
        ):
            told.append(t)
    return told


cells = st.sampled_from((0.0, 0.5, 3.0, 4.0, 5.0, 30.0, 33.0, 100.0, 1e6))
rows = st.tuples(cells, cells, cells, st.sampled_from((0.0, 0.0, 0.5)), st.lists(st.booleans(), min_size=4, max_size=4))


@given(st.lists(rows, min_size=1, max_size=24))
def test_it_is_what_the_definition_says(told: list[tuple[float, float, float, float, list[bool]]]) -> None:
    observed = np.array([row[4] for row in told], np.bool_)
    values = np.where(observed, np.array([row[:4] for row in told], np.float32), np.float32(0.0))
    assert found(values, observed) == plainly(values, observed)


def test_a_counter_that_jumps_once_is_no_load() -> None:
    for at in (0, 1, 15, 30, 31):
        values, observed = steady()
        values[at, 0] *= 20
        assert found(values, observed) == [at]


def test_what_is_felt_is_a_load_however_large_or_short() -> None:
    """Requests in service, in the queue, or that missed: any of them will do."""
    for column, number in ((1, 300.0), (2, 300.0), (3, 0.01)):
        values, observed = steady()
        values[31, 0] *= 20
        values[31, column] = number
        assert found(values, observed) == []


def test_a_rise_that_stays_is_a_load_from_its_second_step_on() -> None:
    values, observed = steady()
    values[30:, 0] *= 20
    assert found(values, observed) == []
    assert found(values[:31], observed[:31]) == [30]


def test_few_requests_and_engines_that_tell_nothing_are_believed() -> None:
    values, observed = steady(rate=0.0)
    values[20, 0] = 3.0
    assert found(values, observed) == []
    values, observed = steady()
    values[20, 0] *= 20
    assert found(values, observed, np.array([0, -1, -1, -1])) == []
    observed[20, 1] = False
    assert found(values, observed) == []
