"""What one slot of telemetry says about the capacity of the replicas that served it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_OVER: Final = 4.0  # misses are weighed as the rate that the objective allows against this multiple of it


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


def usable(value: float | None) -> float | None:
    """A measured number that is finite and not negative, else None."""
    return None if value is None or not math.isfinite(value) or value < 0 else float(value)


def badness_of(slot: SlotEvidence, rate: float, miss_ratio: float | None, waiting: float | None) -> float:
    """From -1 (surely good) to 1 (surely bad); 0 says nothing. Few requests say little.

    A queue longer than what arrives within the wait allowed is bad whatever the misses say (Little's law).
    """
    wait_s = None if waiting is None else waiting / rate
    if wait_s is not None and wait_s > slot.ttft_s:
        return 1.0
    if miss_ratio is None:
        return -0.5 if wait_s is not None and wait_s < 0.5 * slot.ttft_s else 0.0
    allowed = min(max(1.0 - slot.objective, 1e-6), 0.2)
    over = min(_OVER * allowed, 0.8)
    finished = usable(slot.finished)
    requests = rate * slot.step_s if finished is None else finished
    missed = min(miss_ratio, 1.0) * requests
    evidence = missed * math.log(over / allowed) + (requests - missed) * math.log((1.0 - over) / (1.0 - allowed))
    return math.tanh(0.5 * evidence)
