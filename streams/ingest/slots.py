"""Slots that are still open: what has been heard for each, kept as it came until the slot closes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from streams.config import StreamConfig
from streams.ingest.pool_kernel import DUPLICATE, LATE, NOBODY, REFUSED, TAKEN
from streams.records.samples import Hists, Ints, SampleRun
from streams.records.schema import Facts, FleetRecord, SourceRecord
from streams.records.series_index import SeriesIndex
from streams.regulars import Regulars
from streams.sample_pool import SamplePool
from streams.workload_news import MAX_SOURCES_PER_WORKLOAD, Verdict, WorkloadNews

__all__ = ["MAX_SOURCES_PER_WORKLOAD", "VERDICTS", "OpenSlot", "OpenSlots"]

# New names are judged when their slot closes: only what closed slots hold is the same for a reader that starts again.
# Until then an open slot takes at most this many times `max_workloads`.
_NAMES_HELD_RATIO = 2

# By the number that the loop gives what became of a sample.
VERDICTS: tuple[Verdict, ...] = ("samples", "late", "duplicate", "refused")
assert (TAKEN, LATE, DUPLICATE, REFUSED) == (0, 1, 2, 3)


@dataclass(slots=True)
class SlotNews:
    """What a slot holds that is not a column; only of slots that had facts, histograms, or no room to spare.

    Attributes:
        workloads: in order of first appearance, which is the order of admission; None where only samples were heard.
            Those of samples up to row `last_row` of the pool, `num_listed` in all.
        sources: series by workload number, of the same samples.
        hists: by row of the pool.
    """

    workloads: dict[str, WorkloadNews | None] = field(default_factory=dict)
    sources: dict[int, set[int]] = field(default_factory=dict)
    hists: dict[int, Hists] = field(default_factory=dict)
    num_listed: int = 0
    last_row: int = NOBODY

    def of(self, workload: str) -> WorkloadNews:
        """The workload's entry, to add to."""
        news = self.workloads.get(workload)
        if news is None:
            news = self.workloads[workload] = WorkloadNews()
        return news


@dataclass(slots=True)
class OpenSlot:
    """A slot that is about to be closed: its samples are `size` rows of the pool, the first one `head`."""

    head: int = NOBODY
    size: int = 0
    news: SlotNews | None = None


