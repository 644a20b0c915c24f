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

from infra.console.errors import HarmonyError
from infra.lab.replay.oracle import Counts, Schedule, carry_out, find_schedule
from infra.lab.replay.setting import Load, Setting
from infra.lab.replay.simulation import Lived
from infra.simulator.arrivals import Arrivals, RateProfile

# What begins in a load without a word before it: told by second, or found where a rate file rises so many times.
#
# A surprise is the load's, not a policy's: what a scaler could have known of it is nobody's to say. So it is named by
# who asks, by a rule that is written down, or, for the loads that are made of one, with the load.


_BUILT_IN: Final = {"flash-crowd": "1800", "regime-shift": "2400", "longer-answers": "7200"}
_CALM_S: Final = 1_800.0  # whose highest rate a rise is measured from
_MOST: Final = 1_000  # surprises


@dataclass(frozen=True, slots=True)
class Asked:
    """Which surprises are meant: at these seconds of what is scored, or where a rate rises by this factor."""

    at_s: tuple[float, ...] = ()
    factor: float | None = None


def asked_for(text: str | None, rate: str | None) -> Asked:
    """`SECONDS,...` or `xFACTOR`; without a word those that a built-in load is made of."""
    text = _BUILT_IN.get(rate or "", "") if text is None else text
    if text.startswith("x"):
        factor = _number(text[1:], text)
        if not 1.0 < factor <= 1_000.0:
            raise HarmonyError(f"--surprise: a rate must rise by a factor above 1, such as x1.33, got {text!r}.", 2)
        return Asked(factor=factor)
    at_s = tuple(_number(part, text) for part in text.split(",") if part.strip())
    if any(not 0.0 <= second < math.inf for second in at_s) or list(at_s) != sorted(set(at_s)):
        raise HarmonyError(f"--surprise: seconds must ascend from 0 or more, got {text!r}.", 2)
    return Asked(at_s)


def _number(part: str, text: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise HarmonyError(
            "--surprise must be seconds from the beginning of what is scored, such as 1800 or 36000,51300, or x1.33 "
            f"for wherever a rate file rises so many times within the lead time, got {text!r}.",
            2,
        ) from None


def surprise_times(asked: Asked, rates: RateProfile | None, scored_s: float, lead_s: float) -> tuple[float, ...]:
    """Seconds of what is scored at which a surprise begins; at least a lead time lies between two.

    Args:
        rates: of what is scored; None where requests were recorded.
        scored_s: how long it lasts.
    """
    if asked.factor is not None:
        if rates is None:
            raise HarmonyError(
                "--surprise x1.33 looks at the rates of a rate file: of recorded requests name seconds.", 2
            )
        return tuple(rises(rates, asked.factor, lead_s))
    late = [second for second in asked.at_s if second >= scored_s]
    if late:
        raise HarmonyError(f"--surprise: what is scored ends after {scored_s:.0f} s, before {late[0]:g}.", 2)
    if len(asked.at_s) > 1 and min(np.diff(asked.at_s)) < lead_s:
        raise HarmonyError(f"--surprise: two within a lead time of {lead_s:g} s are one; name the first of them.", 2)
    return asked.at_s


def rises(rates: RateProfile, factor: float, within_s: float) -> list[float]:
    """Where a rate leaves what it was at most in the half hour before, and is `factor` times that `within_s` later."""
    found: list[float] = []
    edges, values = rates.edges_s, rates.rates_rps
    for k in range(1, len(values)):
        begin_s = float(edges[k])
        if begin_s < _CALM_S or (found and begin_s < found[-1] + within_s):
            continue
        first = int(np.searchsorted(edges, begin_s - _CALM_S, side="right")) - 1
        most = float(values[first:k].max())
        end = max(int(np.searchsorted(edges, begin_s + within_s, side="left")), k + 1)
        if values[k] > most > 0.0 and float(values[k:end].max()) >= factor * most:
            found.append(begin_s)
    if len(found) > _MOST:
        raise HarmonyError(f"--surprise x{factor:g}: {len(found):,} surprises are none; use a larger factor.", 2)
    return found


def without(load: Load, surprises_s: Sequence[float], lead_s: float) -> Load:
    """The load as it seems before each surprise: for a lead time what came in the one before comes again.

    Args:
        surprises_s: seconds of the load, ascending, at least a lead time apart.
    """
    parts, upto_s = [], 0.0
    for begin_s in surprises_s:
        before = load.arrivals.between(max(begin_s - lead_s, 0.0), begin_s)
        again = Arrivals(before.arrival_s + lead_s, before.prompt_tokens, before.output_tokens)
        parts += [load.arrivals.between(upto_s, begin_s), again]
        upto_s = begin_s + lead_s
    return Load(load.name, Arrivals.joined([*parts, load.arrivals.between(upto_s, math.inf)]), load.score)


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
