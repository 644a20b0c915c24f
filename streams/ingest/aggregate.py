"""Closing slots: the share of each slot in its page, and the states of series for the slots to come.

| class | subject |
|---|---|
| `IndicatorRules` | the rules of the catalogue as tables for the compiled loops, and quantiles of histograms |
| `CloseBuffers` | the arrays in which slots are closed |
| `PageBlock` | pages cut out of the columns of a block of slots |
| `SlotCloser` | closes the slots of a partition in ascending order |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from streams.catalogue import GENERATED, RUNNING, Indicator
from streams.config import StreamConfig
from streams.ingest.aggregate_kernel import (
    CELLS,
    MAX,
    MEAN,
    OF_MAXIMA,
    OF_MEANS,
    OF_RATIOS,
    OLDER,
    PRESENT,
    RESET,
    ROWS,
    SERIES,
    SUM,
    ClosingLimits,
    ClosingSlots,
    CounterDeltas,
    NameTables,
    PageColumns,
    RuleTables,
    Scratch,
    SlotInputs,
    SourceValues,
    close_slots,
)
from streams.ingest.incomplete import SourceCheck
from streams.ingest.series import Roster, SeriesTable
from streams.ingest.slots import OpenSlot, SamplePool, SlotFacts
from streams.pages.facts_codec import FactColumns, PageSeries, SeriesColumns
from streams.pages.page import SeriesState
from streams.records.facts import BatchQueue, FleetFacts, HistogramState, OutcomeFact, SloCounts
from streams.records.samples import Bools, Bytes, Ints, Shorts, Singles
from streams.records.series_index import NUM_NAMESPACES, SeriesIndex

# Quantiles of the increase of cumulative histograms, merged over sources whose bucket edges may differ.


class HistogramDelta(NamedTuple):
    """Increase of a cumulative histogram: observations at or below each edge, and in all."""

    le: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float


def histogram_delta(states: Sequence[HistogramState]) -> HistogramDelta | None:
    """The increase from the first to the last of at least two consecutive states.

    Returns:
        None when a count fell or the edges changed on the way: the source started anew.
    """
    for before, after in pairwise(states):
        fell = after.count < before.count or any(
            b < a for a, b in zip(before.cumulative, after.cumulative, strict=False)
        )
        if fell or after.le != before.le:
            return None
    first, last = states[0], states[-1]
    gained = tuple(b - a for a, b in zip(first.cumulative, last.cumulative, strict=True))
    return HistogramDelta(last.le, gained, last.count - first.count)


def cap_weights(parts: Sequence[HistogramDelta], cap: float) -> list[HistogramDelta]:
    """The parts, none with more weight than `cap` times the mean of the others; fewer than three stay as they are.

    The shape of a part stays, only its weight changes.
    """
    if len(parts) < 3:
        return list(parts)
    total = 0.0
    for part in parts:
        total += part.total
    capped = []
    for part in parts:
        limit = max(0.0, cap * ((total - part.total) / (len(parts) - 1)))
        if part.total > limit:
            share = limit / part.total
            part = HistogramDelta(part.le, tuple(count * share for count in part.cumulative), part.total * share)
        capped.append(part)
    return capped


def merged_quantile(parts: Sequence[HistogramDelta], level: float) -> float | None:
    """Quantile of the union of the parts' observations.

    The cumulative count of each part is interpolated linearly between its own edges, from nothing at 0. Beyond its last
    edge it stays constant, because the positions there are unknown. A quantile beyond every edge is the last edge. This
    is the rule of Prometheus' `histogram_quantile`, extended to parts with different edges.

    >>> part = HistogramDelta(le=(1.0, 2.0), cumulative=(5.0, 10.0), total=10.0)
    >>> merged_quantile([part], 0.75)
    1.5

    Returns:
        The quantile in the unit of the edges; None when nothing was observed.
    """
    total = 0.0
    for part in parts:
        total += part.total
    if total <= 0.0:
        return None
    if len({part.le for part in parts}) == 1:
        edges: Sequence[float] = parts[0].le
        columns = [part.cumulative for part in parts]
    else:
        edges = sorted({edge for part in parts for edge in part.le})
        columns = [tuple(_cumulative_at(part, edge) for edge in edges) for part in parts]
    rank = level * total
    low_edge = low_count = 0.0
    for column, edge in enumerate(edges):
        count = 0.0
        for cumulative in columns:
            count += cumulative[column]
        if count >= rank:
            return low_edge + (edge - low_edge) * ((rank - low_count) / (count - low_count))
        low_edge, low_count = edge, count
    return edges[-1]


def _cumulative_at(part: HistogramDelta, edge: float) -> float:
    at = bisect_left(part.le, edge)
    if at == len(part.le):
        return part.cumulative[-1]
    high_edge, high = part.le[at], part.cumulative[at]
    if high_edge == edge:
        return high
    low_edge, low = (part.le[at - 1], part.cumulative[at - 1]) if at else (0.0, 0.0)
    return low + (high - low) * ((edge - low_edge) / (high_edge - low_edge))


# Histograms of a slot: (series, name, state), and (series, name, event time) of those older than the newest sample.
HistRows = tuple[list[tuple[int, str, HistogramState]], list[tuple[int, str, int]]]


class PageBlock:
    """The pages of a block, cut out of its columns one after the other.

    Args:
        counters: names of the counters.
        index: names the workloads and series.
    """

    def __init__(self, counters: Sequence[str], index: SeriesIndex) -> None:
        self._counters = tuple(counters)
        self._index = index
        self._block: PageColumns
        self._cuts: list[list[int]]
        self._same: list[bool]
        self._refused: list[int]
        # Names of the previous slot by their numbers. Its series still have a state when the next slot closes, so no
        # number has been given to another name.
        self._numbers: tuple[Ints, Ints] = _NO_NUMBERS, _NO_NUMBERS
        self._workloads: tuple[str, ...] = ()
        self._sources: tuple[str, ...] = ()
        self._rows: bytes
        self._names_of: dict[bytes, tuple[str, ...]] = {}

    def load(self, block: PageColumns, num_slots: int) -> None:
        """Set the block of slots that was just closed."""
        self._block = block
        self._cuts = block.cuts[: num_slots + 1].tolist()
        self._same = block.same[:num_slots].tolist()
        self._refused = block.refused[:num_slots].tolist()

    def workloads(self, at: int) -> tuple[str, ...]:
        """Workloads of a slot's page, ascending; slots are looked at in order."""
        if not self._same[at]:
            rows, series = self._part(at, ROWS), self._part(at, SERIES)
            numbers = self._block.workload[rows], self._block.series[series]
            if not all(map(np.array_equal, numbers, self._numbers)):
                self._numbers = numbers[0].copy(), numbers[1].copy()
                self._workloads = tuple(self._index.names_of(numbers[0]))
                self._sources = tuple(self._index.sources_of(numbers[1]))
            self._rows = self._block.row[series].tobytes()
        return self._workloads

    def values(self, at: int) -> tuple[Singles, Bools]:
        """Values [k, N] and mask of a slot's page."""
        rows = self._part(at, ROWS)
        return self._block.values[rows], self._block.observed[rows]

    def refused(self, at: int) -> int:
        """Samples of a slot whose workloads were not admitted."""
        return self._refused[at]

    def _part(self, at: int, of: int) -> slice:
        return slice(self._cuts[at][of], self._cuts[at + 1][of])

    def facts(self, at: int, workloads: Sequence[str], reported: SlotFacts | None) -> FactColumns:
        """The fact columns of a slot; `reported` is None where no record but samples belongs to it."""
        block, rows = self._block, self._part(at, ROWS)
        num_samples, newest = block.num_samples[rows], block.newest_ms[rows]
        fleet: list[tuple[int, FleetFacts]] = []
        outcomes: list[tuple[int, tuple[OutcomeFact, ...]]] = []
        batch: list[tuple[int, tuple[BatchQueue, ...]]] = []
        slo: list[tuple[int, tuple[SloCounts, ...]]] = []
        for row, workload in enumerate(workloads if reported is not None else ()):
            own = reported.workloads.get(workload) if reported is not None else None
            if own is None:
                continue
            if not num_samples[row]:
                newest[row] = own.newest_ts_ms()
            replicas = own.newest_fleet()
            if replicas is not None:
                fleet.append((row, replicas))
            if own.outcomes:
                outcomes.append((row, own.sorted_outcomes()))
            if queues := own.queues():
                batch.append((row, queues))
            if counts := own.slo():
                slo.append((row, counts))
        return FactColumns(
            num_samples=num_samples.tobytes(),
            newest_ts_ms=newest.tobytes(),
            sources_seen=block.sources_seen[rows].tobytes(),
            sources_known=block.sources_known[rows].tobytes(),
            flags=block.flags[rows].tobytes(),
            fleet=tuple(fleet),
            outcomes=tuple(outcomes),
            batch=tuple(batch),
            slo=tuple(slo),
        )

    def series(self, at: int, hists: HistRows) -> SeriesColumns:
        """The series of a slot, after its `workloads`."""
        block, hist_rows, older = self._block, *hists
        late = block.older[self._part(at, OLDER)].tolist() if self._cuts[at][OLDER] < self._cuts[at + 1][OLDER] else ()
        return SeriesColumns(
            workload_rows=self._rows,
            sources=self._sources,
            ts_ms=block.series_ms[self._part(at, SERIES)].tobytes(),
            names=self._used(block.used[at]),
            counters=block.cells[self._part(at, CELLS)].tobytes(),
            present=block.present[self._part(at, PRESENT)].tobytes(),
            hists=tuple(hist_rows),
            older_ts_ms=tuple(sorted([*older, *((row, self._counters[c], ts_ms) for row, c, ts_ms in late)])),
        )

    def _used(self, used: Bools) -> tuple[str, ...]:
        names = self._names_of.get(key := used.tobytes())
        if names is None:
            names = tuple(name for name, there in zip(self._counters, used.tolist(), strict=True) if there)
            self._names_of[key] = names
        return names


