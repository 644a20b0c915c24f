"""Signals of one workload: silent telemetry sources, the inputs of the guards, finished requests, and idle time.

A source that ends with its replica is no loss. A source that falls silent while the fleet is unchanged still serves,
and its load is missing. `SilentSources` therefore counts the sources that reported while the fleet was at rest. When
the fleet changes, the number that is due changes with the replicas; new replicas count once their sources have
reported. The load of a step with missing sources is scaled to all that are due. After an hour silent sources count as
removed, because telemetry may have been set up anew. Sources that do not follow the replicas (the pods of a gateway)
are left alone. The functions are pure: time is counted in slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.records import InputFacts
from model.calibration.risk import FinishedRequests
from streams.catalogue import Indicator
from streams.pages.page import WorkloadFacts
from streams.records.facts import FleetFacts, OutcomeFact
from streams.windows.table import Window

# Time that sources beyond the due number must report before they are due.
_JOIN_DELAY_MS: Final = 600_000
# Time that missing sources stay missing while pending replicas may report in their place.
_REPLACEMENT_DELAY_MS: Final = 300_000
# Time after which silent sources count as removed, and sources beyond those of the fleet as due; leaving replicas
# still report.
_FORGET_SILENT_MS: Final = 3_600_000


@dataclass(slots=True)
class SilentSources:
    """The silent telemetry sources of one workload.

    Attributes:
        missing: number of sources that are due and silent.
    """

    missing: int = 0
    _due: int | None = None
    _most: int = 0  # that the fleet accounts for; of those who were never heard none is due
    _per_replica: int | None = None
    _tied: bool = False  # as many for each replica, and one beside them at most
    _rest_ready: int = 0  # replicas when the fleet came to rest
    _ready: int | None = None
    _rest: int = 0  # slots since it changed
    _more: int = 0  # slots in which more were heard than are due
    _same: int = 0  # slots in which as many were
    _back: int = 0  # slots in which fewer seemed missing than before
    _since_slot: int | None = None
    _short: tuple[tuple[int, int, int, int], ...] = ()  # first and last slot, sources due, known

    def observe(self, num_known: int, fleet: FleetFacts | None, slot: int, step_ms: int, silence_steps: int) -> None:
        """Fold a closed slot.

        Args:
            num_known: sources heard within the last `silence_steps` slots.
            fleet: newest facts; nothing is learned where there are none.
        """
        if fleet is None:
            return
        before = self.missing
        self._rest = self._rest + 1 if fleet.ready == self._ready and not fleet.draining else 0
        self._ready = fleet.ready
        settled = self._rest - silence_steps  # below 1 a source that has ended counts as known
        if settled == 1:
            self._come_to_rest(num_known, fleet.ready)
        elif settled > 1:
            self._let_join(num_known, fleet.ready, _JOIN_DELAY_MS // step_ms, _FORGET_SILENT_MS // step_ms)
        if settled >= 1 and self._due is not None:
            short = max(self._due - num_known, 0) if self._tied else 0
            self._back = self._back + 1 if short < self.missing and fleet.pending else 0
            self.missing = self.missing if 0 < self._back < _REPLACEMENT_DELAY_MS // step_ms else short
        self._forget(num_known, slot, _FORGET_SILENT_MS // step_ms)
        if self.missing and num_known:
            # Whoever has just been found silent was heard last before the slots that count as late.
            first = slot - silence_steps + 1 if self.missing > before else slot
            self._fall_short(first, slot, num_known)

    def _come_to_rest(self, num_known: int, ready: int) -> None:
        if self._due is None:
            self._most, self._per_replica = num_known, num_known // ready if ready > 1 else None
            self._tied = _tied(num_known, ready)
        else:
            each = self._per_replica
            if each is None:
                # Of a single replica it is not known whether all are its own, or one is a gateway's: the fewer are due.
                each = 1 if ready > self._rest_ready else -(-self._most // max(self._rest_ready, 1))
            self._most = max(self._most + each * (ready - self._rest_ready), 0)
            if not self.missing and num_known < self._most:
                self._tied = False  # they have not come with the replicas, or not yet
        self._due = min(self._most, num_known + self.missing)
        self._rest_ready, self._more, self._same = ready, 0, 0

    def _let_join(self, num_known: int, ready: int, join_slots: int, forget_slots: int) -> None:
        due = self._due
        if due is None:
            return
        self._more = self._more + 1 if num_known > due else 0
        self._same = self._same + 1 if num_known == due else 0
        each = num_known // ready if ready > 1 else None
        if self._more >= (join_slots if num_known <= self._most or self._per_replica is None else forget_slots):
            if num_known > self._most:
                self._per_replica = each
            self._due, self._most, self._more = num_known, max(self._most, num_known), 0
        elif self._same == join_slots:
            self._most, self._tied = due, _tied(due, ready)
            if each is not None:
                self._per_replica = each if self._per_replica is None else min(self._per_replica, each)

    def _forget(self, count: int, slot: int, forget_slots: int) -> None:
        if self.missing == 0:
            self._since_slot = None
        elif self._since_slot is None:
            self._since_slot = slot
        elif slot - self._since_slot >= forget_slots:
            self.missing, self._due, self._most, self._per_replica, self._since_slot = 0, count, count, None, None

    def _fall_short(self, first: int, slot: int, num_known: int) -> None:
        due = num_known + self.missing
        runs = [run if run[1] < first else (run[0], first - 1, *run[2:]) for run in self._short if run[0] < first]
        if runs and runs[-1][1:] == (first - 1, due, num_known):
            first = runs.pop()[0]
        self._short = (*runs, (first, slot, due, num_known))

    def in_full(self, window: Window, catalogue: tuple[Indicator, ...], slot: int) -> Window:
        """The window that ends with `slot`, with the load of silent sources added, in proportion to the others."""
        begin = slot - len(window.values) + 1
        if self._short:
            self._short = tuple(run for run in self._short if run[1] >= begin)
        if not self._short:
            return window
        values, columns = window.values.copy(), list(_summed(catalogue))
        for first, last, due, num_known in self._short:
            rows = slice(max(first - begin, 0), last - begin + 1)
            values[rows, columns] *= values.dtype.type(due / num_known)
        return replace(window, values=values)

    def snapshot(self) -> list[list[int | None]]:
        """Every number, for the commit record; empty without any."""
        if self._ready is None:
            return []
        now = [
            *(self.missing, self._due, self._most, self._per_replica, self._rest_ready, self._ready),
            *(self._rest, self._more, self._same, self._back, self._since_slot, int(self._tied)),
        ]
        runs: list[list[int | None]] = [list(run) for run in self._short]
        return [now, *runs]

    @staticmethod
    def restore(snapshot: Sequence[Sequence[int | None]]) -> SilentSources:
        """The sources that a snapshot was taken of; new ones for an empty list.

        Raises:
            ValueError: it has another number of numbers.
        """
        state = SilentSources()
        if snapshot:
            now, *runs = snapshot
            missing, state._due, most, state._per_replica, at, state._ready, rest, more, same, back, since, tied = now
            state.missing, state._most, state._rest_ready, state._since_slot = missing or 0, most or 0, at or 0, since
            state._tied = bool(tied)
            state._rest, state._more, state._same, state._back = rest or 0, more or 0, same or 0, back or 0
            state._short = tuple((int(a or 0), int(b or 0), int(c or 0), int(d or 0)) for a, b, c, d in runs)
        return state


def _tied(sources: int, replicas: int) -> bool:
    """Whether sources follow replicas: equally many for each, and at most one more. One replica cannot show that."""
    return replicas > 1 and sources >= replicas and sources % replicas <= 1


@lru_cache(8)
def _summed(catalogue: tuple[Indicator, ...]) -> tuple[int, ...]:
    """Columns of request telemetry that are sums over its sources."""
    added = ("rate", "mean", "max")
    return tuple(
        n
        for n, indicator in enumerate(catalogue)
        if indicator.source == "requests" and indicator.rule in added and indicator.over_sources == "sum"
    )


# Inputs of the guards, from the window of one workload.


# Slots whose mean is the residence time.
_RESIDENCE_SLOTS: Final = 24


@dataclass(frozen=True, slots=True)
class SignalLimits:
    """`cliff_ratio`: the share by which demand must fall within one step to count as a cliff."""

    cliff_ratio: float
    silence_steps: int


def residence_s(window: Window) -> float | None:
    """Mean time a request is being served, by Little's law over the last slots; None without requests."""
    running, rate = window.columns.get("engine.running"), window.columns.get("request.arrival_rate")
    return None if running is None or rate is None else mean_ratio(window, running, rate, _RESIDENCE_SLOTS)


