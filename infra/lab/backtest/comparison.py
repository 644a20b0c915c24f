"""Counterfactual comparison: the same arrivals under the recorded replicas and under HARMONY, on one engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.console.progress import ReportProgress
from infra.lab.backtest.history import BIN_S, Float, RecordedHistory
from infra.lab.plots import GoodRequests
from infra.lab.replay.oracle import Schedule, ScheduleController
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS, harmony_controller
from infra.lab.replay.setting import ScoredLoad, Setting
from infra.lab.replay.simulation import NewController, RunResult, simulate
from infra.simulator.arrivals import MAX_TOKENS, Arrivals, RateProfile, Tokens
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile
from infra.simulator.sizing import benchmark_rps
from streams.config import StreamConfig

_TOKEN_SIGMA = 0.6
_FIT_S = 3_600.0
_FIT_STEPS = 7
_FIT_RANGE = 16.0
_TESTED_RPS = 1.0
# Their replicas are ordered to within so many parts of a minute.
_PARTS = 12
_LEAST_WINDOW_S, _MOST_WINDOWS = 600.0, 60
# Work of a run of HARMONY, beside that of recorded replicas.
_HARMONY_WORK = 8.0
_RECORDED, _HARMONY = "your replicas", "HARMONY"


@dataclass(frozen=True, slots=True)
class ComparisonTerms:
    """Conditions that are equal on both sides.

    Attributes:
        share: the objective, wanted share of good requests.
        step_s: slot length of HARMONY.
        policy: of HARMONY, but for its workload.
    """

    profile: EngineProfile
    objective: Objective
    share: float
    lead_s: float
    min_replicas: int
    max_replicas: int
    step_s: float
    policy: Policy
    prompt: Tokens
    output: Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Results of a backtest: both runs of each seed.

    Attributes:
        terms: with the engine as fitted.
        speed: factor by which the engine's times were multiplied to fit; None = not fitted.
        capacity_rps: of one replica, as a load test of that engine says.
        score: scored part of the history, seconds from its start.
        recorded, harmony: one run per seed; requests are kept only with `keep_requests`.
        good: share of good requests by window of the first seed, for recorded and HARMONY.
    """

    terms: ComparisonTerms
    speed: float | None
    capacity_rps: float
    score: tuple[float, float]
    recorded: list[RunResult]
    harmony: list[RunResult]
    good: tuple[GoodRequests, GoodRequests]


def compare(
    history: RecordedHistory,
    terms: ComparisonTerms,
    seeds: int,
    *,
    fitted: bool,
    progress: ReportProgress,
    keep_requests: bool = False,
) -> Comparison:
    """Return the runs of a filled history under the recorded replicas and under HARMONY.

    Raises:
        HarmonyError: it is too short, or the engine cannot keep the objective at all.
    """
    end_s = len(history.rate_rps) * float(BIN_S)
    warm_s = _warm_s(terms.step_s)
    if end_s < 3 * warm_s:
        shorter = " or shorter steps" if warm_s > _warm_s(StreamConfig().step_ms / 1000) else ""
        raise HarmonyError(
            f"The history lasts {end_s / 3600:.1f} h; with steps of {terms.step_s:g} s at least "
            f"{3 * warm_s / 3600:.1f} h are needed: take more days{shorter}.",
            2,
        )
    rates = rate_profile(history, terms)
    speed = None
    if fitted and history.tpot_s is not None:
        speed = fit_speed(history, rates, terms)
        terms = replace(terms, profile=scaled(terms.profile, speed))
        progress(f"engine {terms.profile.name}, times x {speed:.2f}")
    lengths = load_test_requests(rates.between(0.0, warm_s))
    capacity = benchmark_rps(terms.profile, lengths, terms.objective, terms.share, 0)
    if capacity is None:
        raise HarmonyError(
            f"On an idle replica of {terms.profile.name} fewer than {terms.share:.1%} of these requests keep "
            f"{terms.objective.ttft_s:g} s to the first token and {terms.objective.tpot_s:g} s per token: relax "
            "--slo-ttft or --slo-tpot, or choose another --engine.",
            2,
        )
    baseline = recorded_controller(history.replicas, terms.lead_s)
    harmony = harmony_controller(HARMONY_VARIANTS["harmony"], capacity, terms.policy)
    runs: dict[str, list[RunResult]] = {_RECORDED: [], _HARMONY: []}
    good: list[GoodRequests] = []
    total = seeds * (1.0 + _HARMONY_WORK)
    for seed in range(seeds):
        load = ScoredLoad(history.workload, rates.arrivals(seed), (warm_s, end_s))
        setting = setting_of(load, history, terms)
        before = seed * (1.0 + _HARMONY_WORK)
        for who, controller, first, work in (
            (_RECORDED, baseline, before, 1.0),
            (_HARMONY, harmony, before + 1.0, _HARMONY_WORK),
        ):
            text = f"{who}, draw {seed + 1} of {seeds}"
            run = simulate(setting, controller, seed, watch=_watch(progress, text, first / total, work / total))
            if seed == 0:
                good.append(good_by_window(run))
            # Weeks hold millions of requests, and the figures have been taken.
            runs[who].append(run if keep_requests else replace(run, requests=[]))
    return Comparison(terms, speed, capacity, (warm_s, end_s), runs[_RECORDED], runs[_HARMONY], (good[0], good[1]))


