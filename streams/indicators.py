"""The rules of the catalogue as tables for the compiled loops, and what those leave out: quantiles of histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streams.catalogue import GENERATED, RUNNING, Indicator
from streams.ingest.aggregate_kernel import MAX, MEAN, OF_MAXIMA, OF_MEANS, OF_RATIOS, SUM, RuleTables
from streams.pages.page import HistogramState
from streams.records.histograms import Added, added, capped, merged_quantile
from streams.records.samples import Bools, Bytes, Ints, Shorts, Singles

_P95 = 0.95
_HOW = {"sum": SUM, "mean": MEAN, "max": MAX}
_GAUGES = {"mean": OF_MEANS, "ratio": OF_RATIOS, "max": OF_MAXIMA}
_NO_COUNTER = -1


class IndicatorRules:
    """The rules of one source's indicators.

    Args:
        indicators: columns of the result, N of them.
        fields: columns of the samples, F of them.
        source_cap: as of the stream's settings.

    Attributes:
        counters: names of the counters, ascending, C of them.
        hist_fields: names of the histograms.
        tables: all rules but those of histograms.
    """

    def __init__(self, indicators: Sequence[Indicator], fields: Sequence[str], source_cap: float | None = None) -> None:
        self._cap = source_cap
        at = {name: n for n, name in enumerate(fields)}
        self.num_indicators = len(indicators)
        counting = [i for i in indicators if i.rule in {"rate", "miss_ratio"}]
        self.counters = tuple(sorted({f for i in counting for f in i.fields}))
        self.hist_fields = tuple(sorted({f for i in indicators if i.rule == "p95" for f in i.fields}))
        counter = {name: n for n, name in enumerate(self.counters)}
        numbered = list(enumerate(indicators))
        rates = [(n, i) for n, i in numbered if i.rule == "rate"]
        misses = [(n, i) for n, i in numbered if i.rule == "miss_ratio"]
        gauges = [(n, i) for rule in _GAUGES for n, i in numbered if i.rule == rule]
        most = max((len(i.fields) for _, i in rates), default=1)
        # A rate has one field, or several of which the first present one counts.
        rate_counters = np.full((len(rates), most), _NO_COUNTER)
        for row, (_, i) in enumerate(rates):
            rate_counters[row, : len(i.fields)] = [counter[f] for f in i.fields]
        self.tables = RuleTables(
            counters=_numbers([at[name] for name in self.counters]),
            rate_counters=rate_counters,
            gauge_rule=_numbers([_GAUGES[i.rule] for _, i in gauges]),
            gauge_fields=_numbers([(at[i.fields[0]], at[i.fields[-1]]) for _, i in gauges]).reshape(-1, 2),
            plain_at=_numbers([n for n, _ in (*rates, *gauges)]),
            plain_how=_numbers([_HOW[i.over_sources] for _, i in (*rates, *gauges)]),
            miss_at=_numbers([n for n, _ in misses]),
            good=_numbers([counter[i.fields[0]] for _, i in misses]),
            whole=_numbers([counter[i.fields[1]] for _, i in misses]),
            busy=_numbers([at.get(RUNNING, _NO_COUNTER), counter.get(GENERATED, _NO_COUNTER)]),
            cap=np.array([np.inf if source_cap is None else source_cap]),
        )
        self._quantiles = [(n, i.fields[0]) for n, i in numbered if i.rule == "p95"]

    def quantiles(
        self,
        rows: Shorts,
        hists: Mapping[int, Mapping[str, Sequence[HistogramState]]],
        values: Singles,
        observed: Bools,
        flags: Bytes,
        reset: int,
    ) -> None:
        """Write the indicators made of histograms into a slot's `values` and `observed`, [k, N].

        Args:
            rows: [m] row of each series.
            hists: series -> histograms by name, oldest first, with what was known before in front.
            flags: [k] where one of them fell, `reset` is set.
        """
        for n, field in self._quantiles:
            parts: dict[int, list[Added]] = {}
            fell: set[int] = set()
            for series, states in hists.items():
                held = states.get(field, ())
                if len(held) < 2:
                    continue
                row = int(rows[series])
                gained = added(held)
                if gained is None:
                    fell.add(row)
                else:
                    parts.setdefault(row, []).append(gained)
            for row, gains in parts.items():
                quantile = merged_quantile(gains if self._cap is None else capped(gains, self._cap), _P95)
                if quantile is not None and row not in fell:
                    values[row, n] = np.float32(quantile) + np.float32(0.0)
                    observed[row, n] = True
            for row in fell:
                flags[row] |= reset


def _numbers(numbers: Sequence[int] | Sequence[tuple[int, int]]) -> Ints:
    return np.array(numbers, np.int64)