def mean_ratio(window: Window, above: int, below: int, slots: int) -> float | None:
    """One column's mean over another's, of the last slots in which both were observed; None where that is over zero."""
    return ratio_of_sums(window.values, window.observed, above, below, slots)


def ratio_of_sums(
    values: NDArray[np.float32], observed: NDArray[np.bool_], above: int, below: int, rows: int
) -> float | None:
    """As `mean_ratio`, of [R, N] values and their mask."""
    from model.calibration.risk import sums_of_two

    over, under = sums_of_two(values, observed, above, below, rows)
    return over / under if under > 0 else None


def outcomes_now(window: Window) -> list[OutcomeFact]:
    """Outcomes that arrived in the newest slot, in order of event time."""
    outcomes = [o for facts in window.facts.newest.values() for o in facts.outcomes]
    return sorted(outcomes, key=lambda o: (o.ts_ms, o.command_id, o.status))


def _coverage_ratio(facts: WorkloadFacts, missing: int) -> float:
    due = facts.sources_known + missing
    return facts.sources_seen / due if due else 0.0


def input_facts(
    window: Window,
    origin_ts_ms: int,
    step_ms: int,
    num_targets: int,
    limits: SignalLimits,
    offsets: dict[str, int],
    planned_steps: int,
    missing: int = 0,
) -> InputFacts:
    """Summarise one workload's inputs at the origin.

    Args:
        window: the workload's view; column 0 is the arrival rate, the first `num_targets` columns are level 1.
        offsets: per source, the offset at which the slot closed.
        planned_steps: of the context, in which what the workload is planned by was observed.
        missing: sources of requests that are silent though their replicas are there.
    """
    from model.calibration.risk import signals

    values, observed, step_s = window.values, window.observed, step_ms / 1000
    now = window.facts.newest
    requests = now.get("requests")
    sample_times_ms = [h.ts_ms for h in window.facts.last_samples.values()]
    running = window.columns.get("engine.running", -1)
    flat, cliff, sudden = signals(values, observed, num_targets, running, step_s, limits.cliff_ratio)
    return InputFacts(
        arrival_rate=values.item(-1, 0) if observed.item(-1, 0) else None,
        observed_ratio=planned_steps / len(values),
        observed_steps=window.observed_steps[0],
        oldest_age_ms=origin_ts_ms - min(sample_times_ms) if sample_times_ms else None,
        coverage_ratio=min(
            (_coverage_ratio(f, missing * (name == "requests")) for name, f in now.items()), default=0.0
        ),
        censored=requests.censored if requests is not None else False,
        flat=flat,
        cliff=cliff,
        zero_after_nonzero=sudden,
        offsets=offsets,
    )


