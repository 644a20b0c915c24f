"""What the last L slots said of each workload beside its values, reduced to what anybody asks of it.

| asked | kept per row |
|---|---|
| replicas as last reported | the newest fleet facts |
| since when some have been pending | per slot and source: when the fleet reported, and whether some were pending |
| when a source was last heard | its newest slot with samples, and the newest sample's time |
| what is queued | the newest word of each source of batch work |
| what the newest slot says | its facts |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streams.catalogue import SOURCES, Source
from streams.pages.facts_codec import PageFacts
from streams.pages.page import BatchQueue, FleetFacts, WorkloadFacts
from streams.windows import sparse_cells

_ORDER: tuple[Source, ...] = tuple(sorted(SOURCES))
_AT = {source: n for n, source in enumerate(_ORDER)}
_NEVER = -1
_SILENT = 0
_IDLE, _PENDING = 1, 2


@dataclass(frozen=True, slots=True)
class Heard:
    """A source's newest slot with samples, and the event time of the newest of them."""

    slot: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class RecentFacts:
    """What the last L slots said of one workload.

    Attributes:
        fleet: replicas as last reported; None when they were not.
        pending_since_ms: since when, without a break, the fleet has reported pending replicas; None when it has none.
        heard: of each source that had samples.
        now: facts of the newest slot by source.
        batch: what each source of batch work said last, by its name.
    """

    fleet: FleetFacts | None
    pending_since_ms: int | None
    heard: Mapping[Source, Heard]
    now: Mapping[Source, WorkloadFacts]
    batch: tuple[BatchQueue, ...] = ()


class FactRing:
    """Facts by row, over the last L slots.

    Args:
        context_steps: L.
        step_ms: slot length.
        capacity: rows.
    """

    def __init__(self, context_steps: int, step_ms: int, capacity: int) -> None:
        self._context_steps = context_steps
        self._step_ms = step_ms
        self._newest = _NEVER
        # When in its slot the fleet reported, and what: all zero is silence.
        offset = np.uint16 if step_ms <= 1 << 16 else np.uint32
        self._report_ms = np.zeros((capacity, context_steps, len(_ORDER)), offset)
        self._report = np.zeros((capacity, context_steps, len(_ORDER)), np.uint8)
        self._heard_slot = np.full((capacity, len(_ORDER)), _NEVER, np.int64)
        self._heard_ms = np.zeros((capacity, len(_ORDER)), np.int64)
        self._fleet: dict[int, tuple[FleetFacts, int]] = {}
        self._batch: dict[int, dict[str, BatchQueue]] = {}
        self._now: dict[Source, dict[int, WorkloadFacts]] = {source: {} for source in _ORDER}

    def grow(self, capacity: int) -> None:
        """Make room for more rows."""
        more = capacity - len(self._heard_slot)
        unheard = np.full((more, len(_ORDER)), _NEVER, np.int64)
        self._heard_slot = np.concatenate([self._heard_slot, unheard])
        self._heard_ms = np.concatenate([self._heard_ms, np.zeros_like(unheard)])
        # These two are large: what is not written yet must not take memory, which joining zeros would.
        self._report_ms = sparse_cells.grown(self._report_ms, capacity)
        self._report = sparse_cells.grown(self._report, capacity)

    def advance(self, slot: int, num_rows: int) -> None:
        """Make `slot` the newest; what falls out of the last L slots is forgotten."""
        first = slot if self._newest == _NEVER else self._newest + 1
        for s in range(max(first, slot - self._context_steps + 1), slot + 1):
            self._report[:num_rows, s % self._context_steps] = _SILENT
        self._newest = slot
        for facts in self._now.values():
            facts.clear()

    def write(self, rows: NDArray[np.int64], slot: int, source: Source, facts: Sequence[WorkloadFacts]) -> None:
        """Take in what a slot within the last L says of these rows."""
        n = _AT[source]
        columns = PageFacts.of(facts)
        if slot == self._newest:
            self._now[source].update(zip(rows.tolist(), columns, strict=True))
        sampled = columns.sampled()
        heard, newest_ms = rows[sampled], columns.newest_ts_ms()[sampled]
        newer = slot >= self._heard_slot[heard, n]
        self._heard_slot[heard[newer], n] = slot
        self._heard_ms[heard[newer], n] = newest_ms[newer]
        for k, queues in columns.columns.batch:
            known_queues = self._batch.setdefault(int(rows[k]), {})
            for queue in queues:
                if queue.source not in known_queues or queue.ts_ms > known_queues[queue.source].ts_ms:
                    known_queues[queue.source] = queue
        told = columns.columns.fleet
        at = rows[[k for k, _ in told]], slot % self._context_steps, n
        self._report_ms[at] = [fleet.ts_ms - slot * self._step_ms for _, fleet in told]
        self._report[at] = [_PENDING if fleet.pending else _IDLE for _, fleet in told]
        for row, (_, fleet) in zip(at[0].tolist(), told, strict=True):
            # Of two sources at the same instant the first by name, in whatever order they come.
            known = self._fleet.get(row)
            if known is None or (fleet.ts_ms, -n) > (known[0].ts_ms, -known[1]):
                self._fleet[row] = fleet, n

    def clear(self, row: int) -> None:
        """Forget a row."""
        self._report[row] = _SILENT
        self._heard_slot[row] = _NEVER
        self._fleet.pop(row, None)
        self._batch.pop(row, None)
        for facts in self._now.values():
            facts.pop(row, None)

    def read(self, row: int) -> RecentFacts:
        """What is known of a row."""
        oldest = self._newest - self._context_steps + 1
        known = self._fleet.get(row)
        fleet = known[0] if known is not None and known[0].ts_ms >= oldest * self._step_ms else None
        heard = {
            source: Heard(slot, ts_ms)
            for source, slot, ts_ms in zip(
                _ORDER, self._heard_slot[row].tolist(), self._heard_ms[row].tolist(), strict=True
            )
            if slot != _NEVER and slot >= oldest
        }
        since = self._pending_since_ms(row) if fleet is not None else None
        now = {source: facts[row] for source, facts in self._now.items() if row in facts}
        batch = self._queues(row, oldest * self._step_ms) if row in self._batch else ()
        return RecentFacts(fleet, since, heard, now, batch)

    def _queues(self, row: int, oldest_ms: int) -> tuple[BatchQueue, ...]:
        queues = {source: queue for source, queue in self._batch[row].items() if queue.ts_ms >= oldest_ms}
        self._batch[row] = queues
        return tuple(queues[source] for source in sorted(queues))

    def _pending_since_ms(self, row: int) -> int | None:
        for told in self._report[row, self._newest % self._context_steps, ::-1].tolist():
            if told:
                if told != _PENDING:
                    return None  # as nearly always
                break
        slots = np.arange(self._newest, self._newest - self._context_steps, -1)
        reports = self._report[row, slots % self._context_steps, ::-1].ravel()  # newest first
        told = np.flatnonzero(reports)
        if not len(told) or reports[told[0]] != _PENDING:
            return None
        idle = np.flatnonzero(reports[told] == _IDLE)
        last = int(told[idle[0] - 1] if len(idle) else told[-1])
        slot = int(slots[last // len(_ORDER)])
        n = len(_ORDER) - 1 - last % len(_ORDER)
        return slot * self._step_ms + int(self._report_ms[row, slot % self._context_steps, n])
