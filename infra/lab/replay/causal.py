"""What the best scaler would have kept and paid to which nothing announced the load's surprises.

It knows the load for ever, but of each surprise, and of what follows, it learns when that begins. So what is ready
within a lead time of it was ordered before, for the load as it seemed: the best schedule found for a load in which what
came just before goes on for as long (`surprises.without`), which rises no further in these bins than it did before.
Against the surprise it can only hold a share more replicas, at all times, for it does not know when; and clear the
queue fast.

    the load as it seems ─▶ best schedule ─▶ a share more, + to clear the queue ─▶ carried out on the load as it comes

As `oracle`: the best that was found, not a proven optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from infra.lab.replay.oracle import Counts, Schedule, carry_out, find_schedule
from infra.lab.replay.setting import Setting
from infra.lab.replay.simulation import Lived
from infra.replay.surprises import without

_BIN_S: Final = 10.0  # usual lead times are whole numbers of these
_LOOKS_AHEAD_S: Final = 120.0  # half of the longest window over which schedules are averaged
_BEFORE_S: Final = 600.0  # what is ready for a surprise is what was in these seconds at most
# Parts of the misses allowed that the schedule may use up where nothing surprises.
_SPENT: Final = (1.0, 0.25)
_FOR_GOOD: Final = 1e9
# Replicas more, and for how many seconds, once the first can be there.
_CLEARING: Final = (
    (0, 0.0), (2, 120.0), (4, 120.0), (8, 120.0), (4, 300.0), (16, 120.0), (1, _FOR_GOOD), (3, _FOR_GOOD),
)  # fmt: skip
_AS_GOOD: Final = 0.001  # of the attainment
_RATIO: Final = 1.1  # shares held ready are powers of this, less one


@dataclass(frozen=True, slots=True, eq=False)
class Surprised:
    """A run, and how large a share of replicas it held beside, ready for surprises."""

    lived: Lived
    held_ready: float


@dataclass(frozen=True, slots=True, eq=False)
class Causal:
    """The best found.

    Attributes:
        unready: keeps the most of those that hold nothing ready, for the least of those that keep as much.
        ready: keeps the objective for the least; None where none was found.
    """

    unready: Surprised
    ready: Surprised | None
    simulations: int


def causal_bound(setting: Setting, seed: int, surprises_s: Sequence[float], budget: int) -> Causal | None:
    """The best found for one draw of a load.

    Args:
        surprises_s: seconds of the load, ascending, at least a lead time apart.
        budget: simulations of the search for schedules, about; carrying them out takes some hundred more.

    Returns:
        None where even the most replicas do not keep the objective without any surprise.
    """
    lead_s = setting.careful_lead_s
    seems = setting.with_load(without(setting.load, surprises_s, lead_s))
    used, bases = 0, []
    for part in _SPENT:
        stricter = replace(seems, share=1.0 - part * (1.0 - setting.share))
        found = find_schedule(stricter, seed, budget=budget // len(_SPENT), bin_s=_BIN_S)
        if found is not None:
            used += found.simulations
            bases.append(_unforeseen(found.schedule.ready, surprises_s, lead_s))
    if not bases:
        return None
    search = _Held(setting, seed, bases, [_first_free(at_s, lead_s) for at_s in surprises_s])
    unready = search.runs(0)
    most = max(lived.attainment for lived in unready) - _AS_GOOD
    cheapest = min((lived for lived in unready if lived.attainment >= most), key=lambda lived: lived.gpu_hours)
    ready = search.least()
    return Causal(Surprised(cheapest, 0.0), ready, used + search.used)


def _first_free(at_s: float, lead_s: float) -> int:
    """First bin whose replicas may have been ordered after a surprise."""
    return math.ceil(at_s / _BIN_S - 1e-9) + math.ceil(lead_s / _BIN_S - 1e-9)


def _unforeseen(ready: Counts, surprises_s: Sequence[float], lead_s: float) -> Counts:
    """The schedule without what its averages know of a surprise before it begins."""
    held = ready.copy()
    for at_s in surprises_s:
        begin = int((at_s - max(_LOOKS_AHEAD_S - lead_s, 0.0)) // _BIN_S)
        before = held[max(begin - round(_BEFORE_S / _BIN_S), 0) : max(begin, 1)]
        span = slice(max(begin, 0), _first_free(at_s, lead_s))
        held[span] = np.minimum(held[span], before.max())
    return held


class _Held:
    """Runs of schedules that hold a share more replicas until the last surprise is answered; `power` says which."""

    def __init__(self, setting: Setting, seed: int, bases: Sequence[Counts], free: Sequence[int]) -> None:
        self._setting, self._seed, self._bases, self._free = setting, seed, bases, free
        self.used = 0
        self._best: Surprised | None = None

    def runs(self, power: int) -> list[Lived]:
        """All with this share."""
        runs, setting = [], self._setting
        for base in self._bases:
            for more, for_s in _CLEARING:
                ready = base.copy()
                before = ready[: self._free[-1]]
                before[:] = np.ceil(before * _RATIO**power - 1e-9)
                for free in self._free:
                    ready[free : free + round(for_s / _BIN_S)] += more
                ready = np.clip(ready, setting.min_replicas, setting.max_replicas)
                runs.append(carry_out(Schedule(_BIN_S, ready), setting, self._seed))
        self.used += len(runs)
        for lived in runs:
            cheaper = self._best is None or lived.gpu_hours < self._best.lived.gpu_hours
            if lived.attainment >= setting.share and cheaper:
                self._best = Surprised(lived, _RATIO**power - 1.0)
        return runs

    def least(self) -> Surprised | None:
        """The cheapest found that keeps the objective, once `runs(0)` were tried."""
        low, high = 0, 0
        most = math.ceil(math.log(self._setting.max_replicas) / math.log(_RATIO))
        while self._best is None and high < most:
            low, high = high, min(max(2 * high, 1), most)
            self.runs(high)
        while self._best is not None and high - low > 1:
            middle = (low + high) // 2
            kept = any(lived.attainment >= self._setting.share for lived in self.runs(middle))
            low, high = (low, middle) if kept else (middle, high)
        return self._best
