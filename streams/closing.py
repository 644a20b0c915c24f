"""Closing a slot: who is admitted, what the indicators are, and what is remembered for the slots to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streams.catalogue import Indicator
from streams.config import StreamConfig
from streams.indicators import Series, SlotValues, slot_values
from streams.pages import SeriesState, WorkloadFacts
from streams.series import Roster, SeriesTable, next_state
from streams.slots import OpenSlot, WorkloadSlot, ordered_series


@dataclass(frozen=True, slots=True)
class ClosedSlot:
    """A slot's share of its page; `num_refused` samples belonged to workloads that were one too many."""

    workloads: tuple[str, ...]
    values: SlotValues
    facts: tuple[WorkloadFacts, ...]
    series: tuple[SeriesState, ...]
    num_refused: int


class SlotCloser:
    """Closes the slots of one partition in ascending order; what it knows is a function of the last L pages.

    Args:
        config: slot length, L and limits.
        indicators: of one source; columns of the values.
    """

    def __init__(self, config: StreamConfig, indicators: Sequence[Indicator]) -> None:
        self._config = config
        self._indicators = indicators
        counting = ("rate", "miss_ratio")
        self._counter_fields = sorted({f for i in indicators if i.rule in counting for f in i.fields})
        self._hist_fields = sorted({f for i in indicators if i.rule == "p95" for f in i.fields})
        self._series = SeriesTable()
        self.roster = Roster()

    def remember(self, slot: int, workloads: Iterable[str], states: Iterable[SeriesState]) -> None:
        """Take in what a page says; with the last L pages, oldest first, the closer is as it was."""
        for workload in workloads:
            self.roster.mark(workload, slot)
        self._series.put(slot, states)

    def close(self, slot: int, opened: OpenSlot) -> ClosedSlot:
        """Aggregate a slot and remember it."""
        self.roster.forget(slot - 1 - self._config.context_steps)
        self._series.forget(slot - 1 - self._config.context_steps)
        admitted, num_refused = self._admit(opened)
        series: list[Series] = []
        states: list[SeriesState] = []
        for row, (workload, content) in enumerate(admitted):
            for source, samples in ordered_series(content):
                before = self._series.get(workload, source)
                series.append(Series(row, samples, before))
                states.append(next_state(workload, source, samples, before, self._counter_fields, self._hist_fields))
        values = slot_values(self._indicators, len(admitted), series)
        workloads = tuple(workload for workload, _ in admitted)
        self.remember(slot, workloads, states)
        facts = tuple(
            self._facts(slot, workload, content, censored, reset)
            for (workload, content), censored, reset in zip(
                admitted, values.censored.tolist(), values.reset.tolist(), strict=True
            )
        )
        return ClosedSlot(workloads, values, facts, tuple(states), num_refused)

    def _admit(self, opened: OpenSlot) -> tuple[list[tuple[str, WorkloadSlot]], int]:
        """Workloads of the page, sorted: known ones, and new ones in order of appearance while there is room."""
        admitted: list[tuple[str, WorkloadSlot]] = []
        room = self._config.max_workloads - len(self.roster)
        num_refused = 0
        for workload, content in opened.workloads.items():
            known = workload in self.roster
            if known or room > 0:
                room -= not known
                admitted.append((workload, content))
            else:
                num_refused += len(content)
        return sorted(admitted, key=lambda pair: pair[0]), num_refused

    def _facts(self, slot: int, workload: str, content: WorkloadSlot, censored: bool, reset: bool) -> WorkloadFacts:
        times = [max(samples) for samples in content.series.values()]
        if not times:
            times = [ts_ms for ts_ms, _ in content.fleet] + [fact.ts_ms for fact in content.outcomes]
        return WorkloadFacts(
            num_samples=content.num_samples,
            newest_ts_ms=max(times),
            sources_seen=len(content.series),
            sources_known=self._series.num_heard_since(workload, slot - self._config.source_silence_steps + 1),
            censored=censored,
            reset=reset,
            fleet=content.newest_fleet(),
            outcomes=content.sorted_outcomes(),
        )
