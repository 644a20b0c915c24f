"""From the samples of a closing slot to indicator values: the rules of the catalogue, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.catalogue import Indicator
from streams.histograms import Added, added, merged_quantile
from streams.pages import HistogramState, SeriesState
from streams.records import Sample
from streams.series import instant_of

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_P95 = 0.95


class Series(NamedTuple):
    """The samples of one source within a slot, by time, and what it had said before."""

    workload_row: int
    samples: Sequence[Sample]
    before: SeriesState | None


class SlotValues(NamedTuple):
    """`values` float32 [k, N], 0 where not `observed` [k, N]; `censored` and `reset` bool [k]."""

    values: NDArray[np.float32]
    observed: Bools
    censored: Bools
    reset: Bools


class _Increase(NamedTuple):
    """Of one counter, per series: whether it stands in the slot, fell, or grew by `amount` over `span_ms`."""

    present: Bools
    fell: Bools
    known: Bools
    amount: Floats
    span_ms: Floats


def slot_values(indicators: Sequence[Indicator], num_workloads: int, series: Sequence[Series]) -> SlotValues:
    """Apply every indicator's rule.

    Args:
        indicators: columns of the result, N of them.
        num_workloads: k, rows of the result.
        series: ordered by workload row, then by source name.
    """
    table = _Table(num_workloads, series)
    values = np.zeros((num_workloads, len(indicators)), np.float32)
    observed = np.zeros(values.shape, np.bool_)
    censored = np.zeros(num_workloads, np.bool_)
    reset = np.zeros(num_workloads, np.bool_)
    if not series:
        return SlotValues(values, observed, censored, reset)
    for n, indicator in enumerate(indicators):
        fell = np.zeros(num_workloads, np.bool_)
        if indicator.rule == "rate":
            column, seen, fell = _rate(table, indicator, censored)
        elif indicator.rule == "miss_ratio":
            column, seen, fell = _miss_ratio(table, indicator)
        elif indicator.rule == "p95":
            column, seen, fell = _p95(table, indicator)
        else:
            column, seen = _gauge(table, indicator)
        reset |= fell
        observed[:, n] = seen & ~fell
        # Adding 0 turns -0 into 0: equal numbers must be equal bytes.
        values[:, n] = np.where(observed[:, n], column, 0.0).astype(np.float32) + np.float32(0.0)
    return SlotValues(values, observed, censored, reset)


class _Table:
    """Samples of a slot as columns; fields are read once and kept."""

    def __init__(self, num_workloads: int, series: Sequence[Series]) -> None:
        self.num_workloads = num_workloads
        self.series = series
        self.rows: Ints = np.array([s.workload_row for s in series], np.int64)
        self.samples = [sample for s in series for sample in s.samples]
        self.series_of: Ints = np.repeat(np.arange(len(series)), [len(s.samples) for s in series])
        self.ts_ms: Floats = np.array([sample.ts_ms for sample in self.samples], np.float64)
        self._columns: dict[str, Floats] = {}
        self._increases: dict[str, _Increase] = {}

    def column(self, field: str) -> Floats:
        """The field's value per sample, NaN where missing."""
        column = self._columns.get(field)
        if column is None:
            column = np.array([sample.values.get(field) for sample in self.samples], np.float64)
            self._columns[field] = column
        return column

    def increase(self, field: str) -> _Increase:
        increase = self._increases.get(field)
        if increase is None:
            increase = self._increases[field] = self._increase(field)
        return increase

    def _increase(self, field: str) -> _Increase:
        num = len(self.series)
        nothing = np.zeros(num, np.bool_)
        column = self.column(field)
        at = np.flatnonzero(~np.isnan(column))
        if not len(at):
            return _Increase(nothing, nothing, nothing, np.zeros(num), np.ones(num))
        value, ts_ms, owner = column[at], self.ts_ms[at], self.series_of[at]
        before = np.full(num, np.nan)
        before_ts_ms = np.zeros(num)
        for i in np.unique(owner).tolist():
            state = self.series[i].before
            if state is not None and field in state.counters:
                before[i] = state.counters[field]
                before_ts_ms[i] = instant_of(state, field)
        starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        ends = np.r_[starts[1:], len(owner)] - 1
        who = owner[starts]
        previous = np.r_[np.nan, value[:-1]]
        previous[starts] = before[who]
        fell = np.zeros(num, np.bool_)
        fell[owner[value < previous]] = True
        has_before = ~np.isnan(before[who])
        base = np.where(has_before, before[who], value[starts])
        base_ts_ms = np.where(has_before, before_ts_ms[who], ts_ms[starts])
        present, known = nothing.copy(), nothing.copy()
        amount, span_ms = np.zeros(num), np.ones(num)
        present[who] = True
        known[who] = ts_ms[ends] > base_ts_ms
        amount[who] = value[ends] - base
        span_ms[who] = np.where(known[who], ts_ms[ends] - base_ts_ms, 1.0)
        return _Increase(present, fell, known, amount, span_ms)

    def any_of(self, flags: Bools) -> Bools:
        """Per workload: does it hold for any of its series?"""
        out = np.zeros(self.num_workloads, np.bool_)
        out[self.rows[flags]] = True
        return out

    def total_of(self, numbers: Floats, where: Bools) -> Floats:
        """Per workload: sum over its series, in order of source name."""
        total = np.bincount(self.rows[where], weights=numbers[where], minlength=self.num_workloads)
        return total.astype(np.float64)

    def over_sources(self, numbers: Floats, where: Bools, how: str) -> tuple[Floats, Bools]:
        """Per workload: sum, mean or max over its series."""
        seen = self.any_of(where)
        if how == "max":
            top = np.full(self.num_workloads, -np.inf)
            np.maximum.at(top, self.rows[where], numbers[where])
            return np.where(seen, top, 0.0), seen
        total = self.total_of(numbers, where)
        if how == "mean":
            total = total / np.maximum(np.bincount(self.rows[where], minlength=self.num_workloads), 1)
        return total, seen


