"""Closing slots: who is admitted, what the indicators are, and what is remembered for the slots to come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from streams.block_columns import FactRows, HistRows, SeriesRows
from streams.catalogue import Indicator
from streams.config import StreamConfig
from streams.facts_codec import FactColumns, SeriesColumns
from streams.indicators import IndicatorRules, Known, SlotValues
from streams.pages import HistogramState, SeriesState
from streams.sample_run import Ints
from streams.series import Roster, SeriesTable
from streams.series_index import SeriesIndex
from streams.slot_block import SlotBlock
from streams.slot_table import SlotTable
from streams.slots import OpenSlot

# Slots are closed together up to so many samples: more would no longer fit the cache of a core.
_GROUP_SAMPLES = 4_096


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
        self._index = index
        self._series = SeriesTable(self._rules.counters, self._rules.hist_fields, index)
        self.roster = Roster()

    def remember(self, slot: int, workloads: Collection[str], states: Iterable[SeriesState]) -> None:
        """Take in what a page says; with the last L pages, oldest first, the closer is as it was."""
        self.roster.mark(workloads, slot)
        self._series.load(slot, states)

    def living(self) -> Ints:
        """Series that are remembered."""
        return self._series.living()

    def close(self, slots: Sequence[tuple[int, OpenSlot]]) -> list[ClosedSlot]:
        """Aggregate slots, in ascending order, and remember them."""
        closed: list[ClosedSlot] = []
        # Histograms are no columns: each slot needs what the one before it has left.
        alone = bool(self._series.hists) or any(opened.samples.hists for _, opened in slots)
        group: list[tuple[int, OpenSlot]] = []
        num_samples = 0
        for slot, opened in slots:
            num_samples += opened.samples.num
            # What a slot of the group has heard must not be forgotten within the group.
            too_far = bool(group) and slot - group[0][0] > self._config.context_steps
            if group and (alone or too_far or num_samples > _GROUP_SAMPLES):
                closed += self._close_group(group)
                group, num_samples = [], opened.samples.num
            group.append((slot, opened))
        return closed + self._close_group(group) if group else closed

    def _close_group(self, slots: Sequence[tuple[int, OpenSlot]]) -> list[ClosedSlot]:
        workloads: list[tuple[str, ...]] = []
        for slot, opened in slots:
            self.roster.forget(slot - 1 - self._config.context_steps)
            workloads.append(tuple(sorted(self._admit(opened))))
            self.roster.mark(workloads[-1], slot)
        block = SlotBlock([opened for _, opened in slots], workloads, self._index, self._width)
        sources_known: list[Ints] = []
        for (slot, _), numbers, (first, end) in zip(slots, block.numbers, pairwise(block.cuts), strict=True):
            self._series.forget(slot - 1 - self._config.context_steps)
            self._series.hear(slot, block.series[first:end])
            sources_known.append(self._sources_known(slot, numbers))
        table = SlotTable(block.row_cuts[-1], block.rows, block.series_of, block.ts_ms, block.values)
        newest = table.newest(self._rules.counter_columns)
        before, before_ts_ms = block.before(newest, *self._series.before(block.series))
        hists = self._hists(block)
        states = {series: {f: [h for h, _ in seen] for f, seen in held.items()} for series, held in hists.items()}
        values = self._rules.apply(table, Known(before, before_ts_ms.astype(np.float64), states))
        series = SeriesRows(block, self._rules.counters, newest, before, before_ts_ms)
        final = block.final()
        self._series.put(block.series[final], series.values[final], series.times[final])
        hist_rows = self._remember_hists(block, hists)
        facts = FactRows(block, values)
        sources = self._index.sources_of(block.series)
        closed: list[ClosedSlot] = []
        for at, (_, opened) in enumerate(slots):
            names = workloads[at]
            unheard = opened.workloads.keys() - set(names) if len(names) < len(opened.workloads) else ()
            closed.append(
                ClosedSlot(
                    names,
                    values.part(block.row_cuts[at], block.row_cuts[at + 1]),
                    facts.of(at, names, opened, sources_known[at]),
                    series.of(at, sources[block.cuts[at] : block.cuts[at + 1]], hist_rows),
                    block.num_refused[at] + sum(len(opened.workloads[name] or ()) for name in unheard),
                )
            )
        return closed

    def _admit(self, opened: OpenSlot) -> Iterable[str]:
        """Workloads of the page: known ones, and new ones in order of appearance while there is room."""
        if self.roster.holds(opened.workloads.keys()):
            return opened.workloads
        admitted: list[str] = []
        room = self._config.max_workloads - len(self.roster)
        for workload in opened.workloads:
            known = workload in self.roster
            if known or room > 0:
                room -= not known
                admitted.append(workload)
        return admitted

    def _hists(self, block: SlotBlock) -> dict[int, dict[str, list[tuple[HistogramState, int]]]]:
        """Per series and field its histograms of this slot by time, with what was known before in front."""
        found: dict[int, dict[str, list[tuple[HistogramState, int]]]] = {}
        for sample, held in block.hists:
            series = int(block.series_of[sample])
            of_series = found.setdefault(series, {})
            for name, state in held.items():
                states = of_series.get(name)
                if states is None:
                    before = self._series.hists.get(int(block.series[series]), {}).get(name)
                    states = of_series[name] = [] if before is None else [before]
                states.append((state, int(block.ts_ms[sample])))
        return found

    def _remember_hists(
        self, block: SlotBlock, hists: dict[int, dict[str, list[tuple[HistogramState, int]]]]
    ) -> HistRows:
        """Store the newest histograms of a slot that stands alone; as rows of its page."""
        rows: list[tuple[int, str, HistogramState]] = []
        older: list[tuple[int, str, int]] = []
        if not (hists or self._series.hists):
            return rows, older
        for row, (series, ts_ms) in enumerate(zip(block.series.tolist(), block.newest.tolist(), strict=True)):
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
        return rows, older

    def _sources_known(self, slot: int, numbers: Ints) -> Ints:
        """[k] sources of each workload heard within the last steps, this one included."""
        heard = self._series.heard_since(slot - self._config.source_silence_steps + 1)
        counts = np.bincount(self._index.workload_of[heard], minlength=self._index.num_names)
        known: Ints = counts[numbers]
        return known
