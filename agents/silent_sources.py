"""Telemetry sources that are silent though the fleet has not shrunk, and what they serve.

A source that ended with its replica is no loss. One that fell silent while the fleet stayed as it is still serves, and
what it serves is missing from the load. So it is remembered how many were heard while the fleet was at rest. When it
changes, as many more or fewer are due as stand for the replicas added or removed, but of those added only such as have
been heard. The load of steps in which some are missing is taken to be spread over all that are due. After an hour
the silent are taken to be gone: telemetry may have been set up anew. Pure: slots are the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from streams.catalogue import Indicator
from streams.pages import FleetFacts
from streams.window_table import Window

_JOIN_MS: Final = 600_000  # heard beyond those due before they are due: replicas that are leaving still speak
_BACK_MS: Final = 300_000  # while replicas are pending whose sources may speak already, in place of the silent
_GONE_MS: Final = 3_600_000


@dataclass(slots=True)
class SilentSources:
    """Those of one workload.

    Attributes:
        missing: how many are due and silent.
    """

    missing: int = 0
    _due: int | None = None
    _per_replica: int | None = None
    _rest_ready: int = 0  # replicas when the fleet came to rest
    _ready: int | None = None
    _rest: int = 0  # slots since it changed
    _more: int = 0  # slots in which more were heard than are due
    _back: int = 0  # slots in which fewer seemed missing than before
    _since_slot: int | None = None
    _short: list[tuple[int, int, int, int]] = field(default_factory=list)  # first and last slot, sources due, known

    def observe(self, known: int, fleet: FleetFacts | None, slot: int, step_ms: int, silence_steps: int) -> None:
        """Fold a closed slot.

        Args:
            known: sources heard within the last `silence_steps` slots.
            fleet: newest facts; nothing is learned where there are none.
        """
        if fleet is None:
            return
        before = self.missing
        self._rest = self._rest + 1 if fleet.ready == self._ready and not fleet.draining else 0
        self._ready = fleet.ready
        settled = self._rest - silence_steps  # below 1 a source that has ended counts as known
        if settled == 1:
            self._come_to_rest(known, fleet.ready)
        elif settled > 1:
            self._let_join(known, _JOIN_MS // step_ms)
        if settled >= 1 and self._due is not None:
            short = max(self._due - known, 0)
            self._back = self._back + 1 if short < self.missing and fleet.pending else 0
            self.missing = self.missing if 0 < self._back < _BACK_MS // step_ms else short
        self._forget(known, slot, _GONE_MS // step_ms)
        if self.missing and known:
            # Whoever has just been found silent was heard last before the slots that count as late.
            first = slot - silence_steps + 1 if self.missing > before else slot
            self._fall_short(first, slot, known)

    def _come_to_rest(self, known: int, ready: int) -> None:
        if self._due is None:
            self._due = known
        else:
            moved = (self._per_replica or 0) * (ready - self._rest_ready)
            self._due = min(self._due + moved, known + self.missing)
        self._rest_ready, self._more = ready, 0
        if ready:
            # With others beside them (a gateway) fewest where replicas are many.
            each = self._due // ready
            self._per_replica = each if self._per_replica is None else min(self._per_replica, each)

    def _let_join(self, known: int, after_slots: int) -> None:
        self._more = self._more + 1 if self._due is not None and known > self._due else 0
        if self._more >= after_slots:
            self._due, self._more = known, 0

    def _forget(self, known: int, slot: int, gone_slots: int) -> None:
        if self.missing == 0:
            self._since_slot = None
        elif self._since_slot is None:
            self._since_slot = slot
        elif slot - self._since_slot >= gone_slots:
            self.missing, self._due, self._per_replica, self._since_slot = 0, known, None, None

    def _fall_short(self, first: int, slot: int, known: int) -> None:
        due = known + self.missing
        kept = [run if run[1] < first else (run[0], first - 1, *run[2:]) for run in self._short if run[0] < first]
        if kept and kept[-1][1:] == (first - 1, due, known):
            first = kept.pop()[0]
        self._short = [*kept, (first, slot, due, known)]

    def in_full(self, window: Window, catalogue: Sequence[Indicator], slot: int) -> Window:
        """The window, whose newest slot is `slot`, with what the silent served in proportion to what others did."""
        begin = slot - len(window.values) + 1
        self._short = [run for run in self._short if run[1] >= begin]
        if not self._short:
            return window
        values, columns = window.values.copy(), list(_summed(tuple(catalogue)))
        for first, last, due, known in self._short:
            rows = slice(max(first - begin, 0), last - begin + 1)
            values[rows, columns] *= values.dtype.type(due / known)
        return replace(window, values=values)

    def snapshot(self) -> list[list[int | None]]:
        """Every number, for the commit record; empty where nothing is known."""
        if self._ready is None:
            return []
        now = [
            *(self.missing, self._due, self._per_replica, self._rest_ready, self._ready),
            *(self._rest, self._more, self._back, self._since_slot),
        ]
        runs: list[list[int | None]] = [list(run) for run in self._short]
        return [now, *runs]

    @staticmethod
    def restore(snapshot: Sequence[Sequence[int | None]]) -> SilentSources:
        """What a snapshot was taken of; fresh ones of an empty list.

        Raises:
            ValueError: it has another number of numbers.
        """
        found = SilentSources()
        if snapshot:
            now, *runs = snapshot
            missing, found._due, found._per_replica, at, found._ready, rest, more, back, found._since_slot = now
            found.missing, found._rest_ready, found._rest = missing or 0, at or 0, rest or 0
            found._more, found._back = more or 0, back or 0
            found._short = [(int(a or 0), int(b or 0), int(c or 0), int(d or 0)) for a, b, c, d in runs]
        return found


@lru_cache(8)
def _summed(catalogue: tuple[Indicator, ...]) -> tuple[int, ...]:
    """Columns of request telemetry that are sums over its sources."""
    added = ("rate", "mean", "max")
    return tuple(
        n
        for n, indicator in enumerate(catalogue)
        if indicator.source == "requests" and indicator.rule in added and indicator.over_sources == "sum"
    )
