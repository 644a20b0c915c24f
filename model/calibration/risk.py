"""Online calibration of stated risks, and the sums over a workload's window that it needs.

The risk of a plan rests on a forecast, a capacity and a queue model, each with errors. The outcome of every window is
observed. After each one the logit of further risks is shifted by a small step: up after a miss, down otherwise. The
steps balance when stated and realized shares agree, so over time as many windows are missed as was stated. Where hardly
a window can miss, outcomes carry no information, and the learned shift decays.

The functions are pure: float64 arithmetic, no clock.
Source: I. Gibbs, E. Candès, "Adaptive conformal inference under distribution shift", NeurIPS 2021.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

# Sums and counts over the window of one workload, with the bits of numpy's sums.
#
# A window is float32 [L, N] values, oldest first, and bool [L, N] of the observed ones. Every workload needs these sums
# in every slot, and on windows this small the overhead of numpy is ten times the work.


Values = NDArray[np.float32]
Mask = NDArray[np.bool_]

# Steps before the newest whose mean a cliff is compared with.
_CLIFF_STEPS: Final = 4
# Equal steps in a row from which on a series counts as frozen.
_FLAT_STEPS: Final = 12
# Steps looked back for a load before a sudden zero.
_ZERO_STEPS: Final = 12
# Standard deviations of a Poisson count that separate a change from noise.
_SIGNIFICANT_SIGMAS: Final = 3.0
# Length up to which numpy sums without halving.
_SUMMED_AT_ONCE: Final = 128


@compiled
def sums_of_two(values: Values, observed: Mask, one: int, other: int, slots: int) -> tuple[float, float]:
    """Of two columns, over the last rows in which both were observed."""
    first, second = 0.0, 0.0
    for row in range(max(len(values) - slots, 0), len(values)):
        if observed[row, one] and observed[row, other]:
            first += np.float64(values[row, one])
            second += np.float64(values[row, other])
    return first, second


@compiled
def pairwise_sum(numbers: NDArray[np.float64]) -> float:
    """What numpy says that the sum is, to the bit: eight sums side by side, stretches of more than 128 halved."""
    n = len(numbers)
    if n < 8:
        few = 0.0
        for k in range(n):
            few += numbers[k]
        return few
    if n > _SUMMED_AT_ONCE:
        half = n // 2 - n // 2 % 8
        return pairwise_sum(numbers[:half]) + pairwise_sum(numbers[half:])
    r = numbers[:8].copy()
    for first in range(8, n - n % 8, 8):
        for k in range(8):
            r[k] += numbers[first + k]
    total: float = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
    for k in range(n - n % 8, n):
        total += numbers[k]
    return total


@compiled
def finished_within(
    values: Values, observed: Mask, columns: tuple[int, int], times_ms: tuple[int, int, int, int]
) -> tuple[float, float]:
    """Requests, and those of them that missed, of the slots that end after a begin, up to an end.

    Args:
        columns: of the arrival rate and of the share that misses; slots that lack one of them do not count.
        times_ms: end of the newest slot, step, begin and end.
    """
    rates, ratios = columns
    newest_end_ms, step_ms, begin_ms, end_ms = times_ms
    requests, misses, n = np.empty(len(values)), np.empty(len(values)), 0
    for row in range(len(values)):
        at_ms = newest_end_ms - (len(values) - 1 - row) * step_ms
        if begin_ms < at_ms <= end_ms and observed[row, rates] and observed[row, ratios]:
            requests[n] = np.float64(values[row, rates]) * (step_ms / 1000)
            misses[n] = requests[n] * np.float64(values[row, ratios])
            n += 1
    return pairwise_sum(requests[:n]), pairwise_sum(misses[:n])


@compiled
def signals(
    values: Values, observed: Mask, num_targets: int, running: int, step_s: float, cliff_ratio: float
) -> tuple[bool, bool, bool]:
    """`is_flat`, `is_cliff` and `is_sudden_zero` in one call, for a call costs more than each."""
    return (
        is_flat(values, observed, num_targets, running),
        is_cliff(values, observed, step_s, cliff_ratio),
        is_sudden_zero(values, observed, step_s),
    )


@compiled
def is_flat(values: Values, observed: Mask, num_targets: int, running: int) -> bool:
    """Whether the first columns have not moved for a suspicious time though something goes on.

    Real demand is noisy: many equal steps in a row are a frozen reporter. One that froze altogether repeats its
    counters, so that nothing seems to arrive, and what it said was running.

    Args:
        running: column of the requests in service; -1 where there is none.
    """
    last, first = len(values) - 1, len(values) - _FLAT_STEPS
    if first < 0 or not (_still(values, 0, first) and observed[first:, 0].all()):
        return False
    for n in range(1, num_targets):
        if not _still(values, n, first):
            return False
    if values[last, 0] != 0:
        return True
    if running < 0 or values[last, running] == 0:
        return False
    return bool(_still(values, running, first) and observed[first:, running].all())


@compiled
def _still(values: Values, column: int, first: int) -> bool:
    return bool((values[first:, column] == values[-1, column]).all())


@compiled
def is_cliff(values: Values, observed: Mask, step_s: float, cliff_ratio: float) -> bool:
    """Whether the first column fell by more than the ratio within one step, which Poisson noise does not explain."""
    last = len(values) - 1
    total, count = 0.0, 0
    for row in range(max(last - _CLIFF_STEPS, 0), last):
        if observed[row, 0]:
            total += np.float64(values[row, 0])
            count += 1
    if count == 0 or not observed[last, 0] or total <= 0:
        return False
    mean, now = total / count, np.float64(values[last, 0])
    expected = mean * step_s
    fall = expected - now * step_s
    return bool(now < (1 - cliff_ratio) * mean and fall > _SIGNIFICANT_SIGMAS * np.sqrt(expected))


@compiled
def is_sudden_zero(values: Values, observed: Mask, step_s: float) -> bool:
    """Whether the first column is exactly zero now, and clearly was not within the last minute's worth of steps."""
    last = len(values) - 1
    if not observed[last, 0] or values[last, 0] != 0:
        return False
    for row in range(max(last - _ZERO_STEPS, 0), last):
        if observed[row, 0] and np.float64(values[row, 0]) * step_s > _SIGNIFICANT_SIGMAS:
            return True
    return False


