"""The page's memory: every workload that the output topics speak of, and which of them changed since when."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.decide.records import decode_decision, encode_decision
from agents.planning.codec import misses_of_plan
from agents.records import Decision
from infra.page.skill import LEVELS
from streams.catalogue import ARRIVAL_RATE
from streams.log import UNREADABLE, ContractBroken
from streams.topics import Topics

# The last slots of one workload as rows of numbers, in fixed memory, written in any order.


Floats = NDArray[np.float64]


class SlotRing:
    """Rows of `columns` numbers by slot; a slot's row takes the place of the one `slots` earlier.

    Args:
        slots: N, how many are kept.
        columns: K, numbers per row; NaN is "not known".
    """

    __slots__ = ("_rows", "_stamps")

    def __init__(self, slots: int, columns: int) -> None:
        self._stamps = np.full(slots, -1, np.int64)  # [N]
        self._rows = np.full((slots, columns), np.nan, np.float32)  # [N, K]

    def put(self, slot: int, values: Sequence[float] | Floats, column: int = 0) -> None:
        """Write numbers from `column` on. A slot older than what its place holds is dropped: it is out of reach."""
        place = slot % len(self._stamps)
        if slot < self._stamps[place]:
            return
        if slot > self._stamps[place]:
            self._stamps[place] = slot
            self._rows[place] = np.nan
        self._rows[place, column : column + len(values)] = values

    def read(self, first: int, last: int) -> Floats:
        """Rows of the slots first..last, [last - first + 1, K]; NaN where nothing is kept."""
        slots = np.arange(first, last + 1)
        places = slots % len(self._stamps)
        return np.where((self._stamps[places] == slots)[:, None], self._rows[places], np.nan).astype(np.float64)

    def first_slot(self) -> int | None:
        """Oldest slot kept, None when empty."""
        stamps = self._stamps[self._stamps >= 0]
        return int(stamps.min()) if len(stamps) else None


# What the page keeps of one workload: its last slots, its last forecast, and the turns its decisions took.


SLOTS: Final = 360
TURNS: Final = 60

# Columns of the ring.
LOAD, MISS, READY, PENDING, CURRENT, PROPOSED, FINAL, REACTIVE, P_MISS, CAPACITY, P_CURRENT, P_PROPOSED = range(12)
_COLUMNS = 12
_NAN = float("nan")

Count = Annotated[int, msgspec.Meta(ge=0)]


class LoadTargets(msgspec.Struct, frozen=True, rename={"rows": "request.arrival_rate"}):
    """The one target that the page draws; the others are skipped unread."""

    rows: tuple[tuple[float, ...], ...] = ()


class LoadForecast(msgspec.Struct, frozen=True):
    """What the page reads of a `forecasts` record; `targets.rows` is [H][Q], 1/s."""

    workload: str
    origin_ts_ms: Count
    step_ms: Annotated[int, msgspec.Meta(ge=1)]
    source: str
    model: str
    quantile_levels: tuple[float, ...]
    targets: LoadTargets


class Turn:
    """Consecutive decisions that leave the same count.

    Attributes:
        from_ts_ms: origin of the first.
        reasons: who had the last word, and how often.
    """

    __slots__ = ("_kept", "from_ts_ms", "leaves", "reasons")

    def __init__(self, first: Decision) -> None:
        self.from_ts_ms = first.origin_ts_ms
        self.leaves = _leaves(first)
        self.reasons: Counter[str] = Counter()
        self._kept: Decision | bytes = first

    @property
    def decision(self) -> Decision:
        """The newest of them."""
        stored = self._kept
        return stored if isinstance(stored, Decision) else decode_decision(zlib.decompress(stored))

    def take(self, decision: Decision) -> None:
        """One more."""
        self._kept = decision
        self.reasons[decision.reason] += 1

    def close(self) -> None:
        """There will be no more. A decision is a hundred objects and seldom looked at again, its bytes are few."""
        self._kept = zlib.compress(encode_decision(self.decision))


@dataclass(frozen=True, slots=True)
class Fan:
    """The newest forecast of the load: `quantiles` is [H, 5] at `LEVELS`, from the slot after the origin on."""

    origin_ts_ms: int
    step_ms: int
    source: str
    model: str
    quantiles: Floats


class WorkloadMemory:
    """Folds decisions, forecasts and miss ratios of one workload, in any order between the three.

    Args:
        step_ms: slot length; a slot is named by its end / step_ms.
        hold_ms: for so long the largest proposal counts before replicas are given up.
    """

    __slots__ = ("_made", "fan", "hold_ms", "newest", "ring", "step_ms", "turns")

    def __init__(self, step_ms: int, hold_ms: int = 300_000) -> None:
        self.step_ms, self.hold_ms = step_ms, hold_ms
        self.ring = SlotRing(SLOTS, _COLUMNS)
        self.turns: deque[Turn] = deque(maxlen=TURNS)
        self.newest: Decision | None = None
        self.fan: Fan | None = None
        # What was forecast for a slot, by horizon in steps; three horizons tell near from far.
        self._made: dict[int, SlotRing] = {}

    def decide(self, decision: Decision) -> bool:
        """Take in a decision; False for one that is not newer than what is known (published again)."""
        if self.newest is not None and decision.origin_ts_ms <= self.newest.origin_ts_ms:
            return False
        self.newest = decision
        r = decision.replicas
        # The chart is one of requests; where load is counted in tokens there is no such capacity.
        capacity = decision.capacity_per_replica if decision.forecast.indicator == ARRIVAL_RATE else None
        p_miss = None if r.final is None else decision.risk.p_miss.get(str(r.final))
        slot = decision.origin_ts_ms // self.step_ms
        self.ring.put(slot, (_number(decision.inputs.arrival_rate),), LOAD)
        self.ring.put(
            slot,
            (
                _number(r.ready),
                _number(r.pending),
                _number(r.current),
                _number(r.proposed),
                _number(r.final),
                _number(decision.shadow.get("reactive")),
                _number(p_miss),
                _number(capacity.values[len(capacity.values) // 2] if capacity and capacity.values else None),
                _number(decision.risk.p_miss.get(str(r.current))),
                _number(decision.risk.p_miss.get(str(r.proposed))),
            ),
            READY,
        )
        turn = self.turns[-1] if self.turns else None
        if turn is None or turn.leaves != _leaves(decision):
            if turn is not None:
                turn.close()
            turn = Turn(decision)
            self.turns.append(turn)
        turn.take(decision)
        return True

    def forecast(self, forecast: LoadForecast) -> bool:
        """Take in a forecast; False for one without the load, or not of this step."""
        rows, pick = forecast.targets.rows, _picker(forecast.quantile_levels)
        if not rows or forecast.step_ms != self.step_ms or pick is None:
            return False
        if any(len(row) != len(forecast.quantile_levels) for row in rows):
            return False
        values = chain.from_iterable(map(pick, rows))
        quantiles = np.fromiter(values, np.float64, len(rows) * len(LEVELS)).reshape(-1, len(LEVELS))  # [H, 5]
        if self.fan is None or forecast.origin_ts_ms >= self.fan.origin_ts_ms:
            self.fan = Fan(forecast.origin_ts_ms, forecast.step_ms, forecast.source, forecast.model, quantiles)
        origin = forecast.origin_ts_ms // self.step_ms
        horizons = {1, (len(rows) + 1) // 2, len(rows)}
        if self._made.keys() != horizons:
            rings = self._made
            self._made = {ahead: rings.get(ahead) or SlotRing(SLOTS, len(LEVELS)) for ahead in sorted(horizons)}
        for ahead, ring in self._made.items():
            ring.put(origin + ahead, quantiles[ahead - 1])
        return True

    def observe_misses(self, origin_ts_ms: int, miss_ratio: float) -> None:
        """Share of the slot's requests outside the SLO."""
        self.ring.put(origin_ts_ms // self.step_ms, (miss_ratio,), MISS)

    def window(self) -> tuple[int, int] | None:
        """First and last slot that are kept of the decided past, None before the first decision."""
        if self.newest is None:
            return None
        last = self.newest.origin_ts_ms // self.step_ms
        first = self.ring.first_slot()
        return max(last - SLOTS + 1, last if first is None else first), last

    def past_forecasts(self, first: int, last: int) -> dict[int, Floats]:
        """Per horizon in steps, what was forecast for the slots first..last, [T, 5]."""
        return {ahead: ring.read(first, last) for ahead, ring in sorted(self._made.items())}


def attainment(rows: Floats) -> float | None:
    """Share of good requests over the rows [T, K], weighted by load; None where no slot tells."""
    mask = ~np.isnan(rows[:, LOAD]) & ~np.isnan(rows[:, MISS])
    requests = rows[mask, LOAD]
    total = float(requests.sum())
    return 1.0 - float((requests * rows[mask, MISS]).sum()) / total if total > 0 else None


@lru_cache(maxsize=64)
def _picker(levels: tuple[float, ...]) -> Callable[[tuple[float, ...]], tuple[float, ...]] | None:
    """Picks the levels of the page out of a row of these; None where one is missing."""
    return None if any(q not in levels for q in LEVELS) else itemgetter(*(levels.index(q) for q in LEVELS))


def _number(value: float | None) -> float:
    return _NAN if value is None else float(value)


def _leaves(d: Decision) -> tuple[object, ...]:
    return d.action, d.mode, d.replicas.final


# About 60 KB each; what goes beyond is counted, not kept, up to so many times the number kept.
MAX_WORKLOADS: Final = 2_000
_MAX_COUNTED: Final = 50
# A workload that decided nothing for so many steps while others did leaves the page.
STALE_AFTER_STEPS: Final = 240
RETIRED_AFTER_STEPS: Final = 12
_FORECASTS = msgspec.json.Decoder(LoadForecast)


class FleetMemory:
    """Folds records of the topics decisions, forecasts and plans; bounded in workloads and per workload.

    Args:
        topics: names of the topics.
        step_ms: slot length.
        max_workloads: how many are kept.
        hold_ms: as of `WorkloadHistory`.

    Attributes:
        version: grows with every change that can be seen.
        unreadable: records that were not what their topic promises.
        refused: workloads that found no room, with the origin of each one's newest decision; who retires, is silent for
            long or finds room after all is none of them.
    """

    def __init__(
        self, topics: Topics, step_ms: int, max_workloads: int = MAX_WORKLOADS, hold_ms: int = 300_000
    ) -> None:
        self._topics, self._step_ms, self._max, self._hold_ms = topics, step_ms, max_workloads, hold_ms
        self._histories: dict[str, WorkloadMemory] = {}
        self._versions: dict[str, int] = {}
        self._removals: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self.version = 0
        self.newest_origin_ts_ms: int | None = None
        self._swept_ts_ms: int | None = None
        self.unreadable = 0
        self.refused: dict[str, int] = {}

    def fold(self, topic: str, value: bytes | None) -> None:
        """Take in one record; what cannot be read is counted and passed over."""
        if value is None:
            return
        try:
            if topic == self._topics.decisions:
                self._fold_decision(value)
            elif topic == self._topics.forecasts:
                self._fold_forecast(value)
            elif topic == self._topics.plans:
                self._fold_plan(value)
        except (*UNREADABLE, ContractBroken, ValueError, OverflowError):
            self.unreadable += 1

    def get(self, workload: str) -> WorkloadMemory | None:
        """What is kept of a workload that has been decided."""
        history = self._histories.get(workload)
        return history if history is not None and history.newest is not None else None

    def version_of(self, workload: str) -> int:
        return self._versions.get(workload, 0)

    def by_key(self, key: str) -> str | None:
        """The workload of a short key."""
        return self._keys.get(key)

    def changed_since(self, version: int) -> Iterator[str]:
        """Workloads that changed after `version`, sorted."""
        return (w for w in sorted(self._versions) if self._versions[w] > version and self.get(w) is not None)

    def removals_since(self, version: int) -> list[str]:
        """Keys of workloads that left after `version`."""
        return [key for key, at in self._removals.items() if at > version]

    def __len__(self) -> int:
        return sum(1 for h in self._histories.values() if h.newest is not None)

    def note(self, texts: Mapping[str, str]) -> None:
        """What is wrong with the telemetry of workloads now, by workload; others have nothing to be told."""
        for workload in {*texts, *self._notes}:
            if texts.get(workload) != self._notes.get(workload) and self.get(workload) is not None:
                self._touch(workload)
        self._notes = dict(texts)

    def note_of(self, workload: str) -> str:
        """What is wrong with the telemetry of a workload; "" for nothing."""
        return self._notes.get(workload, "")

    def sweep(self) -> None:
        """Let go of workloads that were retired or have been silent for long, in event time."""
        newest = self.newest_origin_ts_ms
        if newest is None or newest == self._swept_ts_ms:
            return
        self._swept_ts_ms = newest
        for workload, history in list(self._histories.items()):
            decision = history.newest
            if decision is None:
                continue
            allowed = RETIRED_AFTER_STEPS if decision.action == "retired" else STALE_AFTER_STEPS
            if newest - decision.origin_ts_ms > allowed * self._step_ms:
                self._drop(workload)
        oldest_ms = newest - STALE_AFTER_STEPS * self._step_ms
        self.refused = {workload: at for workload, at in self.refused.items() if at >= oldest_ms}

    def _drop(self, workload: str) -> None:
        self.version += 1
        del self._histories[workload]
        self._versions.pop(workload, None)
        key = short_key(workload)
        self._keys.pop(key, None)
        self._removals[key] = self.version
        while len(self._removals) > self._max:
            del self._removals[next(iter(self._removals))]

    def _fold_decision(self, value: bytes) -> None:
        decision = decode_decision(value)
        history = self._history(decision.workload)
        if history is None:
            self._refuse(decision)
        elif not history.decide(decision):
            return
        # Also where there is no room for it: were all that are shown to fall silent, nothing else would make room.
        self.newest_origin_ts_ms = max(decision.origin_ts_ms, self.newest_origin_ts_ms or 0)
        if history is not None:
            self._touch(decision.workload)

    def _refuse(self, decision: Decision) -> None:
        if decision.action == "retired":
            self.refused.pop(decision.workload, None)
        elif decision.workload in self.refused or len(self.refused) < self._max * _MAX_COUNTED:
            before = self.refused.get(decision.workload, 0)
            self.refused[decision.workload] = max(decision.origin_ts_ms, before)

    def _fold_forecast(self, value: bytes) -> None:
        forecast = _FORECASTS.decode(value)
        history = self._history(forecast.workload)
        if history is not None and history.forecast(forecast):
            self._touch(forecast.workload)

    def _fold_plan(self, value: bytes) -> None:
        plan = misses_of_plan(value)
        for workload_plan in plan.workloads:
            # Plans precede the decisions, whose arrival makes the change seen.
            history = self._history(workload_plan.workload)
            if history is not None and workload_plan.slo_miss_ratio is not None:
                history.observe_misses(plan.origin_ts_ms, workload_plan.slo_miss_ratio)

    def _history(self, workload: str) -> WorkloadMemory | None:
        history = self._histories.get(workload)
        if history is None:
            if len(self._histories) >= self._max:
                return None
            self.refused.pop(workload, None)
            history = self._histories[workload] = WorkloadMemory(self._step_ms, self._hold_ms)
            key = short_key(workload)
            self._keys[key] = workload
            self._removals.pop(key, None)
        return history

    def _touch(self, workload: str) -> None:
        self.version += 1
        self._versions[workload] = self.version


def short_key(workload: str) -> str:
    """A name of fixed length for a workload id of any content and length, for addresses and for comparing."""
    return hashlib.blake2b(workload.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
