"""What one slot of telemetry says about the capacity of the replicas that served it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.capacity.attribution import Strain

CLUMP: Final = 20.0  # requests, beyond which more of the same slot say little more


@dataclass(frozen=True, slots=True)
class SlotEvidence:
    """What one closed slot says about capacity. Unknown numbers are None.

    Attributes:
        end_ts_ms: end of the slot, event time.
        arrival_rate: requests/s over the slot.
        miss_ratio: share of the slot's finished requests that missed the SLO.
        waiting: requests waiting, mean over the slot.
        ready, pending, draining: replicas.
        ttft_s, objective: of the SLO.
        finished: requests that `miss_ratio` is of; None = as many as arrive.
        residence_s: how long a request is being served, on average.
        in_tokens: arrivals and queue are counted in tokens; else in requests.
        other_rate: the same load in the other unit that it may come to be counted in, 1/s; None = there is none, or it
            is not known.
        others_per_unit: how many of it one of this surely is; None = it is not known.
        strain: of each promise of the SLO; None = they are not told apart.
    """

    end_ts_ms: int
    step_s: float
    arrival_rate: float | None
    miss_ratio: float | None
    waiting: float | None
    ready: int | None
    pending: int
    draining: int
    ttft_s: float
    objective: float
    residence_s: float | None = None
    finished: float | None = None
    in_tokens: bool = False
    other_rate: float | None = None
    others_per_unit: float | None = None
    strain: Strain | None = None


def usable(value: float | None) -> float | None:
    """A measured number that is finite and not negative, else None."""
    return None if value is None or not math.isfinite(value) or value < 0 else float(value)


class Misses(NamedTuple):
    """Share of a slot's requests that missed, and how many independent requests it is worth.

    `queued`: so many wait that all must miss.
    """

    share: float
    requests: float
    queued: bool = False


def misses_of(slot: SlotEvidence, rate: float, miss_ratio: float | None, waiting: float | None) -> Misses | None:
    """What a slot says; None where it says nothing.

    A queue longer than what arrives within the wait allowed makes all miss, whatever was counted (Little's law); one
    less than half as long, where nothing was counted, none. Requests of a slot miss together, so many of them are
    worth little more than `CLUMP`.
    """
    wait_s = None if waiting is None else waiting / rate
    finished = usable(slot.finished)
    requests = rate * slot.step_s if finished is None else finished
    worth = requests / (1.0 + requests / CLUMP)
    if wait_s is not None and wait_s > slot.ttft_s:
        return Misses(1.0, worth, queued=True)
    if miss_ratio is None:
        return Misses(0.0, 0.5 * worth) if wait_s is not None and wait_s < 0.5 * slot.ttft_s else None
    return Misses(min(miss_ratio, 1.0), worth) if requests > 0 else None
