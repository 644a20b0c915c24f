"""Closing slots: what a slot's page says, and what is remembered for the slots to come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from streams.catalogue import Indicator
from streams.close_columns import RESET, Columns
from streams.close_loop import close_slots
from streams.close_order import Closing, Limits, Names
from streams.close_room import CloseRoom
from streams.config import StreamConfig
from streams.indicators import IndicatorRules
from streams.ingest.series import Roster, SeriesTable
from streams.ingest.slots import OpenSlot, SlotNews
from streams.page_columns import BlockOfPages, HistRows
from streams.pages.facts_codec import FactColumns, PageSeries, SeriesColumns
from streams.pages.page import HistogramState, SeriesState
from streams.records.samples import Bools, Ints, Singles
from streams.records.series_index import SeriesIndex
from streams.sample_pool import SamplePool

# Slots are closed together up to so many samples: more would no longer fit the cache of a core.
_GROUP_SAMPLES = 4_096
_NOBODY: Ints = np.zeros(0, np.int64)


class ClosedSlot(NamedTuple):
    """A slot's share of its page; `num_refused` samples belonged to workloads that were one too many."""

    workloads: tuple[str, ...]
    values: Singles
    observed: Bools
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
        pool: holds the samples of the slots.
    """

    def __init__(
        self,
        config: StreamConfig,
        indicators: Sequence[Indicator],
        fields: Sequence[str],
        index: SeriesIndex,
        pool: SamplePool,
    ) -> None:
        self._context_steps = config.context_steps
        self._limits = Limits(config.step_ms, config.context_steps, config.source_silence_steps, config.max_workloads)
        self._rules = IndicatorRules(indicators, fields, config.source_cap)
        self._index = index
        self._pool = pool
        self._series = SeriesTable(self._rules.counters, self._rules.hist_fields, index)
        self._pages = BlockOfPages(self._rules.counters, index)
        self._room = CloseRoom(self._rules, len(fields))
        self.roster = Roster(index)

    def remember(self, slot: int, workloads: Sequence[str], states: Sequence[SeriesState]) -> None:
        """Take in what a page says; with the last L pages, oldest first, the closer is as it was."""
        self.roster.mark(workloads, slot)
        self._series.load(slot, PageSeries.of(states, workloads))

    def living(self) -> Ints:
        """Series that are remembered."""
        return self._series.living()

    def close(self, slots: Sequence[tuple[int, OpenSlot]]) -> Iterator[ClosedSlot]:
        """Aggregate slots, in ascending order, and remember them; their rows of the pool are free afterwards.

        What is yielded is to be used before the next one is asked for: its arrays are then filled anew.
        """
        # Histograms are no columns: each slot needs what the one before it has left.
        alone = bool(self._series.hists) or any(opened.news is not None and opened.news.hists for _, opened in slots)
        group: list[tuple[int, OpenSlot]] = []
        num_samples = 0
        for slot, opened in slots:
            num_samples += opened.size
            if group and (alone or num_samples > _GROUP_SAMPLES):
                yield from self._close_group(group)
                group, num_samples = [], opened.size
            group.append((slot, opened))
        if group:
            yield from self._close_group(group)

    def _close_group(self, slots: Sequence[tuple[int, OpenSlot]]) -> Iterator[ClosedSlot]:
        told_more = [opened.news is not None and bool(opened.news.workloads) for _, opened in slots]
        orders = [
            self._index.numbers_of(tuple(opened.news.workloads)) if more and opened.news else _NOBODY
            for more, (_, opened) in zip(told_more, slots, strict=True)
        ]
        closing = Closing(
            np.array([slot for slot, _ in slots]),
            np.array([opened.head for _, opened in slots]),
            np.array([opened.size for _, opened in slots]),
            np.concatenate(orders) if any(told_more) else _NOBODY,
            np.array([0, *accumulate(map(len, orders))]),
        )
        num_samples = int(closing.size.sum())
        last_seen = self.roster.last_seen()
        names = Names(last_seen, self._index.name_ranks(), self._index.workload_of, self._index.ranks())
        columns = self._room.columns(len(slots), num_samples + len(closing.order), num_samples)
        scratch = self._room.scratch(len(last_seen), int(closing.size.max()))
        known = self._series.columns()
        self._series.forget_hists(slots[0][0] - 1 - self._context_steps)
        close_slots(closing, self._pool.rows, names, known, self._rules.tables, self._limits, scratch, columns)
        hist_rows = self._hists(slots[0][1].news, columns)
        pages = self._pages
        pages.load(columns, len(slots))
        for at, (_, opened) in enumerate(slots):
            workloads = pages.workloads(at)
            values, observed = pages.values(at)
            num_refused = pages.refused(at)
            news = opened.news if told_more[at] else None
            if news is not None and len(workloads) < len(news.workloads):
                unheard = news.workloads.keys() - set(workloads)
                num_refused += sum(len(news.workloads[name] or ()) for name in unheard)
            facts = pages.facts(at, workloads, news)
            yield ClosedSlot(workloads, values, observed, facts, pages.series(at, hist_rows), num_refused)

    def _hists(self, news: SlotNews | None, columns: Columns) -> HistRows:
        """Indicators made of histograms, and what is remembered of them, of a slot that stands alone."""
        held = news.hists if news is not None else {}
        if not (held or self._series.hists):
            return [], []
        k, m, n = columns.cuts[1, :3].tolist()
        numbers = columns.series[:m].tolist()
        seen: dict[int, dict[str, list[tuple[HistogramState, int]]]] = {}
        ts_ms = self._pool.rows.ts_ms
        for row, series in zip(columns.sample_row[:n].tolist(), columns.sample_series[:n].tolist(), strict=True):
            for name, state in held.get(row, {}).items():
                before = self._series.hists.get(numbers[series], {}).get(name)
                states = seen.setdefault(series, {}).setdefault(name, [] if before is None else [before])
                states.append((state, int(ts_ms[row])))
        states_of = {s: {name: [h for h, _ in told] for name, told in of.items()} for s, of in seen.items()}
        self._rules.quantiles(
            columns.row[:m], states_of, columns.values[:k], columns.observed[:k], columns.flags[:k], RESET
        )  # fmt: skip
        rows: list[tuple[int, str, HistogramState]] = []
        older: list[tuple[int, str, int]] = []
        for at, (series, newest_ms) in enumerate(zip(numbers, columns.series_ms[:m].tolist(), strict=True)):
            latest = dict(self._series.hists.get(series, {}))
            latest.update({name: told[-1] for name, told in seen.get(at, {}).items()})
            self._series.put_hists(series, latest)
            for name in sorted(latest):
                state, at_ms = latest[name]
                rows.append((at, name, state))
                if at_ms != newest_ms:
                    older.append((at, name, at_ms))
        return rows, older
