"""Single steps that tell of a load which no engine felt; compiled.

What arrives is in service or waits until it is finished, so that many times the load is many times the requests in the
system (J. Little, "A proof for the queuing formula L = lambda W", Operations Research 9, 1961). A counter that jumps
once, by mistake, moves nothing of that. Neither do requests that came and went between two looks, and were served.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Values = NDArray[np.float32]
Seen = NDArray[np.bool_]

_TIMES: Final = 8.0  # the load of the steps around it
_REQUESTS: Final = 50.0  # fewer in one step are no load to speak of
_AROUND: Final = 2  # steps on either side
_FELT: Final = 2.0  # times the requests in the system of the steps around it, and two more


@compiled
def unfelt_steps(values: Values, observed: Seen, columns: NDArray[np.int64], step_s: float, unfelt: Seen) -> int:
    """How many steps of a window stand alone with many times the load of those around them, felt by no engine.

    Args:
        values, observed: [L, N], oldest first.
        columns: [4] of arrivals per second, requests in service, requests waiting, and the share that missed; -1 where
            there is none. Without the first two nothing is unfelt.
        unfelt: [L], filled.
    """
    unfelt[:] = False
    arrivals, running, waiting, missed = columns
    if arrivals < 0 or running < 0:
        return 0
    length, number = len(values), 0
    for t in range(length):
        rate = np.float64(values[t, arrivals])
        if not observed[t, arrivals] or rate * step_s < _REQUESTS or not observed[t, running]:
            continue
        known, load, system = 0, 0.0, 0.0
        for u in range(max(t - _AROUND, 0), min(t + _AROUND + 1, length)):
            if u != t and observed[u, arrivals] and observed[u, running]:
                known += 1
                load = max(load, np.float64(values[u, arrivals]))
                system = max(system, _in_system(values, observed, u, running, waiting))
        if known < _AROUND or rate <= _TIMES * load:
            continue
        if _in_system(values, observed, t, running, waiting) > _FELT * system + _FELT:
            continue
        if missed >= 0 and observed[t, missed] and values[t, missed] > 0.0:
            continue
        unfelt[t] = True
        number += 1
    return number


@compiled
def _in_system(values: Values, observed: Seen, t: int, running: int, waiting: int) -> float:
    queued = np.float64(values[t, waiting]) if waiting >= 0 and observed[t, waiting] else 0.0
    return np.float64(values[t, running]) + queued


def warm_up() -> None:
    """Compile or load it."""
    unfelt_steps(np.ones((3, 4), np.float32), np.ones((3, 4), np.bool_), np.arange(4), 1.0, np.empty(3, np.bool_))