def _rate(table: _Table, indicator: Indicator, censored: Bools) -> tuple[Floats, Bools, Bools]:
    num = len(table.series)
    taken, known, fell = np.zeros(num, np.bool_), np.zeros(num, np.bool_), np.zeros(num, np.bool_)
    per_s = np.zeros(num)
    for rank, field in enumerate(indicator.fields):
        increase = table.increase(field)
        mine = increase.present & ~taken
        taken |= mine
        fell |= increase.fell & mine
        known |= increase.known & mine
        per_s = np.where(mine, increase.amount * 1000.0 / increase.span_ms, per_s)
        if rank:
            censored |= table.any_of(mine)
    column, seen = table.over_sources(per_s, known, indicator.over_sources)
    return column, seen, table.any_of(fell)


def _miss_ratio(table: _Table, indicator: Indicator) -> tuple[Floats, Bools, Bools]:
    good, everything = (table.increase(field) for field in indicator.fields)
    known = good.known & everything.known
    total = table.total_of(everything.amount, known)
    seen = total > 0.0
    miss = 1.0 - table.total_of(good.amount, known) / np.where(seen, total, 1.0)
    return np.clip(miss, 0.0, 1.0), seen, table.any_of(good.fell | everything.fell)


def _gauge(table: _Table, indicator: Indicator) -> tuple[Floats, Bools]:
    num = len(table.series)
    if indicator.rule == "ratio":
        part, whole = (table.column(field) for field in indicator.fields)
        with np.errstate(divide="ignore", invalid="ignore"):
            column = np.where(whole > 0.0, np.minimum(part / whole, 1.0), np.nan)
    else:
        column = table.column(indicator.fields[0])
    at = np.flatnonzero(~np.isnan(column))
    owner, number = table.series_of[at], column[at]
    count = np.bincount(owner, minlength=num)
    if indicator.rule == "max":
        per_series = np.full(num, -np.inf)
        np.maximum.at(per_series, owner, number)
    else:
        per_series = np.bincount(owner, weights=number, minlength=num) / np.maximum(count, 1)
    return table.over_sources(per_series, count > 0, indicator.over_sources)


def _p95(table: _Table, indicator: Indicator) -> tuple[Floats, Bools, Bools]:
    (field,) = indicator.fields
    parts: dict[int, list[Added]] = {}
    fell = np.zeros(table.num_workloads, np.bool_)
    for s in table.series:
        states: list[HistogramState] = [sample.hists[field] for sample in s.samples if field in sample.hists]
        if not states:
            continue
        if s.before is not None and field in s.before.hists:
            states.insert(0, s.before.hists[field])
        if len(states) < 2:
            continue
        gained = added(states)
        if gained is None:
            fell[s.workload_row] = True
        else:
            parts.setdefault(s.workload_row, []).append(gained)
    column = np.zeros(table.num_workloads)
    seen = np.zeros(table.num_workloads, np.bool_)
    for row, gains in parts.items():
        quantile = merged_quantile(gains, _P95)
        if quantile is not None:
            column[row], seen[row] = quantile, True
    return column, seen, fell
