"""Slots that are still open: what has been heard for each, kept as it came until the slot closes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from streams.config import StreamConfig
from streams.pages import FleetFacts, OutcomeFact
from streams.records import FleetRecord, OutcomeRecord, Sample, SampleRecord

# One workload's sources may come and go, but a publisher that invents a new name per sample must not fill the memory.
MAX_SOURCES_PER_WORKLOAD = 4096
# New names are judged when their slot closes: only what closed slots hold is the same for a reader that starts again.
# Until then an open slot takes at most this many times `max_workloads`.
_NAMES_HELD_RATIO = 2

# What became of a sample, by the name of the counter that says so; `samples` is: taken.
Verdict = Literal["samples", "late", "duplicate", "refused"]


@dataclass(slots=True)
class WorkloadSlot:
    """One workload within one open slot. Repeats of (source, ts_ms) are refused: the first in the log wins."""

    series: dict[str, dict[int, Sample]] = field(default_factory=dict)
    fleet: dict[tuple[int, str], FleetFacts] = field(default_factory=dict)
    outcomes: set[OutcomeFact] = field(default_factory=set)

    def add_sample(self, sample: Sample) -> Verdict:
        """Keep a sample of one source."""
        series = self.series.get(sample.source)
        if series is None:
            if len(self.series) >= MAX_SOURCES_PER_WORKLOAD:
                return "refused"
            series = self.series[sample.source] = {}
        elif sample.ts_ms in series:
            return "duplicate"
        series[sample.ts_ms] = sample
        return "samples"

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
        """Samples and facts held."""
        return self.num_samples + len(self.fleet) + len(self.outcomes)

    @property
    def num_samples(self) -> int:
        return sum(map(len, self.series.values()))

    def newest_fleet(self) -> FleetFacts | None:
        """The latest word on replicas; of two sources at the same instant the one last by name."""
        return self.fleet[max(self.fleet)] if self.fleet else None

    def sorted_outcomes(self) -> tuple[OutcomeFact, ...]:
        """By time, so that a page does not depend on arrival order."""
        return tuple(sorted(self.outcomes, key=_outcome_order))


@dataclass(slots=True)
class OpenSlot:
    """One slot that stream time has not closed yet.

    Attributes:
        first_offset: of the record that opened it; reading again from here gives the slot back whole.
        workloads: in order of first appearance, which is the order of admission.
    """

    first_offset: int
    workloads: dict[str, WorkloadSlot] = field(default_factory=dict)


class OpenSlots:
    """The open slots of one partition.

    Args:
        config: slot length and limits.
        known: workloads of the closed slots; in a flood of new names these are still served.
    """

    def __init__(self, config: StreamConfig, known: Container[str]) -> None:
        self._step_ms = config.step_ms
        self._max_names = _NAMES_HELD_RATIO * config.max_workloads
        self._known = known
        self._open: dict[int, OpenSlot] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def add(self, record: SampleRecord | FleetRecord | OutcomeRecord, last_closed: int, offset: int) -> list[Verdict]:
        """Put a record's samples and facts into the slots of their instants; what became of each, in order."""
        workload = record.workload
        verdicts: list[Verdict] = []
        if isinstance(record, SampleRecord):
            for sample in record.samples:
                place = self._place(sample.ts_ms, workload, last_closed, offset)
                verdicts.append(place.add_sample(sample) if isinstance(place, WorkloadSlot) else place)
        elif isinstance(record, FleetRecord):
            for source, facts in record.facts:
                place = self._place(facts.ts_ms, workload, last_closed, offset)
                verdicts.append(place.add_fleet(source, facts) if isinstance(place, WorkloadSlot) else place)
        else:
            place = self._place(record.fact.ts_ms, workload, last_closed, offset)
            verdicts.append(place.add_outcome(record.fact) if isinstance(place, WorkloadSlot) else place)
        return verdicts

    def take(self, slot: int, offset: int) -> OpenSlot:
        """Remove a slot to close it; one that nothing was heard for is empty."""
        return self._open.pop(slot, None) or OpenSlot(offset)

    def first_offset(self, offset: int) -> int:
        """Where reading must start to get every open slot back; this offset when none is open."""
        return min([opened.first_offset for opened in self._open.values()] + [offset])

    def _place(self, ts_ms: int, workload: str, last_closed: int, offset: int) -> WorkloadSlot | Verdict:
        slot = ts_ms // self._step_ms
        if slot <= last_closed:
            return "late"
        opened = self._open.get(slot)
        if opened is None:
            opened = self._open[slot] = OpenSlot(offset)
        content = opened.workloads.get(workload)
        if content is None:
            if len(opened.workloads) >= self._max_names and workload not in self._known:
                return "refused"
            content = opened.workloads[workload] = WorkloadSlot()
        return content


def ordered_series(content: WorkloadSlot) -> list[tuple[str, Sequence[Sample]]]:
    """Sources by name, each with its samples by time: sums in this order do not depend on arrival order."""
    return [
        (source, [samples[ts_ms] for ts_ms in sorted(samples)] if len(samples) > 1 else tuple(samples.values()))
        for source, samples in sorted(content.series.items())
    ]


def _outcome_order(fact: OutcomeFact) -> tuple[int, str, str, int, float]:
    return (
        fact.ts_ms,
        fact.command_id,
        fact.status,
        -1 if fact.replicas_ready is None else fact.replicas_ready,
        -1.0 if fact.lead_time_s is None else fact.lead_time_s,
    )
