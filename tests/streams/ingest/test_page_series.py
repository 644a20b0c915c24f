"""Series of a page as columns: what is remembered of them is what their records say, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.ingest.series import SeriesTable
from streams.pages.facts_codec import PageSeries, pack_series
from streams.pages.page import SeriesState
from streams.records.facts import HistogramState
from streams.records.series_index import SeriesIndex

COUNTERS, HISTS = ("a_total", "b_total"), ("ttft_s",)
WORKLOADS = ("w0", "w1")
HIST = HistogramState((1.0,), (3.0,), 4.0, 2.5)


@st.composite
def pages(draw: st.DrawFn) -> list[list[SeriesState]]:
    """Series of some slots, sorted as a page has them; names beyond those remembered among them."""

    def state(workload: str, source: str) -> SeriesState:
        counters = draw(st.dictionaries(st.sampled_from((*COUNTERS, "unknown_total")), st.floats(0, 1e6), max_size=3))
        hists = draw(st.dictionaries(st.sampled_from((*HISTS, "unknown_s")), st.just(HIST), max_size=2))
        carried = sorted({*counters, *hists})
        older = draw(st.dictionaries(st.sampled_from(carried), st.integers(1, 50))) if carried else {}
        return SeriesState(workload, source, draw(st.integers(51, 99)), counters, hists, older)

    names = [(w, s) for w in WORKLOADS for s in ("s0", "s1")]
    chosen = st.lists(st.sampled_from(names), unique=True).map(sorted)
    return [[state(*name) for name in draw(chosen)] for _ in range(draw(st.integers(1, 4)))]


def remembered(told: list[list[SeriesState]]) -> dict[tuple[str, str], Any]:
    """Record by record: what the newest page that names a series says of it."""
    newest: dict[tuple[str, str], Any] = {}
    for page in told:
        for s in page:
            counters = {n: (v, s.older_ts_ms.get(n, s.ts_ms)) for n, v in s.counters.items() if n in COUNTERS}
            hists = {n: (h, s.older_ts_ms.get(n, s.ts_ms)) for n, h in s.hists.items() if n in HISTS}
            newest[s.workload, s.source] = counters, hists
    return newest


@given(pages())
def test_the_table_remembers_what_the_records_say(told: list[list[SeriesState]]) -> None:
    index = SeriesIndex()
    table = SeriesTable(COUNTERS, HISTS, index)
    for slot, page in enumerate(told):
        table.load(slot, PageSeries.from_records(page, WORKLOADS))
    for (workload, source), (counters, hists) in remembered(told).items():
        series = index.series(workload, source)
        held = {
            name: (float(table.values[series, n]), int(table.times[series, n]))
            for n, name in enumerate(COUNTERS)
            if not np.isnan(table.values[series, n])
        }
        assert (held, table.hists.get(series, {})) == (counters, hists)
    assert len(table.living()) == len(remembered(told))


@given(pages())
def test_records_come_back_out_of_columns(told: list[list[SeriesState]]) -> None:
    for page in told:
        series = PageSeries(pack_series(page, WORKLOADS), WORKLOADS)
        assert series == tuple(page)
        assert len(series) == len(page)


@pytest.mark.parametrize("damage", ["workload_rows", "ts_ms", "counters", "present", "sources"])
def test_columns_that_do_not_fit_are_refused(damage: str) -> None:
    columns = pack_series([SeriesState("w1", "s", 5, {"a_total": 1.0})], WORKLOADS)
    parts = {name: getattr(columns, name) for name in columns.__struct_fields__}
    with pytest.raises(ValueError, match="columns of"):
        PageSeries(type(columns)(**parts | {damage: parts[damage] * 2}), WORKLOADS)
    with pytest.raises(ValueError, match="beyond"):
        PageSeries(columns, WORKLOADS[:1])
    with pytest.raises(ValueError, match="beyond"):
        PageSeries(type(columns)(**parts | {"older_ts_ms": ((1, "a_total", 3),)}), WORKLOADS)