# Finished requests, the evidence that stated risks are judged by, and idle time.


def finished_requests(window: Window, end_ts_ms: int, step_ms: int, delay_s: float) -> FinishedRequests:
    """The slots of a window whose newest slot ends at `end_ts_ms`."""
    rates, ratios = (window.columns.get(name) for name in ("request.arrival_rate", "slo.miss_ratio"))
    columns = None if rates is None or ratios is None else (rates, ratios)
    return FinishedRequests(window.values, window.observed, columns, end_ts_ms, step_ms, delay_s)


def idle_since(
    before_ms: int | None, window: Window, fleet: FleetFacts | None, end_ts_ms: int, step_ms: int
) -> int | None:
    """Since when replicas have been ready and had nothing to do; None when they have not, or it is not known.

    A slot counts as idle when every known source of requests spoke, none started, and none is served or waits.

    Args:
        before_ms: as of the slot before.
        window: whose newest slot ends at `end_ts_ms`.
    """
    facts = window.facts.newest.get("requests")
    is_complete = facts is not None and facts.sources_seen >= facts.sources_known and not facts.censored
    present = (window.newest("engine.running") or 0.0, window.newest("engine.waiting_max") or 0.0)
    quiet = window.newest("request.arrival_rate") == 0.0 and not any(present)
    if not (is_complete and quiet) or fleet is None or fleet.ready == 0:
        return None
    return end_ts_ms - step_ms if before_ms is None else before_ms
