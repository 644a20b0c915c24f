"""From the samples of closing slots to indicator values: the rules of the catalogue, many columns at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.catalogue import Indicator
from streams.histograms import Added, added, capped, merged_quantile
from streams.pages import HistogramState
from streams.sample_run import Bools, Floats
from streams.slot_table import Increases, SlotTable

_P95 = 0.95


class SlotValues(NamedTuple):
    """`values` float32 [k, N], 0 where not `observed` [k, N]; `censored` and `reset` bool [k]."""

    values: NDArray[np.float32]
    observed: Bools
    censored: Bools
    reset: Bools

    def part(self, first: int, end: int) -> SlotValues:
        """Some of the rows."""
        rows = slice(first, end)
        return SlotValues(self.values[rows], self.observed[rows], self.censored[rows], self.reset[rows])


class Known(NamedTuple):
    """What was known of the series before their slot.

    Attributes:
        counters, counters_ts_ms: [m, C] last values, NaN where none, and when.
        hists: series -> histograms by name, oldest first, those of the slot included.
    """

    counters: Floats
    counters_ts_ms: Floats
    hists: Mapping[int, Mapping[str, Sequence[HistogramState]]]


class IndicatorRules:
    """The rules of one source's indicators, sorted by kind once.

    Args:
        indicators: columns of the result, N of them.
        fields: columns of the samples, F of them.
        source_cap: as of the stream's settings.

    Attributes:
        counters: names of the counters, ascending, C of them; `counter_columns` their places among the fields.
        hist_fields: names of the histograms.
    """

    def __init__(self, indicators: Sequence[Indicator], fields: Sequence[str], source_cap: float | None = None) -> None:
        self._cap = source_cap
        at = {name: n for n, name in enumerate(fields)}
        self.num_indicators = len(indicators)
        counting = [i for i in indicators if i.rule in {"rate", "miss_ratio"}]
        self.counters = tuple(sorted({f for i in counting for f in i.fields}))
        self.hist_fields = tuple(sorted({f for i in indicators if i.rule == "p95" for f in i.fields}))
        self.counter_columns = [at[name] for name in self.counters]
        rank = {name: n for n, name in enumerate(self.counters)}
        numbered = list(enumerate(indicators))
        rates = [(n, i) for n, i in numbered if i.rule == "rate"]
        misses = [(n, i) for n, i in numbered if i.rule == "miss_ratio"]
        means = [(n, i) for n, i in numbered if i.rule == "mean"]
        maxima = [(n, i) for n, i in numbered if i.rule == "max"]
        ratios = [(n, i) for n, i in numbered if i.rule == "ratio"]
        # A rate has one field, or several of which the first present one counts.
        self._rate_ranks = [[rank[f] for f in i.fields] for _, i in rates]
        self._good = [rank[i.fields[0]] for _, i in misses]
        self._everything = [rank[i.fields[1]] for _, i in misses]
        self._mean_columns = [at[i.fields[0]] for _, i in means]
        self._max_columns = [at[i.fields[0]] for _, i in maxima]
        self._ratio_columns = [(at[i.fields[0]], at[i.fields[1]]) for _, i in ratios]
        self._quantiles = [(n, i.fields[0]) for n, i in numbered if i.rule == "p95"]
        self._rate_at = [n for n, _ in rates]
        self._miss_at = [n for n, _ in misses]
        gauges = [*means, *ratios, *maxima]
        self._plain_at = [*self._rate_at, *(n for n, _ in gauges)]
        self._plain_how = [i.over_sources for _, i in (*rates, *gauges)]
        self._sum_columns = [c for c, how in enumerate(self._plain_how) if how == "sum"]

    def apply(self, table: SlotTable, before: Known) -> SlotValues:
        """Every indicator of every row."""
        k = table.num_rows
        columns = np.zeros((k, self.num_indicators))
        observed = np.zeros(columns.shape, np.bool_)
        if not table.num_series:
            nothing = np.zeros(k, np.bool_)
            return SlotValues(columns.astype(np.float32), observed, nothing, nothing)
        up = table.increases(self.counter_columns, before.counters, before.counters_ts_ms)
        per_s, rate_known, dropped, second = self._rates(up)
        gauges, gauges_seen = self._gauges(table)
        miss_known = up.known[:, self._good] & up.known[:, self._everything]
        miss_fell = up.fell[:, self._good] | up.fell[:, self._everything]
        plain = len(self._plain_at)
        told, told_where = np.hstack((per_s, gauges)), np.hstack((rate_known, gauges_seen))
        good_up, all_up = up.amount[:, self._good], up.amount[:, self._everything]
        if self._cap is not None:
            summed = self._sum_columns
            told[:, summed] = np.minimum(
                told[:, summed], table.limits(told[:, summed], told_where[:, summed], self._cap)
            )
            limit = table.limits(all_up, miss_known, self._cap)
            over = all_up > limit
            good_up = np.where(over, good_up * np.where(over, limit, 1.0) / np.where(over, all_up, 1.0), good_up)
            all_up = np.minimum(all_up, limit)
        # All sums over sources at once: rates and gauges, then what the miss ratios are made of.
        sums, seen = table.over_sources(
            np.hstack((told, good_up, all_up)),
            np.hstack((told_where, miss_known, miss_known)),
            self._plain_how,
        )
        columns[:, self._plain_at], observed[:, self._plain_at] = sums[:, :plain], seen[:, :plain]
        good, everything = sums[:, plain : plain + len(self._good)], sums[:, plain + len(self._good) :]
        observed[:, self._miss_at] = everything > 0.0
        columns[:, self._miss_at] = np.clip(1.0 - good / np.where(everything > 0.0, everything, 1.0), 0.0, 1.0)
        flags = table.any_of(np.hstack((dropped, miss_fell, second)))
        fell = np.zeros(columns.shape, np.bool_)
        fell[:, [*self._rate_at, *self._miss_at]] = flags[:, :-1]
        for n, field in self._quantiles:
            _p95(table, before, field, columns[:, n], observed[:, n], fell[:, n], self._cap)
        observed &= ~fell
        # Adding 0 turns -0 into 0: equal numbers must be equal bytes.
        values = np.where(observed, columns, 0.0).astype(np.float32) + np.float32(0.0)
        return SlotValues(values, observed, flags[:, -1], np.logical_or.reduce(fell, axis=1))

    def _rates(self, up: Increases) -> tuple[Floats, Bools, Bools, Bools]:
        """[m, rates] per second, known and fell; [m, 1] whether a field other than the first one stood in."""
        firsts = [ranks[0] for ranks in self._rate_ranks]
        all_per_s = up.amount * 1000.0 / up.span_ms
        per_s, known, fell = all_per_s[:, firsts], up.known[:, firsts], up.fell[:, firsts]
        second = np.zeros((len(per_s), 1), np.bool_)
        for c, ranks in enumerate(self._rate_ranks):
            taken = up.present[:, ranks[0]]
            for rank in ranks[1:]:
                mine = up.present[:, rank] & ~taken
                if mine.any():
                    taken = taken | mine
                    per_s[mine, c] = all_per_s[mine, rank]
                    known[mine, c] = up.known[mine, rank]
                    fell[mine, c] = up.fell[mine, rank]
                    second[mine] = True
        return per_s, known, fell, second

    def _gauges(self, table: SlotTable) -> tuple[Floats, Bools]:
        """[m, gauges] means, ratios and maxima of each series, and whether there is any value."""
        values = table.values
        means = values[:, self._mean_columns]
        for part, whole in self._ratio_columns:
            with np.errstate(divide="ignore", invalid="ignore"):
                shares = np.where(values[:, whole] > 0.0, np.minimum(values[:, part] / values[:, whole], 1.0), np.nan)
            means = np.column_stack((means, shares))
        per_series, seen = table.per_series(means, maxima=False)
        if self._max_columns:
            tops, top_seen = table.per_series(values[:, self._max_columns], maxima=True)
            per_series, seen = np.hstack((per_series, tops)), np.hstack((seen, top_seen))
        return per_series, seen


def _p95(
    table: SlotTable, before: Known, field: str, column: Floats, seen: Bools, fell: Bools, cap: float | None
) -> None:
    parts: dict[int, list[Added]] = {}
    for series, hists in before.hists.items():
        states = hists.get(field, ())
        if len(states) < 2:
            continue
        row = int(table.rows[series])
        gained = added(states)
        if gained is None:
            fell[row] = True
        else:
            parts.setdefault(row, []).append(gained)
    for row, gains in parts.items():
        quantile = merged_quantile(gains if cap is None else capped(gains, cap), _P95)
        if quantile is not None:
            column[row], seen[row] = quantile, True
