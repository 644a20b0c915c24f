"""What a clairvoyant would have paid: schedules searched with known arrivals, on the same engine.

Two bounds: moves that are free and instant, and moves that take the cell's own lead time. A schedule says how many
replicas shall be ready in each bin of time; the second oracle orders them one lead time ahead, and so keeps a replica
through a dip that is shorter than that. The search is a heuristic: the best schedule found, not a proven optimum.

    work per bin ─▶ family: ceil((mean work over a window + z sqrt) / capacity), capacity bisected to the objective
                └▶ the cheapest few ─▶ trimmed bin by bin while the objective holds
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from infra.replay.controllers import Controller
from infra.replay.live import Lived, live
from infra.replay.setting import Setting
from infra.simulator.cluster import Cluster
from infra.simulator.profiles import Profile

Counts = NDArray[np.int64]
Float = NDArray[np.float64]

_WINDOWS_S = (30.0, 90.0, 240.0)
_DEVIATIONS = (0.0, 1.0)
_BISECTIONS = 7
_FINALISTS = 2


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


@dataclass(frozen=True, slots=True, eq=False)
class Oracle:
    """The best schedule found, its run, and how many simulations it took."""

    schedule: Schedule
    lived: Lived
    simulations: int


class _Search:
    def __init__(self, setting: Setting, seed: int, bin_s: float, budget: int) -> None:
        self.setting, self.seed, self.bin_s, self.budget = setting, seed, bin_s, budget
        self.used = 0
        self.best: tuple[float, Schedule, Lived] | None = None
        low, high = setting.load.score
        self.first, self.last = int(low // bin_s), math.ceil(high / bin_s)
        # Before the scored interval nothing is charged but what reaches into it, so it is given what it may want.
        self.lead_in = setting.initial_replicas

    def run(self, ready: Counts) -> Lived:
        setting = self.setting
        bounded = np.clip(ready, setting.min_replicas, setting.max_replicas)
        schedule = Schedule(self.bin_s, bounded)
        counts = schedule.ordered(setting.lead_s * (1.0 + setting.lead_sigma_log))

        def controller(_: Setting, cluster: Cluster, __: int) -> Controller:
            return ScheduleController(cluster, counts, self.bin_s)

        self.used += 1
        lived = live(setting, controller, self.seed)
        if lived.attainment >= setting.share and (self.best is None or lived.gpu_hours < self.best[0] - 1e-9):
            self.best = (lived.gpu_hours, schedule, lived)
        return lived


def find_schedule(setting: Setting, seed: int, *, free_moves: bool = False, budget: int = 200) -> Oracle | None:
    """The cheapest schedule found that keeps the objective; None when even the most replicas do not.

    Args:
        free_moves: moves are instant and cost nothing.
        budget: simulations, at most about this many.
    """
    if free_moves:
        setting = replace(setting, lead_s=0.0, lead_sigma_log=0.0)
    span_s = setting.load.score[1] - setting.load.score[0]
    bin_s = 15.0 if span_s <= 3 * 3_600 else 60.0
    search = _Search(setting, seed, bin_s, budget)
    work = _work_per_bin(setting, bin_s)
    starts = []
    for window_s in _WINDOWS_S:
        for deviations in _DEVIATIONS:
            found = _bisect(search, work, max(1, round(window_s / bin_s)), deviations)
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
