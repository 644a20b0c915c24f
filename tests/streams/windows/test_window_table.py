"""The window table against a dictionary of cells: rings, forgetting, coarse means."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.catalogue import Indicator, Source
from streams.pages.page import Page, WorkloadFacts
from streams.windows.coarse import COARSE_ROWS
from streams.windows.table import WindowTable

CATALOGUE = (
    Indicator("a", "1", 1, "requests", "mean", ("a",)),
    Indicator("b", "1", 1, "requests", "mean", ("b",)),
    Indicator("c", "1", 3, "gpu", "mean", ("c",)),
)
OF_SOURCE: dict[Source, tuple[str, ...]] = {"requests": ("a", "b"), "gpu": ("c",)}
STEP_MS = 60_000


def page(
    source: Source, slot: int, cells: dict[str, dict[str, float]], indicators: tuple[str, ...] | None = None
) -> Page:
    names = OF_SOURCE[source] if indicators is None else indicators
    workloads = tuple(sorted(cells))
    values = np.array([[cells[w].get(n, 0.0) for n in names] for w in workloads], np.float32).reshape(-1, len(names))
    observed = np.array([[n in cells[w] for n in names] for w in workloads], np.bool_).reshape(-1, len(names))
    facts = tuple(WorkloadFacts(1, slot * STEP_MS, 1, 1) for _ in workloads)
    return Page(source, 0, slot, None, None, 0, 0, 0, STEP_MS, 0, names, workloads, values, observed, facts)


@given(
    slots=st.lists(
        st.dictionaries(st.sampled_from("uvwxyz"), st.dictionaries(st.sampled_from("abc"), st.integers(0, 99))),
        min_size=1,
        max_size=14,
    ),
    context=st.integers(1, 5),
)
def test_windows_hold_the_last_slots_and_nothing_else(slots: list[dict[str, dict[str, int]]], context: int) -> None:
    table = WindowTable(CATALOGUE, context, STEP_MS, capacity=2)
    expected: dict[tuple[str, int, str], float] = {}
    for slot, cells in enumerate(slots, start=100):
        table.advance(slot)
        for source, names in OF_SOURCE.items():
            part = {w: {n: float(v) for n, v in c.items() if n in names} for w, c in cells.items()}
            table.write(page(source, slot, part))
        expected |= {(w, slot, n): float(v) for w, c in cells.items() for n, v in c.items()}
        for workload in table.unseen():
            table.remove(workload)
    newest = 99 + len(slots)
    alive = {w for slot, cells in enumerate(slots, start=100) for w in cells if slot > newest - context}
    assert set(table) == alive
    for workload in table:
        window = table[workload]
        for i, slot in enumerate(range(newest - context + 1, newest + 1)):
            for n, indicator in enumerate(CATALOGUE):
                want = expected.get((workload, slot, indicator.name))
                assert bool(window.observed[i, n]) == (want is not None)
                assert window.values[i, n] == (want or 0.0)


def test_pages_are_matched_by_indicator_name() -> None:
    table = WindowTable(CATALOGUE, 4, STEP_MS)
    table.advance(1)
    table.write(page("requests", 1, {"w": {"b": 5.0, "gone": 9.0}}, indicators=("gone", "b")))
    window = table["w"]
    assert window.observed[-1].tolist() == [False, True, False]
    assert window.values[-1].tolist() == [0.0, 5.0, 0.0]


def test_ten_minutes_become_one_coarse_row() -> None:
    table = WindowTable(CATALOGUE, 4, STEP_MS)
    rows = []
    for slot in range(20):  # one-minute slots: the tenth and the twentieth complete ten minutes
        table.advance(slot)
        cells = {"w": {"a": float(slot)}} if slot % 2 == 0 else {"w": {"a": float(slot), "b": 1.0}}
        table.write(page("requests", slot, cells))
        row = table.accumulate_coarse()
        if row is not None:
            rows.append(row)
    assert [(r.index, r.values.tolist()) for r in rows] == [(0, [[4.5, 1.0]]), (1, [[14.5, 1.0]])]
    window = table["w"]
    coarse, observed = window.read_coarse()
    assert coarse.shape == (COARSE_ROWS, 2)
    assert coarse[-2:, 0].tolist() == [4.5, 14.5]
    assert observed[:-2].sum() == 0


TOLD = st.tuples(st.integers(1, 3) | st.integers(1, 45), st.none() | st.integers(0, 99), st.booleans())


@given(st.lists(TOLD, max_size=20))
def test_a_row_holds_the_slots_of_its_own_ten_minutes_alone(told: list[tuple[int, int | None, bool]]) -> None:
    """However many slots are jumped over, and wherever a worker starts anew."""
    context_steps = 20 * 45
    table, slot = WindowTable(CATALOGUE, context_steps, STEP_MS), 0
    pages: list[Page] = []
    heard: dict[int, list[int]] = {}
    for jump, rate, starts_anew in told:
        slot += jump
        table.advance(slot)
        if rate is not None:
            heard.setdefault(slot // 10, []).append(rate)
            pages.append(page("requests", slot, {"w": {"a": float(rate)}}))
            table.write(pages[-1])
        row = table.accumulate_coarse()
        if row is not None:
            rates = heard.get(slot // 10, [])
            assert row.index == slot // 10
            assert row.values[:, 0].tolist() == ([np.float32(np.mean(rates))] if rates else [])
        if starts_anew:
            running = table.running_coarse()
            table = WindowTable(CATALOGUE, context_steps, STEP_MS)
            table.advance(slot)
            for stored in pages:
                table.write(stored)
            table.restore_running_coarse(running)


def test_running_ten_minutes_survive_a_snapshot() -> None:
    def fill(table: WindowTable, slots: range) -> list[list[list[float]]]:
        out = []
        for slot in slots:
            table.advance(slot)
            table.write(page("requests", slot, {"w": {"a": 0.1 * slot}, "v": {"b": 0.3 * slot}}))
            row = table.accumulate_coarse()
            if row is not None:
                out.append(row.values.tolist())
        return out

    whole = WindowTable(CATALOGUE, 4, STEP_MS)
    want = fill(whole, range(10))
    first, second = WindowTable(CATALOGUE, 4, STEP_MS), WindowTable(CATALOGUE, 4, STEP_MS)
    fill(first, range(6))
    second.restore_running_coarse(first.running_coarse())
    assert fill(second, range(6, 10)) == want


def test_coarse_means_are_matched_by_name_when_the_indicators_are_others() -> None:
    old = WindowTable(CATALOGUE, 4, STEP_MS)
    row = None
    for slot in range(10):
        old.advance(slot)
        old.write(page("requests", slot, {"w": {"a": 10.0 + slot, "b": 90.0}}))
        row = old.accumulate_coarse() or row
    old.advance(10)
    old.write(page("requests", 10, {"w": {"a": 3.0, "b": 4.0}}))
    old.accumulate_coarse()
    assert row is not None
    fresh = Indicator("n", "1", 1, "requests", "mean", ("n",))
    other = WindowTable((fresh, CATALOGUE[1], CATALOGUE[2]), 4, STEP_MS)
    other.advance(10)
    other.write(page("requests", 10, {"w": {"a": 3.0, "b": 4.0}}, ("a", "b")))
    other.write_coarse(row)
    other.restore_running_coarse(old.running_coarse())
    window = other["w"]
    coarse, observed = window.read_coarse()
    assert coarse[-1].tolist() == [0.0, 90.0]
    assert observed[-1].tolist() == [False, True]
    running = other.running_coarse()
    assert running.indicators == ("n", "b")
    assert running.sums == {"w": ([0.0, 4.0], [0, 1])}
