"""What an open slot holds of a workload beside its samples: replica counts, outcomes, queued work and SLO counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from streams.pages.page import BatchQueue, FleetFacts, OutcomeFact, SloCounts

# One workload's sources may come and go, but a publisher that invents a new name per sample must not fill the memory.
MAX_SOURCES_PER_WORKLOAD = 4096

# What became of a sample, by the name of the counter that says so; `samples` is: taken.
Verdict = Literal["samples", "late", "duplicate", "refused"]


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
        if not self.words:
            return []
        newest = {key[1]: word for key, word in sorted(self.words.items(), key=lambda e: e[0][0]) if key[2] is kind}
        return [newest[source] for source in sorted(newest)]

    def newest_fleet(self) -> FleetFacts | None:
        """The latest word on replicas; of two sources at the same instant the one last by name."""
        return self.fleet[max(self.fleet)] if self.fleet else None

    def sorted_outcomes(self) -> tuple[OutcomeFact, ...]:
        """By time, so that a page does not depend on arrival order."""
        return tuple(sorted(self.outcomes, key=_outcome_order))


def _outcome_order(fact: OutcomeFact) -> tuple[int, str, str, int, float]:
    return (
        fact.ts_ms,
        fact.command_id,
        fact.status,
        -1 if fact.replicas_ready is None else fact.replicas_ready,
        -1.0 if fact.lead_time_s is None else fact.lead_time_s,
    )
