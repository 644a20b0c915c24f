"""Slots that are still open: what has been heard for each, kept as columns as it came until the slot closes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from streams.config import StreamConfig
from streams.pages import BatchQueue, FleetFacts, OutcomeFact, SloCounts
from streams.records import Facts, FleetRecord, SourceRecord
from streams.sample_run import Bools, Floats, Hists, Ints, SampleRun
from streams.series_index import SeriesIndex

# One workload's sources may come and go, but a publisher that invents a new name per sample must not fill the memory.
MAX_SOURCES_PER_WORKLOAD = 4096
# New names are judged when their slot closes: only what closed slots hold is the same for a reader that starts again.
# Until then an open slot takes at most this many times `max_workloads`.
_NAMES_HELD_RATIO = 2

# What became of a sample, by the name of the counter that says so; `samples` is: taken.
Verdict = Literal["samples", "late", "duplicate", "refused"]
VERDICTS: tuple[Verdict, ...] = ("samples", "late", "duplicate", "refused")
TAKEN, LATE, DUPLICATE, REFUSED = range(4)


@dataclass(slots=True)
class WorkloadNews:
    """What an open slot holds of one workload beside its samples."""

    fleet: dict[tuple[int, str], FleetFacts] = field(default_factory=dict)
    outcomes: set[OutcomeFact] = field(default_factory=set)
    words: dict[tuple[int, str, type], BatchQueue | SloCounts] = field(default_factory=dict)

    def add_fleet(self, source: str, facts: FleetFacts) -> Verdict:
        """Keep what a source says of the replicas."""
        if (facts.ts_ms, source) in self.fleet:
            return "duplicate"
        if len(self.fleet) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.fleet[facts.ts_ms, source] = facts
        return "samples"

    def add_outcome(self, fact: OutcomeFact) -> Verdict:
        """Keep what became of a command."""
        if fact in self.outcomes:
            return "duplicate"
        if len(self.outcomes) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.outcomes.add(fact)
        return "samples"

    def __len__(self) -> int:
        return len(self.fleet) + len(self.outcomes) + len(self.words)

    def add_word(self, word: BatchQueue | SloCounts) -> Verdict:
        """Keep what a source says of the workload as a whole."""
        if (word.ts_ms, word.source, type(word)) in self.words:
            return "duplicate"
        if len(self.words) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.words[word.ts_ms, word.source, type(word)] = word
        return "samples"

    def newest_ts_ms(self) -> int:
        """Of all that is here."""
        return max(fact.ts_ms for fact in (*self.fleet.values(), *self.words.values(), *self.outcomes))

    def queues(self) -> tuple[BatchQueue, ...]:
        """The latest word of each source on queued work, by name."""
        return tuple(word for word in self._newest(BatchQueue) if isinstance(word, BatchQueue))

    def slo(self) -> tuple[SloCounts, ...]:
        """The latest counts of each source by SLO class, by name."""
        return tuple(word for word in self._newest(SloCounts) if isinstance(word, SloCounts))

    def _newest(self, kind: type) -> list[BatchQueue | SloCounts]:
        newest = {key[1]: word for key, word in sorted(self.words.items(), key=lambda e: e[0][0]) if key[2] is kind}
        return [newest[source] for source in sorted(newest)]

    def newest_fleet(self) -> FleetFacts | None:
        """The latest word on replicas; of two sources at the same instant the one last by name."""
        return self.fleet[max(self.fleet)] if self.fleet else None

    def sorted_outcomes(self) -> tuple[OutcomeFact, ...]:
        """By time, so that a page does not depend on arrival order."""
        return tuple(sorted(self.outcomes, key=_outcome_order))


class SlotSamples:
    """Samples of one open slot, in log order."""

    __slots__ = ("_runs", "_seen", "_sources", "hists", "num")

    def __init__(self) -> None:
        self.num = 0
        self.hists: list[tuple[int, Hists]] = []
        self._runs: list[tuple[Ints, Ints, Floats]] = []
        self._seen: set[int] = set()
        self._sources: dict[int, set[int]] | None = None

    def take(self, run: SampleRun, at: Ints, identities: Ints, hists: Sequence[tuple[int, Hists]]) -> None:
        """Keep the samples `at` of a run, of which none is here already."""
        self._seen.update(identities.tolist())
        self._runs.append((run.series[at], run.ts_ms[at], run.values[at]))
        if hists:
            place = {sample: n for n, sample in enumerate(at.tolist(), self.num)}
            self.hists += [(place[sample], held) for sample, held in hists if sample in place]
        self.num += len(at)
        self._sources = None

    def take_one(self, run: SampleRun, at: int, identity: Ints, sources: set[int]) -> None:
        """Keep one sample; its series joins the sources of its workload, which are not counted anew for it."""
        known = self._sources
        self.take(run, np.array([at]), identity, run.hists)
        sources.add(int(run.series[at]))
        self._sources = known

    def fresh(self, identities: Ints) -> Bools | None:
        """Which samples are the first of their identity; None when all are."""
        new = identities.tolist()
        if len(set(new)) == len(new) and self._seen.isdisjoint(new):
            return None
        first = np.ones(len(new), np.bool_)
        here: set[int] = set()
        for i, identity in enumerate(new):
            first[i] = identity not in here and identity not in self._seen
            here.add(identity)
        return first

    def sources_of(self, workload: int, index: SeriesIndex) -> set[int]:
        """Series of a workload heard in this slot."""
        if self._sources is None:
            self._sources = {}
            for series, _, _ in self._runs:
                for number in np.unique(series).tolist():
                    self._sources.setdefault(int(index.workload_of[number]), set()).add(number)
        return self._sources.setdefault(workload, set())

    def columns(self, width: int) -> tuple[Ints, Ints, Floats]:
        """Series [n], event time [n] and values [n, width]."""
        if not self._runs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, width))
        if len(self._runs) == 1:
            return self._runs[0]
        series, ts_ms, values = zip(*self._runs, strict=True)
        return np.concatenate(series), np.concatenate(ts_ms), np.concatenate(values)

    def series(self) -> list[Ints]:
        """Series numbers that must stay as they are while the slot is open."""
        return [series for series, _, _ in self._runs]


@dataclass(slots=True)
class OpenSlot:
    """One slot that stream time has not closed yet.

    Attributes:
        first_offset: of the record that opened it; reading again from here gives the slot back whole.
        workloads: in order of first appearance, which is the order of admission; None where only samples were heard.
    """

    first_offset: int
    workloads: dict[str, WorkloadNews | None] = field(default_factory=dict)
    samples: SlotSamples = field(default_factory=SlotSamples)

    def news(self, workload: str) -> WorkloadNews:
        """The workload's entry, to add to."""
        news = self.workloads.get(workload)
        if news is None:
            news = self.workloads[workload] = WorkloadNews()
        return news