class OpenSlots:
    """The open slots of one partition.

    Args:
        config: slot length and limits.
        regulars: in a flood of new names these are still served.
        index: of the series that runs name.
        pool: holds the samples.
    """

    def __init__(self, config: StreamConfig, regulars: Regulars, index: SeriesIndex, pool: SamplePool) -> None:
        self._step_ms = config.step_ms
        self.most_names = _NAMES_HELD_RATIO * config.max_workloads
        self._regulars = regulars
        self._index = index
        self._pool = pool
        self._news: dict[int, SlotNews] = {}

    def names(self) -> Iterator[str]:
        """Workloads that open slots hold; some of those of which only samples were heard are left out."""
        return (workload for news in self._news.values() for workload in news.workloads)

    def roomy(self) -> bool:
        """True while no limit can refuse a sample, so that whole runs may be added at once."""
        return self._index.num_workloads <= self.most_names and self._index.most_sources <= MAX_SOURCES_PER_WORKLOAD

    def add_run(self, run: SampleRun, last_closed: Ints) -> Ints:
        """Put samples into their slots; only while `roomy`.

        Args:
            last_closed: [R] newest closed slot when each record was read.

        Returns:
            [R, verdicts] how many samples of each record met which.
        """
        tally, row_of = self._pool.take(run, last_closed)
        for sample, held in run.hists:
            self._keep_hists(int(run.ts_ms[sample]), int(row_of[sample]), held)
        return tally

    def add_carefully(self, run: SampleRun, last_closed: int) -> Ints:
        """As `add_run` for a single record, when limits may refuse some of its samples."""
        tally = np.zeros((1, len(VERDICTS)), np.int64)
        offset, hists = int(run.offsets[0]), dict(run.hists)
        closed, one = np.array([last_closed]), np.array([1])
        for i, (series, ts_ms) in enumerate(zip(run.series.tolist(), run.ts_ms.tolist(), strict=True)):
            number = int(self._index.workload_of[series])
            place = self._place(ts_ms, self._index.name_of(number), last_closed, offset)
            if not isinstance(place, SlotNews):
                tally[0, VERDICTS.index(place)] += 1
                continue
            sources = place.sources.get(number, ())
            if series not in sources and len(sources) >= MAX_SOURCES_PER_WORKLOAD:
                tally[0, REFUSED] += 1
                continue
            sample = slice(i, i + 1)
            single = SampleRun(
                run.offsets, run.stamps, one, run.series[sample], run.ts_ms[sample], run.values[sample]
            )  # fmt: skip
            found, row_of = self._pool.take(single, closed)
            tally += found
            if i in hists:
                self._keep_hists(ts_ms, int(row_of[0]), hists[i])
        return tally

    def _keep_hists(self, ts_ms: int, row: int, held: Hists) -> None:
        if row != NOBODY:
            self._news.setdefault(ts_ms // self._step_ms, SlotNews()).hists[row] = held

    def add_facts(self, record: Facts, last_closed: int, offset: int) -> list[Verdict]:
        """Put a record's facts into the slots of their instants; what became of each, in order."""
        workload = record.workload
        self._index.publisher(workload)
        verdicts: list[Verdict] = []
        if isinstance(record, FleetRecord):
            for source, facts in record.facts:
                place = self._place(facts.ts_ms, workload, last_closed, offset)
                verdicts.append(place.of(workload).add_fleet(source, facts) if isinstance(place, SlotNews) else place)
        elif isinstance(record, SourceRecord):
            place = self._place(record.word.ts_ms, workload, last_closed, offset)
            verdicts.append(place.of(workload).add_word(record.word) if isinstance(place, SlotNews) else place)
        else:
            place = self._place(record.fact.ts_ms, workload, last_closed, offset)
            verdicts.append(place.of(workload).add_outcome(record.fact) if isinstance(place, SlotNews) else place)
        return verdicts

    def take_until(self, slot: int, offset: int) -> list[tuple[int, OpenSlot, int]]:
        """Remove the slots up to this one to close them, ascending, at the record of this offset.

        Returns:
            Per slot its number, itself, and from where reading gives every slot back that is open after it.
        """
        slots = self._pool.slots
        num = self._pool.num_slots
        first_offsets = slots.first_offset[:num]
        resume = np.minimum.accumulate(np.append(first_offsets, offset)[::-1])[::-1]
        closing = int(np.searchsorted(slots.slot[:num], slot, side="right"))
        taken: list[tuple[int, OpenSlot, int]] = []
        for at, (number, head, size, after) in enumerate(
            zip(
                slots.slot[:closing].tolist(),
                slots.head[:closing].tolist(),
                slots.size[:closing].tolist(),
                resume[1 : closing + 1].tolist(),
                strict=True,
            )
        ):
            if number in self._news and self._news[number].workloads:
                self._list(at, self._news[number])
            taken.append((number, OpenSlot(head, size, self._news.pop(number, None)), after))
        if closing:
            self._pool.drop_slots(closing)
        return taken

    def first_offset(self, offset: int) -> int:
        """Where reading must start to get every open slot back; this offset when none is open."""
        opened: list[int] = self._pool.slots.first_offset[: self._pool.num_slots].tolist()
        return min([*opened, offset])

    def _place(self, ts_ms: int, workload: str, last_closed: int, offset: int) -> SlotNews | Verdict:
        slot = ts_ms // self._step_ms
        if slot <= last_closed:
            return "late"
        at = self._pool.open(slot, offset)
        news = self._news.setdefault(slot, SlotNews())
        self._list(at, news)
        full = workload not in news.workloads and len(news.workloads) >= self.most_names
        return "refused" if full and not self._regulars.hold(workload, slot, offset) else news

    def _list(self, at: int, news: SlotNews) -> None:
        """Note the names of the samples that the slot at this place of the list was given since the last time."""
        slots, rows = self._pool.slots, self._pool.rows
        more = int(slots.size[at]) - news.num_listed
        if not more:
            return
        first = int(slots.head[at] if news.last_row == NOBODY else rows.following[news.last_row])
        found = self._pool.rows_from(first, more)
        for series in dict.fromkeys(rows.series[found].tolist()):
            number = int(self._index.workload_of[series])
            news.workloads.setdefault(self._index.name_of(number), None)
            news.sources.setdefault(number, set()).add(series)
        news.num_listed += more
        news.last_row = int(found[-1])