def warm_up() -> None:
    """Compile or load the functions above."""
    values, observed = np.ones((2, 4), np.float32), np.ones((2, 4), np.bool_)
    sums_of_two(values, observed, 0, 1, 2)
    finished_within(values, observed, (0, 1), (2, 1, 0, 2))
    signals(values, observed, 2, 3, 1.0, 0.5)


Float = NDArray[np.float64]
Ints = NDArray[np.int64]

# Shift of a workload without evidence.
_INITIAL_SHIFT: Final = 0.0
# Bounds of the shift: stated risks may be at most 2.7 times too high and 55 times too low.
_MIN_SHIFT, _MAX_SHIFT = -1.0, 4.0
# Step of the shift per window, as a factor on realized less stated risk.
_SHIFT_STEP: Final = 0.4
# Smallest distance of a risk from 0 and 1 that the draws of a plan can resolve.
_RISK_RESOLUTION: Final = 1e-4
# Fewest requests of a window that counts as evidence.
_MIN_REQUESTS: Final = 5.0
# Slack of the comparison with the allowed share: ratios are float32, and 1 - 0.9 is a little less than a tenth.
_FLOAT32_SLACK: Final = 1.0 + 1e-6
# Half-life of the shift without evidence. Without decay one bad hour would keep replicas with which nothing misses, and
# no evidence could reduce the shift. At a stated risk of 1 % the half-life is twice as long, at 10 % eleven times.
_HALF_LIFE_S: Final = 3600.0
# Stated risk at which the half-life doubles.
_INFORMATIVE_RISK: Final = 0.01


@dataclass(frozen=True, slots=True)
class FinishedRequests:
    """Requests that finished in the newest slots, oldest first.

    Attributes:
        values: float32 [L, N], requests/s and shares of them that missed among the columns.
        observed: bool [L, N].
        columns: of the requests/s and the shares; None: nothing is told of one of them.
        end_ts_ms: of the newest slot.
        step_ms: of the slots.
        delay_s: how much later than they arrive requests finish.
    """

    values: NDArray[np.float32]
    observed: NDArray[np.bool_]
    columns: tuple[int, int] | None
    end_ts_ms: int
    step_ms: int
    delay_s: float

    def missed(self, begin_ts_ms: int, end_ts_ms: int, objective: float) -> bool | None:
        """Whether more of the requests that arrived within the time missed than allowed; None: too few were seen."""
        if self.columns is None:
            return None
        delay_ms = round(self.delay_s * 1000.0)
        times_ms = self.end_ts_ms, self.step_ms, begin_ts_ms + delay_ms, end_ts_ms + delay_ms
        requests, misses = finished_within(self.values, self.observed, self.columns, times_ms)
        return None if requests < _MIN_REQUESTS else misses > (1.0 - objective) * requests * _FLOAT32_SLACK