class OpenSlots:
    """The open slots of one partition.

    Args:
        config: slot length and limits.
        known: workloads of the closed slots; in a flood of new names these are still served.
        index: of the series that runs name.
    """

    def __init__(self, config: StreamConfig, known: Container[str], index: SeriesIndex) -> None:
        self._step_ms = config.step_ms
        self.most_names = _NAMES_HELD_RATIO * config.max_workloads
        self._known = known
        self._index = index
        self._open: dict[int, OpenSlot] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def open_slots(self) -> Iterator[OpenSlot]:
        """Every open slot."""
        return iter(self._open.values())

    def roomy(self) -> bool:
        """True while no limit can refuse a sample, so that whole runs may be added at once."""
        return self._index.num_workloads <= self.most_names and self._index.most_sources <= MAX_SOURCES_PER_WORKLOAD

    def add_run(self, run: SampleRun, record_of: Ints, last_closed: Ints) -> Ints:
        """Put samples into their slots; only while `roomy`.

        Args:
            record_of: [n] record of each sample.
            last_closed: [n] newest closed slot when its record was read.

        Returns:
            [n] index into `VERDICTS` of what became of each sample.
        """
        slot = run.ts_ms // self._step_ms
        verdicts = np.zeros(len(slot), np.int64)
        late = slot <= last_closed
        if late.any():
            verdicts[late] = LATE
            at = np.flatnonzero(~late)
            if not len(at):
                return verdicts
            at = at[np.argsort(slot[at], kind="stable")]
        else:
            at = np.argsort(slot, kind="stable")
        ordered = slot[at]
        cuts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(at)]
        identity = run.series * self._step_ms + (run.ts_ms - slot * self._step_ms)
        workload_of = self._index.workload_of[run.series]
        for begin, end in pairwise(cuts):
            mine = at[begin:end]
            self._add_to(int(ordered[begin]), run, mine, identity[mine], workload_of[mine], record_of, verdicts)
        return verdicts

    def _add_to(
        self, slot: int, run: SampleRun, at: Ints, identity: Ints, workloads: Ints, record_of: Ints, verdicts: Ints
    ) -> None:
        opened = self._open.get(slot)
        if opened is None:
            opened = self._open[slot] = OpenSlot(int(run.offsets[record_of[at[0]]]))
        held = opened.workloads
        for number in dict.fromkeys(workloads.tolist()):
            held.setdefault(self._index.name_of(number), None)
        first = opened.samples.fresh(identity)
        if first is not None:
            verdicts[at[~first]] = DUPLICATE
            at, identity = at[first], identity[first]
        opened.samples.take(run, at, identity, run.hists)

    def add_carefully(self, run: SampleRun, last_closed: int) -> Ints:
        """As `add_run` for a single record, when limits may refuse some of its samples."""
        verdicts = np.zeros(len(run.series), np.int64)
        for i, (series, ts_ms) in enumerate(zip(run.series.tolist(), run.ts_ms.tolist(), strict=True)):
            number = int(self._index.workload_of[series])
            opened = self._place(ts_ms, self._index.name_of(number), last_closed, int(run.offsets[0]))
            if not isinstance(opened, OpenSlot):
                verdicts[i] = LATE if opened == "late" else REFUSED
                continue
            opened.workloads.setdefault(self._index.name_of(number), None)
            sources = opened.samples.sources_of(number, self._index)
            identity = np.array([series * self._step_ms + ts_ms % self._step_ms])
            if series not in sources and len(sources) >= MAX_SOURCES_PER_WORKLOAD:
                verdicts[i] = REFUSED
            elif opened.samples.fresh(identity) is not None:
                verdicts[i] = DUPLICATE
            else:
                opened.samples.take_one(run, i, identity, sources)
        return verdicts

    def add_facts(self, record: Facts, last_closed: int, offset: int) -> list[Verdict]:
        """Put a record's facts into the slots of their instants; what became of each, in order."""
        workload = record.workload
        self._index.publisher(workload)
        verdicts: list[Verdict] = []
        if isinstance(record, FleetRecord):
            for source, facts in record.facts:
                place = self._place(facts.ts_ms, workload, last_closed, offset)
                verdicts.append(place.news(workload).add_fleet(source, facts) if isinstance(place, OpenSlot) else place)
        elif isinstance(record, SourceRecord):
            place = self._place(record.word.ts_ms, workload, last_closed, offset)
            verdicts.append(place.news(workload).add_word(record.word) if isinstance(place, OpenSlot) else place)
        else:
            place = self._place(record.fact.ts_ms, workload, last_closed, offset)
            verdicts.append(place.news(workload).add_outcome(record.fact) if isinstance(place, OpenSlot) else place)
        return verdicts

    def take(self, slot: int, offset: int) -> OpenSlot:
        """Remove a slot to close it; one that nothing was heard for is empty."""
        return self._open.pop(slot, None) or OpenSlot(offset)

    def first_offset(self, offset: int) -> int:
        """Where reading must start to get every open slot back; this offset when none is open."""
        return min([opened.first_offset for opened in self._open.values()] + [offset])

    def _place(self, ts_ms: int, workload: str, last_closed: int, offset: int) -> OpenSlot | Verdict:
        slot = ts_ms // self._step_ms
        if slot <= last_closed:
            return "late"
        opened = self._open.get(slot)
        if opened is None:
            opened = self._open[slot] = OpenSlot(offset)
        full = workload not in opened.workloads and len(opened.workloads) >= self.most_names
        return "refused" if full and workload not in self._known else opened


def _outcome_order(fact: OutcomeFact) -> tuple[int, str, str, int, float]:
    return (
        fact.ts_ms,
        fact.command_id,
        fact.status,
        -1 if fact.replicas_ready is None else fact.replicas_ready,
        -1.0 if fact.lead_time_s is None else fact.lead_time_s,
    )