def _warm_s(step_s: float) -> float:
    """Length of HARMONY's context, which must be full before it is scored."""
    return StreamConfig(step_ms=round(step_s * 1000)).context_steps * step_s


def _watch(progress: ReportProgress, text: str, first: float, work: float) -> Callable[[float], None]:
    """Reports the share of one run as one of the whole."""
    return lambda share: progress(text, first + work * share)


def load_test_requests(before: RateProfile) -> Arrivals:
    """What an operator's load test sends: one request/s with the lengths of a part that is not scored.

    Where nothing is recorded of it, each of its minutes counts alike, with the lengths that are assumed.
    """
    profile = before if before.mean_rps > 0 else replace(before, rates_rps=np.ones_like(before.rates_rps))
    return profile.thinned(_TESTED_RPS).arrivals(0)


def good_by_window(run: RunResult) -> GoodRequests:
    """GoodRequests of the scored part, and the share of good requests in each; NaN in one without requests."""
    start_s, end_s = run.setting.load.score
    window_s = max(_LEAST_WINDOW_S, (end_s - start_s) / _MOST_WINDOWS)
    starts = np.arange(start_s, end_s - window_s / 2, window_s)
    good, everything = np.zeros(len(starts)), np.zeros(len(starts))
    for request in run.requests:
        k = int((request.arrival_s - start_s) // window_s)
        if 0 <= k < len(starts) and request.arrival_s < end_s:
            everything[k] += 1
            good[k] += run.setting.objective.met(request)
    with np.errstate(invalid="ignore"):
        return GoodRequests(starts, window_s, good / everything)


def recorded_controller(replicas: Float, lead_s: float) -> NewController:
    """Orders replicas so that those recorded are ready when they were; a dip shorter than the lead time is held."""
    schedule = Schedule(BIN_S / _PARTS, np.repeat(replicas.astype(np.int64), _PARTS))
    counts = schedule.ordered(lead_s)
    return lambda _, cluster, __: ScheduleController(cluster, counts, schedule.bin_s)


def setting_of(load: ScoredLoad, history: RecordedHistory, terms: ComparisonTerms) -> Setting:
    """The cell: their replicas at the beginning, the same bounds for both."""
    return Setting(
        load=load,
        profile=terms.profile,
        objective=terms.objective,
        share=terms.share,
        lead_s=terms.lead_s,
        min_replicas=terms.min_replicas,
        max_replicas=terms.max_replicas,
        initial_replicas=max(1, int(history.replicas[0])),
        step_s=terms.step_s,
    )


def rate_profile(history: RecordedHistory, terms: ComparisonTerms) -> RateProfile:
    """Load and lengths as the replay engine draws arrivals from them."""
    edges = np.arange(len(history.rate_rps) + 1, dtype=np.float64) * BIN_S
    return RateProfile(
        history.workload,
        edges,
        np.nan_to_num(history.rate_rps),
        tuple(_law(mean, terms.prompt) for mean in history.prompt_tokens),
        tuple(_law(mean, terms.output) for mean in history.output_tokens),
    )


def _law(mean: float, otherwise: Tokens) -> Tokens:
    if math.isnan(mean):
        return otherwise
    return Tokens(min(max(mean, 1.0), float(MAX_TOKENS)), _TOKEN_SIGMA)


def scaled(profile: EngineProfile, speed: float) -> EngineProfile:
    """An engine all of whose times are longer by this factor."""
    return replace(
        profile,
        base_s=profile.base_s * speed,
        prefill_token_s=profile.prefill_token_s * speed,
        prefill_token_sq_s=profile.prefill_token_sq_s * speed,
        sequence_s=profile.sequence_s * speed,
        kv_token_s=profile.kv_token_s * speed,
    )


def fit_speed(history: RecordedHistory, rates: RateProfile, terms: ComparisonTerms) -> float:
    """Factor with which their replicas take as long per token as was measured, over their busiest hour."""
    assert history.tpot_s is not None
    bins = min(len(history.rate_rps), round(_FIT_S / BIN_S))
    sums = np.convolve(np.nan_to_num(history.rate_rps), np.ones(bins), "valid")
    start = int(np.argmax(sums))
    part = rates.between(start * float(BIN_S), (start + bins) * float(BIN_S))
    counts = history.replicas[start : start + bins]
    load = ScoredLoad(history.workload, part.arrivals(0), (0.0, bins * float(BIN_S)))
    base = setting_of(load, history, terms)

    def mean_tpot_s(speed: float) -> float:
        setting = replace(base, profile=scaled(terms.profile, speed), initial_replicas=max(1, int(counts[0])))
        run = simulate(setting, recorded_controller(counts, terms.lead_s), 0)
        times = [r.tpot_s for r in run.requests if not math.isnan(r.finish_s)]
        return float(np.mean(times)) if times else math.inf

    low, high = -math.log(_FIT_RANGE), math.log(_FIT_RANGE)
    for _ in range(_FIT_STEPS):
        middle = (low + high) / 2
        slower = mean_tpot_s(math.exp(middle)) < history.tpot_s
        low, high = (middle, high) if slower else (low, middle)
    return math.exp((low + high) / 2)