# Rules.


_P95 = 0.95
_COMBINERS = {"sum": SUM, "mean": MEAN, "max": MAX}
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
            counters=_int_array([at[name] for name in self.counters]),
            rate_counters=rate_counters,
            gauge_rule=_int_array([_GAUGES[i.rule] for _, i in gauges]),
            gauge_fields=_int_array([(at[i.fields[0]], at[i.fields[-1]]) for _, i in gauges]).reshape(-1, 2),
            plain_at=_int_array([n for n, _ in (*rates, *gauges)]),
            plain_combiner=_int_array([_COMBINERS[i.over_sources] for _, i in (*rates, *gauges)]),
            miss_at=_int_array([n for n, _ in misses]),
            good=_int_array([counter[i.fields[0]] for _, i in misses]),
            total=_int_array([counter[i.fields[1]] for _, i in misses]),
            busy=_int_array([at.get(RUNNING, _NO_COUNTER), counter.get(GENERATED, _NO_COUNTER)]),
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
        """Write the quantile indicators of a slot.

        Args:
            rows: [m] row of each series.
            hists: series -> histograms by name, oldest first, the state before the slot in front.
            values, observed: [k, N] out.
            flags: [k] out; `reset` is set where a histogram has started anew.
        """
        for n, field in self._quantiles:
            parts: dict[int, list[HistogramDelta]] = {}
            fell: set[int] = set()
            for series, states in hists.items():
                field_states = states.get(field, ())
                if len(field_states) < 2:
                    continue
                row = int(rows[series])
                gained = histogram_delta(field_states)
                if gained is None:
                    fell.add(row)
                else:
                    parts.setdefault(row, []).append(gained)
            for row, gains in parts.items():
                quantile = merged_quantile(gains if self._cap is None else cap_weights(gains, self._cap), _P95)
                if quantile is not None and row not in fell:
                    values[row, n] = np.float32(quantile) + np.float32(0.0)
                    observed[row, n] = True
            for row in fell:
                flags[row] |= reset


