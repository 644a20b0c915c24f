"""Closing a slot: who is admitted, what the indicators are, and what is remembered for the slots to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from streams.catalogue import Indicator
from streams.config import StreamConfig
from streams.facts_codec import FactColumns, SeriesColumns
from streams.indicators import IndicatorRules, SlotValues
from streams.pages import BatchQueue, FleetFacts, HistogramState, OutcomeFact, SeriesState, SloCounts
from streams.sample_run import Floats, Hists, Ints
from streams.series import Roster, SeriesTable
from streams.series_index import SeriesIndex
from streams.slot_table import Increases, SlotTable
from streams.slots import OpenSlot

_CENSORED, _RESET = 1, 2


@dataclass(frozen=True, slots=True)
class ClosedSlot:
    """A slot's share of its page; `num_refused` samples belonged to workloads that were one too many."""

    workloads: tuple[str, ...]
    values: SlotValues
    facts: FactColumns
    series: SeriesColumns
    num_refused: int


class SlotCloser:
    """Closes the slots of one partition in ascending order; what it knows is a function of the last L pages.

    Args:
        config: slot length, L and limits.
        indicators: of one source; columns of the values.
        fields: columns of the samples.
        index: numbers the series.
    """

    def __init__(
        self, config: StreamConfig, indicators: Sequence[Indicator], fields: Sequence[str], index: SeriesIndex
    ) -> None:
        self._config = config
        self._rules = IndicatorRules(indicators, fields, config.source_cap)
        self._width = len(fields)
        self._counter_columns = [fields.index(name) for name in self._rules.counters]
        self._index = index
        self._series = SeriesTable(self._rules.counters, self._rules.hist_fields, index)
        self.roster = Roster()

    def remember(self, slot: int, workloads: Iterable[str], states: Iterable[SeriesState]) -> None:
        """Take in what a page says; with the last L pages, oldest first, the closer is as it was."""
        for workload in workloads:
            self.roster.mark(workload, slot)
        self._series.load(slot, states)

    def living(self) -> Ints:
        """Series that are remembered."""
        return self._series.living()

    def close(self, slot: int, opened: OpenSlot) -> ClosedSlot:
        """Aggregate a slot and remember it."""
        self.roster.forget(slot - 1 - self._config.context_steps)
        self._series.forget(slot - 1 - self._config.context_steps)
        admitted = self._admit(opened)
        workloads = tuple(sorted(admitted))
        row_of = {workload: row for row, workload in enumerate(workloads)}
        columns = _Columns(opened, self._index, row_of, len(admitted) < len(opened.workloads), self._width)
        num_refused = columns.num_refused + sum(
            len(news) for workload, news in opened.workloads.items() if news is not None and workload not in row_of
        )
        before, before_ts_ms = self._series.before(columns.series)
        hists = self._hists(columns)
        table = SlotTable(
            len(workloads),
            columns.rows,
            columns.series_of,
            columns.ts_ms.astype(np.float64),
            columns.values,
            before,
            before_ts_ms.astype(np.float64),
            {series: {f: [h for h, _ in seen] for f, seen in held.items()} for series, held in hists.items()},
        )
        values, increases = self._rules.apply(table)
        for workload in workloads:
            self.roster.mark(workload, slot)
        states = self._remembered(slot, columns, table, increases, hists, before, before_ts_ms)
        return ClosedSlot(workloads, values, self._facts(slot, opened, row_of, columns, values), states, num_refused)

    def _admit(self, opened: OpenSlot) -> list[str]:
        """Workloads of the page: known ones, and new ones in order of appearance while there is room."""
        admitted: list[str] = []
        room = self._config.max_workloads - len(self.roster)
        for workload in opened.workloads:
            known = workload in self.roster
            if known or room > 0:
                room -= not known
                admitted.append(workload)
        return admitted

    def _hists(self, columns: _Columns) -> dict[int, dict[str, list[tuple[HistogramState, int]]]]:
        """Per series and field its histograms of this slot by time, with what was known before in front."""
        found: dict[int, dict[str, list[tuple[HistogramState, int]]]] = {}
        for sample, held in columns.hists:
            series = int(columns.series_of[sample])
            of_series = found.setdefault(series, {})
            for name, state in held.items():
                states = of_series.get(name)
                if states is None:
                    before = self._series.hists.get(int(columns.series[series]), {}).get(name)
                    states = of_series[name] = [] if before is None else [before]
                states.append((state, int(columns.ts_ms[sample])))
        return found

    def _remembered(
        self,
        slot: int,
        columns: _Columns,
        table: SlotTable,
        increases: Increases | None,
        hists: dict[int, dict[str, list[tuple[HistogramState, int]]]],
        before: Floats,
        before_ts_ms: Ints,
    ) -> SeriesColumns:
        """Store the newest value of each field, with its own time where the newest sample left it out; as columns."""
        values, times = before, before_ts_ms
        if increases is not None:
            values = np.where(increases.present, increases.last, before)
            times = np.where(increases.present, increases.last_ts_ms, before_ts_ms).astype(np.int64)
        self._series.put(slot, columns.series, values, times)
        last = np.r_[table.starts[1:], len(columns.series_of)] - 1
        newest = columns.ts_ms[last] if len(columns.series) else np.zeros(0, np.int64)
        present = ~np.isnan(values)
        used = np.flatnonzero(present.any(axis=0))
        older = [
            (int(row), self._rules.counters[column], int(times[row, column]))
            for row, column in np.argwhere(present & (times != newest[:, None])).tolist()
        ]
        hist_rows: list[tuple[int, str, HistogramState]] = []
        if hists or self._series.hists:
            older += self._remember_hists(columns, newest, hists, hist_rows)
            older.sort()
        present = present[:, used]
        return SeriesColumns(
            workload_rows=columns.rows.astype("<i4").tobytes(),
            sources=tuple([self._index.source_of(n) for n in columns.series.tolist()]),
            ts_ms=newest.astype("<i8").tobytes(),
            names=tuple(self._rules.counters[column] for column in used.tolist()),
            counters=np.where(present, values[:, used], 0.0).astype("<f8").tobytes(),
            present=np.packbits(present).tobytes(),
            hists=tuple(hist_rows),
            older_ts_ms=tuple(older),
        )

    def _remember_hists(
        self,
        columns: _Columns,
        newest: Ints,
        hists: dict[int, dict[str, list[tuple[HistogramState, int]]]],
        rows: list[tuple[int, str, HistogramState]],
    ) -> list[tuple[int, str, int]]:
        older: list[tuple[int, str, int]] = []
        for row, (series, ts_ms) in enumerate(zip(columns.series.tolist(), newest.tolist(), strict=True)):
            states = dict(self._series.hists.get(series, {}))
            for name, seen in hists.get(row, {}).items():
                states[name] = seen[-1]
            if not states:
                continue
            self._series.put_hists(series, states)
            for name in sorted(states):
                state, at_ms = states[name]
                rows.append((row, name, state))
                if at_ms != ts_ms:
                    older.append((row, name, at_ms))
        return older

    def _facts(
        self, slot: int, opened: OpenSlot, row_of: dict[str, int], columns: _Columns, values: SlotValues
    ) -> FactColumns:
        k = len(row_of)
        num_samples = np.bincount(columns.rows[columns.series_of], minlength=k)
        newest = np.zeros(k, np.int64)
        np.maximum.at(newest, columns.rows[columns.series_of], columns.ts_ms)
        fleet: list[tuple[int, FleetFacts]] = []
        outcomes: list[tuple[int, tuple[OutcomeFact, ...]]] = []
        batch: list[tuple[int, tuple[BatchQueue, ...]]] = []
        slo: list[tuple[int, tuple[SloCounts, ...]]] = []
        for workload, news in opened.workloads.items():
            row = row_of.get(workload)
            if news is None or row is None:
                continue
            if not num_samples[row]:
                newest[row] = news.newest_ts_ms()
            told = news.newest_fleet()
            if told is not None:
                fleet.append((row, told))
            if news.outcomes:
                outcomes.append((row, news.sorted_outcomes()))
            if queues := news.queues():
                batch.append((row, queues))
            if counts := news.slo():
                slo.append((row, counts))
        return FactColumns(
            num_samples=num_samples.astype("<i4").tobytes(),
            newest_ts_ms=newest.astype("<i8").tobytes(),
            sources_seen=np.bincount(columns.rows, minlength=k).astype("<i4").tobytes(),
            sources_known=self._sources_known(slot, row_of).astype("<i4").tobytes(),
            flags=(_CENSORED * values.censored + _RESET * values.reset).astype(np.uint8).tobytes(),
            fleet=tuple(sorted(fleet, key=lambda pair: pair[0])),
            outcomes=tuple(sorted(outcomes, key=lambda pair: pair[0])),
            batch=tuple(sorted(batch, key=lambda pair: pair[0])),
            slo=tuple(sorted(slo, key=lambda pair: pair[0])),
        )

    def _sources_known(self, slot: int, row_of: dict[str, int]) -> Ints:
        """[k] sources of each workload heard within the last steps, this one included."""
        heard = self._series.heard_since(slot - self._config.source_silence_steps + 1)
        counts = np.bincount(self._index.workload_of[heard], minlength=self._index.num_names)
        numbers = [self._index.publisher(workload).number for workload in row_of]
        known: Ints = counts[numbers] if numbers else np.zeros(0, np.int64)
        return known