class RiskCalibration:
    """The shift of one workload, and the stated risks of windows that have not ended.

    The risks are plain numbers in arrays, because tuples of objects take several times the memory.
    """

    __slots__ = ("_offered", "_open", "_shift")

    def __init__(self) -> None:
        self._shift = _INITIAL_SHIFT
        self._offered: array[float] | None = None  # begin, end, count, risk, count, risk, ...
        self._open = array("d")  # begin, end, risk, begin, end, risk, ...

    @property
    def shift(self) -> float:
        """Number that is added to the logit of a computed risk before it is published (`state_risks`)."""
        return self._shift

    @property
    def oldest_begin_ms(self) -> int | None:
        """Start of the earliest window that is still to be judged, in ms; None without any."""
        offered = () if self._offered is None else self._offered[:1]
        oldest = min((*offered, *self._open[::3]), default=None)
        return None if oldest is None else int(oldest)

    def offer(self, begin_ts_ms: int, end_ts_ms: int, risks: Sequence[tuple[int, float]]) -> None:
        """Remember the stated risks of a plan by replica count, until it is known which count came into force."""
        self._offered = array("d", [begin_ts_ms, end_ts_ms, *(number for risk in risks for number in risk)])

    def settle(
        self,
        replicas: int,
        now_ms: int,
        finished: FinishedRequests,
        objective: float,
        step_s: float,
        steps_between_plans: int = 1,
    ) -> None:
        """Fold a closed slot: which count the last plan led to, and the windows that can be judged by now.

        Args:
            replicas: in force now, ready or on their way.
            now_ms: end of the slot.
            step_s: since the slot before.
            steps_between_plans: by which windows follow each other, so that neighbours share their evidence.
        """
        if self._offered is not None:
            begin, end, *risks = self._offered
            for k, count in enumerate(risks[::2]):
                if count == replicas:
                    self._open.extend((begin, end, risks[2 * k + 1]))
            self._offered = None
        judged_ms, between_s = now_ms - round(finished.delay_s * 1000.0), step_s * steps_between_plans
        telling, ended = 0.0, [3 * k for k, until in enumerate(self._open[1::3]) if until <= judged_ms]
        for k in ended:
            begin_ms, end_ms, p = self._open[k : k + 3]
            missed = finished.missed(int(begin_ms), int(end_ms), objective)
            if missed is not None:
                worth = min(1.0, between_s * 1000.0 / max(end_ms - begin_ms, 1.0))
                self._shift += _SHIFT_STEP * worth * (missed - p)
                telling = max(telling, p)
        for k in reversed(ended):
            del self._open[k : k + 3]
        # Between the windows of two plans nothing could be told, so the time until the next one fades with it.
        between = steps_between_plans > 1 and self._open and not ended
        faded_s = between_s if ended else 0.0 if between else step_s
        self._shift *= 0.5 ** (faded_s / _HALF_LIFE_S / (1.0 + telling / _INFORMATIVE_RISK))
        self._shift = min(max(self._shift, _MIN_SHIFT), _MAX_SHIFT)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` returns the same bits."""
        offered = None
        if self._offered is not None:
            begin, end, *risks = self._offered
            offered = int(begin), int(end), tuple(_risks(risks))
        return {"v": 1, "shift": self._shift, "offered": offered, "open": _windows(self._open)}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> RiskCalibration:
        """The calibration that a snapshot was taken of; an empty one (from before there was any) starts anew.

        Raises:
            ValueError: the snapshot is of another version.
        """
        calibration = cls()
        if not state:
            return calibration
        if state.get("v") != 1:
            raise ValueError(f"risk calibration snapshot has version {state.get('v')!r}, this program reads 1")
        calibration._shift = state["shift"]
        if state["offered"] is not None:
            calibration.offer(*state["offered"])
        calibration._open = array("d", [number for begin, end, p in state["open"] for number in (begin, end, p)])
        return calibration


def _risks(numbers: Sequence[float]) -> list[tuple[int, float]]:
    """Counts, and the risk stated of each."""
    return list(zip(map(int, numbers[::2]), numbers[1::2], strict=True))


def _windows(numbers: array[float]) -> list[tuple[int, int, float]]:
    """Begin and end of each window, and the risk stated of it."""
    return list(zip(map(int, numbers[::3]), map(int, numbers[1::3]), numbers[2::3], strict=True))


@compiled
def state_risks(p_miss: Float, stderr: Float, numbers: Ints, shifts: Float) -> None:
    """Computed risks of rows to stated ones, and their standard errors, in place.

    The error moves by the slope of the shift per unit of the computed risk.

    Args:
        p_miss, stderr: float64 [B, C].
        numbers: int64 [B], how many of C belong to each row.
        shifts: float64 [B].
    """
    for b in range(len(numbers)):
        shift = shifts[b]
        if shift == 0.0:
            continue
        for k in range(numbers[b]):
            p = p_miss[b, k]
            p_miss[b, k] = stated = _shift_logit(p, shift)
            if _RISK_RESOLUTION < p < 1.0 - _RISK_RESOLUTION:
                stderr[b, k] *= stated * (1.0 - stated) / (p * (1.0 - p))


@compiled
def _shift_logit(p: float, shift: float) -> float:
    if shift == 0.0 or p >= 1.0:
        return p
    inside = min(max(p, _RISK_RESOLUTION), 1.0 - _RISK_RESOLUTION)
    return 1.0 / (1.0 + math.exp(-math.log(inside / (1.0 - inside)) - shift))