def _int_array(numbers: Sequence[int] | Sequence[tuple[int, int]]) -> Ints:
    return np.array(numbers, np.int64)


# Buffers.


class CloseBuffers:
    """Arrays for closing blocks of slots, kept from block to block, as large as the largest one needs.

    Args:
        rules: say how many counters and indicators there are.
        width: F, columns of the samples.
    """

    def __init__(self, rules: IndicatorRules, width: int) -> None:
        self._rules = rules
        self._width = width
        self._size, self._scratch_size = (1, 1, 1), (1, 1)
        self._columns = self._new_columns(*self._size)
        self._scratch = self._new_scratch(*self._scratch_size)

    def columns(self, num_slots: int, k: int, n: int) -> PageColumns:
        """Columns for `num_slots` slots with k rows and n samples in all; the next block overwrites them."""
        slots, rows, samples = self._size
        size = _grown_size(slots, num_slots), _grown_size(rows, k), _grown_size(samples, n)
        if size != self._size:
            self._size, self._columns = size, self._new_columns(*size)
        return self._columns

    def scratch(self, num_names: int, n: int) -> Scratch:
        """Working memory for slots with up to n samples and `num_names` workload numbers."""
        names, samples = self._scratch_size
        size = _grown_size(names, num_names), _grown_size(samples, n)
        if size != self._scratch_size:
            self._scratch_size, self._scratch = size, self._new_scratch(*size)
        return self._scratch

    def _new_columns(self, num_slots: int, k: int, n: int) -> PageColumns:
        num_indicators, num_counters = self._rules.num_indicators, len(self._rules.counters)
        # Little-endian, as in the bytes of a page.
        return PageColumns(
            cuts=np.empty((num_slots + 1, 6), np.int64),
            refused=np.empty(num_slots, np.int64),
            same=np.empty(num_slots, np.bool_),
            used=np.empty((num_slots, num_counters), np.bool_),
            workload=np.empty(k, np.int64),
            values=np.empty((k, num_indicators), "<f4"),
            observed=np.empty((k, num_indicators), np.bool_),
            num_samples=np.empty(k, "<i4"),
            newest_ms=np.empty(k, "<i8"),
            sources_seen=np.empty(k, "<i4"),
            sources_known=np.empty(k, "<i4"),
            flags=np.empty(k, np.uint8),
            series=np.empty(n, np.int64),
            row=np.empty(n, "<i4"),
            series_ms=np.empty(n, "<i8"),
            cells=np.empty(n * num_counters, "<f8"),
            present=np.empty(n * num_counters // 8 + num_slots, np.uint8),
            older=np.empty((n * num_counters, 3), np.int64),
            sample_row=np.empty(n, np.int64),
            sample_series=np.empty(n, np.int64),
        )

    def _new_scratch(self, num_names: int, n: int) -> Scratch:
        tables, num_counters = self._rules.tables, len(self._rules.counters)
        plain, misses, grown = (n, len(tables.plain_at)), (n, len(tables.miss_at)), (n, num_counters)
        falls = n, len(tables.rate_counters) + len(tables.miss_at)
        pool_rows, workloads, keys, order, rows, samples, ts_ms, series = np.empty((8, n), np.int64)
        begins, firsts = np.empty((2, n + 1), np.int64)
        return Scratch(
            row_of=np.full(num_names, -1),
            pool_rows=pool_rows,
            workloads=workloads,
            keys=keys,
            order=order,
            num_ordered=np.zeros(1, np.int64),
            inputs=SlotInputs(
                samples, ts_ms, np.empty((n, self._width)), np.empty(self._width, np.bool_), begins, series, firsts
            ),
            rows=rows,
            per_source=SourceValues(
                plain=np.empty(plain),
                plain_observed=np.empty(plain, np.bool_),
                told=np.empty(plain[1], np.bool_),
                good=np.empty(misses),
                total=np.empty(misses),
                miss_observed=np.empty(misses, np.bool_),
                fell=np.empty(falls, np.bool_),
                censored=np.empty(n, np.bool_),
                stuck=np.empty(n, np.bool_),
            ),
            deltas=CounterDeltas(*np.empty((3, *grown), np.bool_), *np.empty((2, *grown))),
        )


def _grown_size(size: int, needed: int) -> int:
    return size if needed <= size else max(needed, 2 * size)


# Slots are closed together up to this many samples, which fit the cache of a core.
_MAX_GROUP_SAMPLES = 4_096
_NO_NUMBERS: Ints = np.zeros(0, np.int64)


class ClosedSlot(NamedTuple):
    """The content of a slot's page; `num_refused` samples belonged to workloads beyond the limit."""

    workloads: tuple[str, ...]
    values: Singles
    observed: Bools
    facts: FactColumns
    series: SeriesColumns
    num_refused: int


class SlotCloser:
    """Closes the slots of one partition in ascending order; its state is a function of the last L pages.

    Args:
        config: slot length, L and limits.
        indicators: of one source; columns of the values.
        fields: columns of the samples.
        index: numbers the series.
        pool: holds the samples of the slots.

    Attributes:
        check: looks at the sources of closed slots, for people.
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
        self._limits = ClosingLimits(
            config.step_ms,
            config.context_steps,
            config.source_silence_steps,
            config.max_workloads,
            config.max_undeclared,
            NUM_NAMESPACES,
        )
        self._rules = IndicatorRules(indicators, fields, config.source_cap)
        self._index = index
        self._pool = pool
        self._series = SeriesTable(self._rules.counters, self._rules.hist_fields, index)
        self._pages = PageBlock(self._rules.counters, index)
        self._room = CloseBuffers(self._rules, len(fields))
        self.roster = Roster(index)
        self.check = SourceCheck(indicators, self._rules.counters, index)

    def restore(self, slot: int, workloads: Sequence[str], states: Sequence[SeriesState]) -> None:
        """Load a page; with the last L pages, oldest first, the closer has the state after the newest one."""
        self.roster.mark(workloads, slot)
        self._series.load(slot, PageSeries.from_records(states, workloads))

    def living(self) -> Ints:
        """Series numbers that have a state."""
        return self._series.living()

    def close(self, slots: Sequence[tuple[int, OpenSlot]]) -> Iterator[ClosedSlot]:
        """Aggregate slots in ascending order, update the states, and free their rows of the pool.

        A yielded slot must be used before the next one is requested, because the arrays are reused.
        """
        # Histograms are not columns: each slot needs the histograms that the slot before it has left.
        one_by_one = bool(self._series.hists) or any(
            opened.facts is not None and opened.facts.hists for _, opened in slots
        )
        group: list[tuple[int, OpenSlot]] = []
        num_samples = 0
        for slot, opened in slots:
            num_samples += opened.size
            if group and (one_by_one or num_samples > _MAX_GROUP_SAMPLES):
                yield from self._close_group(group)
                group, num_samples = [], opened.size
            group.append((slot, opened))
        if group:
            yield from self._close_group(group)

    def _close_group(self, slots: Sequence[tuple[int, OpenSlot]]) -> Iterator[ClosedSlot]:
        has_facts = [opened.facts is not None and bool(opened.facts.workloads) for _, opened in slots]
        orders = [
            self._index.numbers_of(tuple(opened.facts.workloads)) if more and opened.facts else _NO_NUMBERS
            for more, (_, opened) in zip(has_facts, slots, strict=True)
        ]
        closing = ClosingSlots(
            np.array([slot for slot, _ in slots]),
            np.array([opened.head for _, opened in slots]),
            np.array([opened.size for _, opened in slots]),
            np.concatenate(orders) if any(has_facts) else _NO_NUMBERS,
            np.array([0, *accumulate(map(len, orders))]),
        )
        num_samples = int(closing.size.sum())
        last_seen = self.roster.last_seen()
        index = self._index
        names = NameTables(last_seen, index.name_ranks(), index.namespace_of, index.workload_of, index.ranks())
        columns = self._room.columns(len(slots), num_samples + len(closing.order), num_samples)
        scratch = self._room.scratch(len(last_seen), int(closing.size.max()))
        states = self._series.columns()
        self._series.forget_hists(slots[0][0] - 1 - self._context_steps)
        close_slots(closing, self._pool.samples(), names, states, self._rules.tables, self._limits, scratch, columns)
        first, end = columns.cuts[len(slots) - 1 : len(slots) + 1, SERIES].tolist()
        if end > first:  # of the last slot alone: the values of each source are overwritten slot by slot
            observed = scratch.per_source.plain_observed[: end - first]
            self.check.look(slots[-1][0], columns.series[first:end], states.values, observed)
        hist_rows = self._hists(slots[0][1].facts, columns)
        self._pool.release(closing.head)
        pages = self._pages
        pages.load(columns, len(slots))
        for at, (_, opened) in enumerate(slots):
            workloads = pages.workloads(at)
            values, observed = pages.values(at)
            num_refused = pages.refused(at)
            reported = opened.facts if has_facts[at] else None
            if reported is not None and len(workloads) < len(reported.workloads):
                refused = reported.workloads.keys() - set(workloads)
                num_refused += sum(len(reported.workloads[name] or ()) for name in refused)
            facts = pages.facts(at, workloads, reported)
            yield ClosedSlot(workloads, values, observed, facts, pages.series(at, hist_rows), num_refused)

    def _hists(self, reported: SlotFacts | None, columns: PageColumns) -> HistRows:
        """Quantiles and histogram states of a slot that is closed on its own."""
        row_hists = reported.hists if reported is not None else {}
        if not (row_hists or self._series.hists):
            return [], []
        k, m, n = columns.cuts[1, :3].tolist()
        numbers = columns.series[:m].tolist()
        timed_states: dict[int, dict[str, list[tuple[HistogramState, int]]]] = {}
        ts_ms = self._pool.rows.ts_ms
        for row, series in zip(columns.sample_row[:n].tolist(), columns.sample_series[:n].tolist(), strict=True):
            for name, state in row_hists.get(row, {}).items():
                before = self._series.hists.get(numbers[series], {}).get(name)
                states = timed_states.setdefault(series, {}).setdefault(name, [] if before is None else [before])
                states.append((state, int(ts_ms[row])))
        states_of = {s: {name: [h for h, _ in timed] for name, timed in of.items()} for s, of in timed_states.items()}
        self._rules.quantiles(
            columns.row[:m], states_of, columns.values[:k], columns.observed[:k], columns.flags[:k], RESET
        )  # fmt: skip
        rows: list[tuple[int, str, HistogramState]] = []
        older: list[tuple[int, str, int]] = []
        for at, (series, newest_ms) in enumerate(zip(numbers, columns.series_ms[:m].tolist(), strict=True)):
            latest = dict(self._series.hists.get(series, {}))
            latest.update({name: timed[-1] for name, timed in timed_states.get(at, {}).items()})
            self._series.put_hists(series, latest)
            for name in sorted(latest):
                state, at_ms = latest[name]
                rows.append((at, name, state))
                if at_ms != newest_ms:
                    older.append((at, name, at_ms))
        return rows, older
