"""Clairvoyant oracles: the cheapest schedules found with known arrivals, on the same engine.

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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.lab.replay.setting import ScoredLoad, Setting
from infra.lab.replay.simulation import Controller, RunResult, simulate
from infra.simulator.arrivals import Arrivals, RateProfile
from infra.simulator.cluster import Cluster
from infra.simulator.profiles import EngineProfile

Counts = NDArray[np.int64]
Float = NDArray[np.float64]

_WINDOWS_S = (30.0, 90.0, 240.0)
_DEVIATIONS = (0.0, 1.0)
_BISECTIONS = 7
_FINALISTS = 2
# Draws of a known rate: its work is averaged over all of these, a schedule is tried on the first of them, on more where
# a draw holds few requests. No seed that is scored, or trained on, comes near.
_FIRST_DRAW, _AVERAGED, _TRIAL_DRAWS_DAY, _TRIAL_DRAWS_SHORT = 50_000, 12, 3, 10


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
        count = int(self._counts[min(self._k, len(self._counts) - 1)])
        if count != self._cluster.num_current:
            self._cluster.set_replicas(count, self._cluster.now_s)
        self._k += 1
        self.next_s = self._k * self._bin_s


@dataclass(frozen=True, slots=True)
class _TrialMeans:
    """Means of a schedule over the draws it is searched on."""

    attainment: float
    gpu_hours: float


@dataclass(frozen=True, slots=True, eq=False)
class OracleSchedule:
    """The best schedule found, its run, and how many simulations it took."""

    schedule: Schedule
    run: RunResult
    simulations: int


class _Search:
    """Tries schedules on one draw of the load, or on several: what counts is their mean."""

    def __init__(self, draws: Sequence[tuple[int, Setting]], bin_s: float, budget: int) -> None:
        self.draws, self.bin_s, self.budget = draws, bin_s, budget
        self.setting = draws[0][1]
        self.used = 0
        self.best: tuple[float, Schedule, RunResult] | None = None
        low, high = self.setting.load.score
        self.first, self.last = int(low // bin_s), math.ceil(high / bin_s)

    def run(self, ready: Counts) -> _TrialMeans:
        schedule = Schedule(self.bin_s, np.clip(ready, self.setting.min_replicas, self.setting.max_replicas))
        self.used += 1
        runs = [run_schedule(schedule, setting, seed) for seed, setting in self.draws]
        trial = _TrialMeans(fmean(run.attainment for run in runs), fmean(run.gpu_hours for run in runs))
        if trial.attainment >= self.setting.share and (self.best is None or trial.gpu_hours < self.best[0] - 1e-9):
            self.best = (trial.gpu_hours, schedule, runs[0])
        return trial


def run_schedule(schedule: Schedule, setting: Setting, seed: int) -> RunResult:
    """What a schedule does on a load, its replicas ordered in time."""
    counts = schedule.ordered(setting.careful_lead_s)

    def controller(_: Setting, cluster: Cluster, __: int) -> Controller:
        return ScheduleController(cluster, counts, schedule.bin_s)

    return simulate(setting, controller, seed)


def find_schedule(
    setting: Setting, seed: int, *, free_moves: bool = False, budget: int = 200, bin_s: float | None = None
) -> OracleSchedule | None:
    """The cheapest schedule found that keeps the objective; None when even the most replicas do not.

    Args:
        free_moves: moves are instant and cost nothing.
        budget: simulations, at most about this many.
        bin_s: of the schedule; None: as long as suits the load.
    """
    if free_moves:
        setting = replace(setting, lead_s=0.0, lead_sigma_log=0.0, mixed_starts=None)
    bin_s = _bin_s(setting) if bin_s is None else bin_s
    return _best_schedule(_Search([(seed, setting)], bin_s, budget), _work_per_bin(setting, bin_s))


def schedule_for_rate(scored: Callable[[int], Setting], *, budget: int = 60) -> OracleSchedule | None:
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
    trial_draws = draws[: _TRIAL_DRAWS_SHORT if _short(draws[0][1]) else _TRIAL_DRAWS_DAY]
    return _best_schedule(_Search(trial_draws, bin_s, budget), work)


def _bin_s(setting: Setting) -> float:
    return 15.0 if _short(setting) else 60.0


def _short(setting: Setting) -> bool:
    return setting.load.score[1] - setting.load.score[0] <= 3 * 3_600


def _best_schedule(search: _Search, work: Float) -> OracleSchedule | None:
    starts = []
    for window_s in _WINDOWS_S:
        for deviations in _DEVIATIONS:
            start = _bisect(search, work, max(1, round(window_s / search.bin_s)), deviations)
            if start is not None:
                starts.append(start)
    if search.best is None:
        return None
    for _, ready in sorted(starts, key=lambda s: s[0])[:_FINALISTS]:
        _trim(search, ready)
    _, schedule, run = search.best
    return OracleSchedule(schedule, run, search.used)


def _work_per_bin(setting: Setting, bin_s: float) -> Float:
    """Engine time per second that each bin's arrivals bring."""
    a, p = setting.load.arrivals, setting.profile
    work = request_work_s(p, a.prompt_tokens.astype(np.float64), a.output_tokens.astype(np.float64))
    bins = math.ceil(setting.load.end_s / bin_s) + 1
    return np.bincount((a.arrival_s // bin_s).astype(np.int64), weights=work, minlength=bins)[:bins] / bin_s


def request_work_s(profile: EngineProfile, prompt: Float, output: Float) -> Float:
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
    best: tuple[float, Counts] | None = None
    for _ in range(_BISECTIONS):
        if search.used >= search.budget:
            break
        middle = (low + high) / 2
        ready = _family(work, window, deviations, math.exp(middle))
        run = search.run(ready)
        if run.attainment >= search.setting.share:
            low = middle
            if best is None or run.gpu_hours < best[0]:
                best = (run.gpu_hours, ready)
        else:
            high = middle
    return best


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
            run = search.run(trial)
            if run.attainment >= share and best is not None and run.gpu_hours <= best[0]:
                ready = trial


def _lengths(search: _Search) -> Sequence[int]:
    span = search.last - search.first
    return sorted({max(1, span // parts) for parts in (6, 12, 24, 48)}, reverse=True)


# The non-anticipative oracle: it knows the whole load except the surprises, which it sees only when they begin.
#
# Replicas that are ready within a lead time of a surprise were ordered before it, for the load as it then seemed. That
# schedule is found for a counterfactual load, in which the last lead time repeats (`without_surprises`). Against a
# surprise the oracle can hold a reserve, a constant share more replicas at all times. Afterwards it can clear the
# queue.
#
#     counterfactual load ─▶ best schedule ─▶ reserve, and replicas that clear the queue ─▶ run on the real load
#
# The result is the best schedule found, not a proven optimum.


# Surprises of a load: named by second, or found where the rate rises by a factor within the lead time.
#
# A surprise is a property of the load, not of a policy. It is named on the command line, by a fixed rule, or, for
# built-in loads, with the load.


_BUILT_IN: Final = {"flash-crowd": "1800", "regime-shift": "2400", "longer-answers": "7200"}
_CALM_S: Final = 1_800.0  # whose highest rate a rise is measured from
_MAX_SURPRISES: Final = 1_000  # surprises


@dataclass(frozen=True, slots=True)
class SurpriseOptions:
    """Surprises: at these seconds of the scored interval, or wherever the rate rises by this factor."""

    at_s: tuple[float, ...] = ()
    factor: float | None = None


def parse_surprises(text: str | None, rate: str | None) -> SurpriseOptions:
    """`SECONDS,...` or `xFACTOR`; without a word those that a built-in load is made of."""
    text = _BUILT_IN.get(rate or "", "") if text is None else text
    if text.startswith("x"):
        factor = _number(text[1:], text)
        if not 1.0 < factor <= 1_000.0:
            raise HarmonyError(f"--surprise: a rate must rise by a factor above 1, such as x1.33, got {text!r}.", 2)
        return SurpriseOptions(factor=factor)
    at_s = tuple(_number(part, text) for part in text.split(",") if part.strip())
    if any(not 0.0 <= second < math.inf for second in at_s) or list(at_s) != sorted(set(at_s)):
        raise HarmonyError(f"--surprise: seconds must ascend from 0 or more, got {text!r}.", 2)
    return SurpriseOptions(at_s)


def _number(part: str, text: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise HarmonyError(
            "--surprise must be seconds from the beginning of what is scored, such as 1800 or 36000,51300, or x1.33 "
            f"for wherever a rate file rises so many times within the lead time, got {text!r}.",
            2,
        ) from None


def surprise_times(
    options: SurpriseOptions, rates: RateProfile | None, scored_s: float, lead_s: float
) -> tuple[float, ...]:
    """Seconds of what is scored at which a surprise begins; at least a lead time lies between two.

    Args:
        rates: of what is scored; None where requests were recorded.
        scored_s: how long it lasts.
    """
    if options.factor is not None:
        if rates is None:
            raise HarmonyError(
                "--surprise x1.33 looks at the rates of a rate file: of recorded requests name seconds.", 2
            )
        return tuple(rate_rises(rates, options.factor, lead_s))
    late = [second for second in options.at_s if second >= scored_s]
    if late:
        raise HarmonyError(f"--surprise: what is scored ends after {scored_s:.0f} s, before {late[0]:g}.", 2)
    if len(options.at_s) > 1 and min(np.diff(options.at_s)) < lead_s:
        raise HarmonyError(f"--surprise: two within a lead time of {lead_s:g} s are one; name the first of them.", 2)
    return options.at_s


def rate_rises(rates: RateProfile, factor: float, within_s: float) -> list[float]:
    """Where a rate leaves what it was at most in the half hour before, and is `factor` times that `within_s` later."""
    rises_s: list[float] = []
    edges, values = rates.edges_s, rates.rates_rps
    for k in range(1, len(values)):
        begin_s = float(edges[k])
        if begin_s < _CALM_S or (rises_s and begin_s < rises_s[-1] + within_s):
            continue
        first = int(np.searchsorted(edges, begin_s - _CALM_S, side="right")) - 1
        most = float(values[first:k].max())
        end = max(int(np.searchsorted(edges, begin_s + within_s, side="left")), k + 1)
        if values[k] > most > 0.0 and float(values[k:end].max()) >= factor * most:
            rises_s.append(begin_s)
    if len(rises_s) > _MAX_SURPRISES:
        raise HarmonyError(f"--surprise x{factor:g}: {len(rises_s):,} surprises are none; use a larger factor.", 2)
    return rises_s


def without_surprises(load: ScoredLoad, surprises_s: Sequence[float], lead_s: float) -> ScoredLoad:
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
    return ScoredLoad(load.name, Arrivals.joined([*parts, load.arrivals.between(upto_s, math.inf)]), load.score)


_SURPRISE_BIN_S: Final = 10.0  # usual lead times are whole numbers of these
_LOOKS_AHEAD_S: Final = 120.0  # half of the longest window over which schedules are averaged
_BEFORE_S: Final = 600.0  # what is ready for a surprise is what was in these seconds at most
# Parts of the misses allowed that the schedule may use up where nothing surprises.
_MISS_BUDGET_SHARES: Final = (1.0, 0.25)
_ALWAYS_S: Final = 1e9
# Replicas more, and for how many seconds, once the first can be there.
_QUEUE_CLEARING: Final = (
    (0, 0.0), (2, 120.0), (4, 120.0), (8, 120.0), (4, 300.0), (16, 120.0), (1, _ALWAYS_S), (3, _ALWAYS_S),
)  # fmt: skip
_ATTAINMENT_TOLERANCE: Final = 0.001  # of the attainment
_RESERVE_RATIO: Final = 1.1  # shares held ready are powers of this, less one


@dataclass(frozen=True, slots=True, eq=False)
class ReserveRun:
    """A run, and the share of replicas that it held in reserve for surprises."""

    run: RunResult
    reserve_ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class CausalSchedules:
    """The best found.

    Attributes:
        unready: keeps the most of those that hold nothing ready, for the least of those that keep as much.
        ready: keeps the objective for the least; None where none was found.
    """

    unready: ReserveRun
    ready: ReserveRun | None
    simulations: int


def causal_bound(setting: Setting, seed: int, surprises_s: Sequence[float], budget: int) -> CausalSchedules | None:
    """The best found for one draw of a load.

    Args:
        surprises_s: seconds of the load, ascending, at least a lead time apart.
        budget: simulations of the search for schedules, about; carrying them out takes some hundred more.

    Returns:
        None where even the most replicas do not keep the objective without any surprise.
    """
    lead_s = setting.careful_lead_s
    calm_setting = setting.with_load(without_surprises(setting.load, surprises_s, lead_s))
    used, bases = 0, []
    for part in _MISS_BUDGET_SHARES:
        stricter = replace(calm_setting, share=1.0 - part * (1.0 - setting.share))
        oracle = find_schedule(stricter, seed, budget=budget // len(_MISS_BUDGET_SHARES), bin_s=_SURPRISE_BIN_S)
        if oracle is not None:
            used += oracle.simulations
            bases.append(_unforeseen(oracle.schedule.ready, surprises_s, lead_s))
    if not bases:
        return None
    search = _ReserveSearch(setting, seed, bases, [_first_free(at_s, lead_s) for at_s in surprises_s])
    unready = search.runs(0)
    most = max(run.attainment for run in unready) - _ATTAINMENT_TOLERANCE
    cheapest = min((run for run in unready if run.attainment >= most), key=lambda run: run.gpu_hours)
    ready = search.least()
    return CausalSchedules(ReserveRun(cheapest, 0.0), ready, used + search.used)


def _first_free(at_s: float, lead_s: float) -> int:
    """First bin whose replicas may have been ordered after a surprise."""
    return math.ceil(at_s / _SURPRISE_BIN_S - 1e-9) + math.ceil(lead_s / _SURPRISE_BIN_S - 1e-9)


def _unforeseen(ready: Counts, surprises_s: Sequence[float], lead_s: float) -> Counts:
    """The schedule without what its averages know of a surprise before it begins."""
    counts = ready.copy()
    for at_s in surprises_s:
        begin = int((at_s - max(_LOOKS_AHEAD_S - lead_s, 0.0)) // _SURPRISE_BIN_S)
        before = counts[max(begin - round(_BEFORE_S / _SURPRISE_BIN_S), 0) : max(begin, 1)]
        span = slice(max(begin, 0), _first_free(at_s, lead_s))
        counts[span] = np.minimum(counts[span], before.max())
    return counts


class _ReserveSearch:
    """Runs of schedules that hold a share more replicas until the last surprise is answered; `power` says which."""

    def __init__(self, setting: Setting, seed: int, bases: Sequence[Counts], free: Sequence[int]) -> None:
        self._setting, self._seed, self._bases, self._free = setting, seed, bases, free
        self.used = 0
        self._best: ReserveRun | None = None

    def runs(self, power: int) -> list[RunResult]:
        """All with this share."""
        runs, setting = [], self._setting
        for base in self._bases:
            for more, for_s in _QUEUE_CLEARING:
                ready = base.copy()
                before = ready[: self._free[-1]]
                before[:] = np.ceil(before * _RESERVE_RATIO**power - 1e-9)
                for free in self._free:
                    ready[free : free + round(for_s / _SURPRISE_BIN_S)] += more
                ready = np.clip(ready, setting.min_replicas, setting.max_replicas)
                runs.append(run_schedule(Schedule(_SURPRISE_BIN_S, ready), setting, self._seed))
        self.used += len(runs)
        for run in runs:
            cheaper = self._best is None or run.gpu_hours < self._best.run.gpu_hours
            if run.attainment >= setting.share and cheaper:
                self._best = ReserveRun(run, _RESERVE_RATIO**power - 1.0)
        return runs

    def least(self) -> ReserveRun | None:
        """The cheapest found that keeps the objective, once `runs(0)` were tried."""
        low, high = 0, 0
        most = math.ceil(math.log(self._setting.max_replicas) / math.log(_RESERVE_RATIO))
        while self._best is None and high < most:
            low, high = high, min(max(2 * high, 1), most)
            self.runs(high)
        while self._best is not None and high - low > 1:
            middle = (low + high) // 2
            is_enough = any(run.attainment >= self._setting.share for run in self.runs(middle))
            low, high = (low, middle) if is_enough else (middle, high)
        return self._best
