"""What the page keeps of one workload: its last slots, its last forecast, and the turns its decisions took."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Annotated, Final

import msgspec
import numpy as np

from agents.decide.records import decode_decision, encode_decision
from agents.records import Decision
from infra.page.skill import LEVELS, Floats
from infra.page.slot_ring import SlotRing
from streams.catalogue import ARRIVAL_RATE

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
        kept = self._kept
        return kept if isinstance(kept, Decision) else decode_decision(zlib.decompress(kept))

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


class WorkloadHistory:
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
        told = chain.from_iterable(map(pick, rows))
        quantiles = np.fromiter(told, np.float64, len(rows) * len(LEVELS)).reshape(-1, len(LEVELS))  # [H, 5]
        if self.fan is None or forecast.origin_ts_ms >= self.fan.origin_ts_ms:
            self.fan = Fan(forecast.origin_ts_ms, forecast.step_ms, forecast.source, forecast.model, quantiles)
        origin = forecast.origin_ts_ms // self.step_ms
        horizons = {1, (len(rows) + 1) // 2, len(rows)}
        if self._made.keys() != horizons:
            kept = self._made
            self._made = {ahead: kept.get(ahead) or SlotRing(SLOTS, len(LEVELS)) for ahead in sorted(horizons)}
        for ahead, made in self._made.items():
            made.put(origin + ahead, quantiles[ahead - 1])
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

    def made(self, first: int, last: int) -> dict[int, Floats]:
        """Per horizon in steps, what was forecast for the slots first..last, [T, 5]."""
        return {ahead: ring.read(first, last) for ahead, ring in sorted(self._made.items())}


def attainment(rows: Floats) -> float | None:
    """Share of good requests over the rows [T, K], weighted by load; None where no slot tells."""
    known = ~np.isnan(rows[:, LOAD]) & ~np.isnan(rows[:, MISS])
    requests = rows[known, LOAD]
    total = float(requests.sum())
    return 1.0 - float((requests * rows[known, MISS]).sum()) / total if total > 0 else None


@lru_cache(maxsize=64)
def _picker(levels: tuple[float, ...]) -> Callable[[tuple[float, ...]], tuple[float, ...]] | None:
    """Picks the levels of the page out of a row of these; None where one is missing."""
    return None if any(q not in levels for q in LEVELS) else itemgetter(*(levels.index(q) for q in LEVELS))


def _number(value: float | None) -> float:
    return _NAN if value is None else float(value)


def _leaves(d: Decision) -> tuple[object, ...]:
    return d.action, d.mode, d.replicas.final
