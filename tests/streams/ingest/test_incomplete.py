"""Sources whose samples lack what their indicators need: noticed after three slots, until they are whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE, of_source
from streams.ingest.incomplete import MAX_SOURCES, IncompleteSources, SourceCheck
from streams.ingest.kernel import TelemetryProblem
from streams.records.series_index import SeriesIndex
from tests.streams.ingest.ingest_log import Log

GAUGES = {"num_requests_running": 1.0, "kv_cache_usage_ratio": 0.5}
Values = dict[str, float | None]


def slot(log: Log, number: int, *samples: tuple[str, Values], workload: str = "w") -> None:
    """A slot's samples, and the tick that closes the slot before it."""
    for source, values in samples:
        log.sample(1_000 * number + 100, values, workload=workload, source=source)
    log.tick(1_000 * number + 500)


def found(log: Log) -> list[TelemetryProblem]:
    return log.kernel.problems()


def lacking(log: Log) -> list[IncompleteSources]:
    return [problem.incomplete for problem in found(log) if problem.incomplete is not None]


@pytest.mark.parametrize("counter", ["requests_started_total", "requests_finished_total"])
def test_a_source_of_gauges_alone_is_found_and_one_with_either_counter_is_not(counter: str) -> None:
    log = Log()
    for n in range(6):
        slot(log, n, ("gauges", GAUGES), ("nulls", {counter: None, **GAUGES}), ("whole", {counter: float(n)}))
        expected = [] if n < 3 else [IncompleteSources("w", ("gauges", "nulls"), 2, 3)]
        assert lacking(log) == expected, n
    (problem,) = found(log)
    assert (problem.kind, problem.unknown) == ("requests", ())
    assert problem.needs == (("requests_started_total",), ("requests_finished_total",))


def test_a_misspelt_counter_comes_with_its_name() -> None:
    log = Log()
    for n in range(5):
        slot(log, n, ("a", {"requests_started_totl": float(n), **GAUGES}))
    (problem,) = found(log)
    assert problem.incomplete == IncompleteSources("w", ("a",), 1, 1)
    assert [name.name for name in problem.unknown] == ["requests_started_totl"]
    assert "requests_started_total" in problem.unknown[0].absent


def test_a_source_that_sends_its_counter_now_and_then_lacks_nothing() -> None:
    log = Log()
    for n in range(12):
        slot(log, n, ("a", {"requests_started_total": float(n)} if n % 5 == 0 else GAUGES))
        assert found(log) == []


def test_who_is_corrected_or_gone_is_reported_no_longer() -> None:
    log = Log()
    for n in range(5):
        slot(log, n, ("mended", GAUGES), ("gone", GAUGES))
    assert lacking(log) == [IncompleteSources("w", ("gone", "mended"), 2, 2)]
    for n in range(5, 30):
        slot(log, n, ("mended", {"requests_started_total": float(n)}))
    assert found(log) == []


@pytest.mark.parametrize(
    ("values", "whole"),
    [
        ({"power_w": 300.0}, True),
        ({"memory_used_bytes": 1.0, "memory_total_bytes": 2.0}, True),
        ({"memory_used_bytes": 1.0}, False),
        ({"power": 300.0}, False),
        ({}, False),
    ],
)
def test_a_device_needs_the_fields_of_one_indicator(values: Values, whole: bool) -> None:
    log = Log(source="gpu")
    for n in range(5):
        slot(log, n, ("whole", {"sm_active_ratio": 0.5}), ("asked", values))
    assert lacking(log) == ([] if whole else [IncompleteSources("w", ("asked",), 1, 2)])
    assert all(("memory_used_bytes", "memory_total_bytes") in problem.needs for problem in found(log))


def test_names_that_are_dropped_from_the_index_are_no_names_of_others() -> None:
    log = Log()
    for n in range(5):
        slot(log, n, ("gauges", GAUGES))
    log.kernel._closer.check.forget([log.kernel._index.series("w", "gauges")])
    assert found(log) == []


slots_of_sources = st.lists(st.dictionaries(st.integers(0, 6), st.booleans(), min_size=1), min_size=1, max_size=12)


@settings(max_examples=200)
@given(slots_of_sources)
def test_it_is_a_count_of_slots_in_a_row(history: list[dict[int, bool]]) -> None:
    index = SeriesIndex()
    series = [index.series(f"w{n % 2}", f"s{n}") for n in range(7)]
    check = SourceCheck(of_source(DEFAULT_CATALOGUE, "gpu"), (), index)
    in_a_row = [0] * 7
    for number, seen in enumerate(history):
        for n, lacks in seen.items():
            in_a_row[n] = in_a_row[n] + 1 if lacks else 0
        observed = np.array([[False, not lacks] for lacks in seen.values()])
        check.look(number, np.array([series[n] for n in seen]), np.zeros((0, 0)), observed)
        wanted = [
            (f"w{w}", tuple(names[:3]), len(names))
            for w in (0, 1)
            if (names := [f"s{n}" for n in range(w, 7, 2) if in_a_row[n] >= 3])
        ]
        assert [(one.workload, one.sources, one.num_lacking) for one in check.found()] == wanted
        assert all(one.num_sources >= one.num_lacking for one in check.found())


def test_a_publisher_that_makes_up_sources_does_not_fill_the_memory() -> None:
    index = SeriesIndex()
    check = SourceCheck(of_source(DEFAULT_CATALOGUE, "gpu"), (), index)
    for number in range(10):
        names = [index.series(f"w{n}", f"{number}-{n}") for n in range(500)]
        check.look(number, np.array(names), np.zeros((0, 0)), np.zeros((500, 1), np.bool_))
    assert len(check._lacking) <= MAX_SOURCES
    assert len(check._num_sources) <= MAX_SOURCES
