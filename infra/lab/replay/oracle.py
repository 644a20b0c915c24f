"""What a clairvoyant would have paid: schedules searched with known arrivals, on the same engine.

Three bounds: moves that are free and instant, moves that take the cell's own lead time, and these for one who knows
the rate of the arrivals and the laws of their lengths for ever, but not the draw. A schedule says how many replicas
shall be ready in each bin of time; with a lead time they are ordered that much ahead, so that a replica is kept through
a dip that is shorter. The search is a heuristic: the best schedule found, not a proven optimum.

    work per bin ─▶ family: ceil((mean work over a window + z sqrt) / capacity), capacity bisected to the objective
                └▶ the cheapest few ─▶ trimmed bin by bin while the objective holds
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from infra.lab.replay.setting import Setting
from infra.lab.replay.simulation import Controller, Lived, live
from infra.simulator.cluster import Cluster
from infra.simulator.profiles import Profile

Counts = NDArray[np.int64]
Float = NDArray[np.float64]

_WINDOWS_S = (30.0, 90.0, 240.0)
_DEVIATIONS = (0.0, 1.0)
_BISECTIONS = 7
_FINALISTS = 2
# Draws of a known rate: its work is averaged over all of these, a schedule is tried on the first of them, on more where
# a draw holds few requests. No seed that is scored, or trained on, comes near.
_FIRST_DRAW, _AVERAGED, _TRIED_DAY, _TRIED_SHORT = 50_000, 12, 3, 10


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """`ready[k]` replicas shall be ready on `[k, k + 1) * bin_s`."""

    bin_s: float
    ready: Counts

    def ordered(self, lead_s: float) -> Counts:
        """Replicas to hold, ready or on their way, from the start of each bin on: the most wanted within the lead."""
        reach = math.ceil(lead_s / self.bin_s - 1e-9)
        padded = np.concatenate((self.ready, np.full(reach, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach + 1)
        return windows.max(axis=1)


class ScheduleController:
    """Carries a schedule out."""

    def __init__(self, cluster: Cluster, counts: Counts, bin_s: float) -> None:
        self._cluster, self._counts, self._bin_s = cluster, counts, bin_s
        self._k = 0
        self.next_s = 0.0

    def act(self) -> None:
        wanted = int(self._counts[min(self._k, len(self._counts) - 1)])
        if wanted != self._cluster.num_current:
            self._cluster.set_replicas(wanted, self._cluster.now_s)
        self._k += 1
        self.next_s = self._k * self._bin_s


@dataclass(frozen=True, slots=True)
class _Tried:
    """Means of a schedule over the draws it is searched on."""

    attainment: float
    gpu_hours: float


@dataclass(frozen=True, slots=True, eq=False)
class Oracle:
    """The best schedule found, its run, and how many simulations it took."""

    schedule: Schedule
    lived: Lived
    simulations: int


class _Search:
    """Tries schedules on one draw of the load, or on several: what counts is their mean."""

    def __init__(self, draws: Sequence[tuple[int, Setting]], bin_s: float, budget: int) -> None:
        self.draws, self.bin_s, self.budget = draws, bin_s, budget
        self.setting = draws[0][1]
        self.used = 0
        self.best: tuple[float, Schedule, Lived] | None = None
        low, high = self.setting.load.score
        self.first, self.last = int(low // bin_s), math.ceil(high / bin_s)

    def run(self, ready: Counts) -> _Tried:
        schedule = Schedule(self.bin_s, np.clip(ready, self.setting.min_replicas, self.setting.max_replicas))
        self.used += 1
        runs = [carry_out(schedule, setting, seed) for seed, setting in self.draws]
        tried = _Tried(fmean(lived.attainment for lived in runs), fmean(lived.gpu_hours for lived in runs))
        if tried.attainment >= self.setting.share and (self.best is None or tried.gpu_hours < self.best[0] - 1e-9):
            self.best = (tried.gpu_hours, schedule, runs[0])
        return tried


def carry_out(schedule: Schedule, setting: Setting, seed: int) -> Lived:
    """What a schedule does on a load, its replicas ordered in time."""
    counts = schedule.ordered(setting.careful_lead_s)

    def controller(_: Setting, cluster: Cluster, __: int) -> Controller:
        return ScheduleController(cluster, counts, schedule.bin_s)

    return live(setting, controller, seed)


def find_schedule(
    setting: Setting, seed: int, *, free_moves: bool = False, budget: int = 200, bin_s: float | None = None
) -> Oracle | None:
    """The cheapest schedule found that keeps the objective; None when even the most replicas do not.

    Args:
        free_moves: moves are instant and cost nothing.
        budget: simulations, at most about this many.
        bin_s: of the schedule; None: as long as suits the load.
    """
    if free_moves:
        setting = replace(setting, lead_s=0.0, lead_sigma_log=0.0, mixed_starts=None)
    bin_s = _bin_s(setting) if bin_s is None else bin_s
    return _found(_Search([(seed, setting)], bin_s, budget), _work_per_bin(setting, bin_s))


def schedule_for_rate(scored: Callable[[int], Setting], *, budget: int = 60) -> Oracle | None:
    """The cheapest schedule found that keeps the objective on average over other draws of a load's rate.

    It is fixed beforehand and looks at nothing. None where there is but one draw, or even the most replicas do not.

    Args:
        scored: the setting of a seed.
        budget: schedules, at most about this many, each simulated on several draws.
    """
    draws = [(seed, scored(seed)) for seed in range(_FIRST_DRAW, _FIRST_DRAW + _AVERAGED)]
    if draws[0][1].load is draws[1][1].load:
        return None
    bin_s = _bin_s(draws[0][1])
    work = np.mean([_work_per_bin(setting, bin_s) for _, setting in draws], axis=0)
    tried = draws[: _TRIED_SHORT if _short(draws[0][1]) else _TRIED_DAY]
    return _found(_Search(tried, bin_s, budget), work)


def _bin_s(setting: Setting) -> float:
    return 15.0 if _short(setting) else 60.0


def _short(setting: Setting) -> bool:
    return setting.load.score[1] - setting.load.score[0] <= 3 * 3_600


def _found(search: _Search, work: Float) -> Oracle | None:
    starts = []
    for window_s in _WINDOWS_S:
        for deviations in _DEVIATIONS:
            found = _bisect(search, work, max(1, round(window_s / search.bin_s)), deviations)
            if found is not None:
                starts.append(found)
    if search.best is None:
        return None
    for _, ready in sorted(starts, key=lambda s: s[0])[:_FINALISTS]:
        _trim(search, ready)
    _, schedule, lived = search.best
    return Oracle(schedule, lived, search.used)


def _work_per_bin(setting: Setting, bin_s: float) -> Float:
    """Engine time per second that each bin's arrivals bring."""
    a, p = setting.load.arrivals, setting.profile
    work = request_work_s(p, a.prompt_tokens.astype(np.float64), a.output_tokens.astype(np.float64))
    bins = math.ceil(setting.load.end_s / bin_s) + 1
    return np.bincount((a.arrival_s // bin_s).astype(np.int64), weights=work, minlength=bins)[:bins] / bin_s


def request_work_s(profile: Profile, prompt: Float, output: Float) -> Float:
    """Time a request takes on an otherwise busy engine; an iteration's fixed cost is shared by a full batch."""
    tokens = prompt + output / 2
    shared = output * profile.base_s / profile.max_batch
    prefill = profile.prefill_token_s * prompt + profile.prefill_token_sq_s * prompt**2 / 2
    return np.asarray(shared + prefill + output * (profile.sequence_s + profile.kv_token_s * tokens))


def _family(work: Float, window: int, deviations: float, capacity: float) -> Counts:
    """Centred moving average, raised to cover the bin itself by so many square roots."""
    kernel = np.full(window, 1.0 / window)
    smooth = np.convolve(np.pad(work, (window // 2, window - 1 - window // 2), mode="edge"), kernel, mode="valid")
    scale = work[work > 0].mean() if (work > 0).any() else 1.0
    raised = smooth + deviations * 0.1 * np.sqrt(np.maximum(smooth, 0.0) * scale)
    return np.ceil(raised / capacity - 1e-9).astype(np.int64)


def _bisect(search: _Search, work: Float, window: int, deviations: float) -> tuple[float, Counts] | None:
    """Largest capacity with which the family keeps the objective."""
    top = float(work.max())
    low, high = math.log(max(top / (2 * search.setting.max_replicas), 1e-9)), math.log(max(2 * top, 1e-6))
    found: tuple[float, Counts] | None = None
    for _ in range(_BISECTIONS):
        if search.used >= search.budget:
            break
        middle = (low + high) / 2
        ready = _family(work, window, deviations, math.exp(middle))
        lived = search.run(ready)
        if lived.attainment >= search.setting.share:
            low = middle
            if found is None or lived.gpu_hours < found[0]:
                found = (lived.gpu_hours, ready)
        else:
            high = middle
    return found


def _trim(search: _Search, start: Counts) -> None:
    """Take one replica off stretch by stretch, long ones first, as long as the objective holds."""
    ready = np.clip(start, search.setting.min_replicas, search.setting.max_replicas)
    share = search.setting.share
    for length in _lengths(search):
        for begin in range(search.first, search.last, length):
            if search.used >= search.budget:
                return
            trial = ready.copy()
            part = trial[begin : begin + length]
            if not (part > search.setting.min_replicas).any():
                continue
            part[:] = np.maximum(part - 1, search.setting.min_replicas)
            best = search.best
            lived = search.run(trial)
            if lived.attainment >= share and best is not None and lived.gpu_hours <= best[0]:
                ready = trial


def _lengths(search: _Search) -> Sequence[int]:
    span = search.last - search.first
    return sorted({max(1, span // parts) for parts in (6, 12, 24, 48)}, reverse=True)
