"""Slots that are still open: what has been heard for each, kept as it came until the slot closes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from streams.pages import FleetFacts, OutcomeFact
from streams.records import Sample

# One workload's sources may come and go, but a publisher that invents a new name per sample must not fill the memory.
MAX_SOURCES_PER_WORKLOAD = 4096


@dataclass(slots=True)
class WorkloadSlot:
    """One workload within one open slot. Repeats of (source, ts_ms) are refused: the first in the log wins."""

    series: dict[str, dict[int, Sample]] = field(default_factory=dict)
    fleet: dict[tuple[int, str], FleetFacts] = field(default_factory=dict)
    outcomes: set[OutcomeFact] = field(default_factory=set)

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