class _Columns:
    """The admitted samples of a slot, ordered by workload, source and time.

    Attributes:
        series: [m] series numbers; `rows` [m] their workloads' rows.
        series_of: [n] which of the m series each sample belongs to; `ts_ms` [n], `values` [n, F].
        hists: (sample, histograms by name), ascending.
        num_refused: samples of workloads that were not admitted.
    """

    def __init__(
        self, opened: OpenSlot, index: SeriesIndex, row_of: dict[str, int], some_refused: bool, width: int
    ) -> None:
        series, ts_ms, values = opened.samples.columns(width)
        place = np.arange(len(series))
        if some_refused:
            named = {number: row_of.get(index.name_of(number)) for number in set(index.workload_of[series].tolist())}
            mine = np.array([named[number] is not None for number in index.workload_of[series].tolist()], np.bool_)
            place = place[mine]
        self.num_refused = len(series) - len(place)
        rank = index.ranks()[series[place]]
        place = place[np.lexsort((ts_ms[place], rank))]
        series = series[place]
        first = np.ones(len(series), np.bool_)
        first[1:] = series[1:] != series[:-1]
        self.series: Ints = series[first]
        self.series_of: Ints = np.cumsum(first) - 1
        self.ts_ms: Ints = ts_ms[place]
        self.values: Floats = values[place]
        workloads = index.workload_of[self.series].tolist()
        name_of = index.name_of
        self.rows: Ints = np.array([row_of[name_of(number)] for number in workloads], np.int64)
        self.hists: list[tuple[int, Hists]] = []
        if opened.samples.hists:
            now_at = {old: new for new, old in enumerate(place.tolist())}
            self.hists = sorted(
                ((now_at[at], held) for at, held in opened.samples.hists if at in now_at), key=lambda pair: pair[0]
            )
