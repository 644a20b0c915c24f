"""From options to cells: which part of a load is trained on, which is scored, and what is known beforehand.

* A request trace: its first `train_share` is the training part, the rest is scored; every policy lives through both.
* A rate file of hours: preceded by a lead-in at its first rate, all of it scored; another Poisson draw is trained on.
* A day of a longer rate file: scored; the day before is trained on, its last hours are the lead-in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from infra.console.errors import HarmonyError
from infra.lab.replay.policies.catalogue import OperatorKnowledge
from infra.lab.replay.policies.harmony import EARLY_STEPS
from infra.lab.replay.policies.predictive import BIN_S
from infra.lab.replay.setting import START_TS_MS, ScoredLoad, Setting, Telemetry, prior_days
from infra.simulator.arrivals import DAY_S, Arrivals, RateProfile, Trace
from infra.simulator.cluster import MixedStarts
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile
from infra.simulator.sizing import benchmark_rps, fixed_need, lone_attainment

LEAD_IN_S = 1_200.0
DAY_LEAD_IN_S = 7_200.0
TRAIN_FROM_S = 120.0
LONGEST_S = 366 * DAY_S
_TRAIN_SEED = 10_007
_PAST_SEED = 20_011


@dataclass(frozen=True, slots=True)
class CellOptions:
    """What the command line fixes for a cell beside its load."""

    profile: EngineProfile
    objective: Objective
    share: float
    lead_s: float
    lead_sigma_log: float
    min_replicas: int
    max_replicas: int
    step_s: float
    scrape_s: float = 0.0
    delay_s: float = 0.0
    noise: float = 0.0
    mixed_starts: MixedStarts | None = None
    past_days: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One load and lead time, ready to replay.

    Attributes:
        scored: the setting of a seed.
        rates: of what is scored, from its beginning; None where requests were recorded.
    """

    name: str
    training: Setting
    scored: Callable[[int], Setting]
    knowledge: OperatorKnowledge
    rates: RateProfile | None = None


def trace_cell(trace: Trace, options: CellOptions, train_share: float) -> Cell:
    """A recorded request trace."""
    if trace.end_s > LONGEST_S:
        raise HarmonyError(
            f"{trace.name} lasts {trace.end_s / DAY_S:.4g} days, more than a year: cut it, or correct its times.", 2
        )
    start_s = float(trace.arrivals.arrival_s[-1]) * train_share
    head = trace.arrivals.between(0.0, start_s)
    if not len(head) and start_s > TRAIN_FROM_S:
        raise HarmonyError(
            f"No request arrives in the first {start_s:.0f} s of {trace.name}, its training part: count times from "
            "where the load begins, or use a larger --train-share.",
            2,
        )
    if not len(head) or start_s <= TRAIN_FROM_S:
        raise HarmonyError(
            f"The load lasts {trace.end_s:.0f} s, so that its training part of {start_s:.0f} s holds too little: "
            "use a longer trace or a larger --train-share.",
            2,
        )
    full_load = ScoredLoad(trace.name, trace.arrivals, (start_s, trace.end_s))
    # While HARMONY's context fills it holds what there is, so that nobody's trial is scored on that.
    warm_s = EARLY_STEPS * options.step_s + TRAIN_FROM_S
    training = ScoredLoad(trace.name, head, (warm_s if warm_s < 0.8 * start_s else start_s / 4, start_s))
    scored = _setting(full_load, options, head)
    return Cell(trace.name, replace(scored, load=training), lambda _: scored, _knowledge(scored, head, np.empty(0)))


def rate_cell(profile: RateProfile, options: CellOptions) -> Cell:
    """A rate file of a few hours."""
    profile.refuse_too_many()
    lead_in = RateProfile(
        profile.name, np.asarray([0.0, LEAD_IN_S]), profile.rates_rps[:1], profile.prompt[:1], profile.output[:1]
    )

    def load(seed: int) -> ScoredLoad:
        body = _shifted(profile.arrivals(seed), LEAD_IN_S)
        arrivals = Arrivals.joined([lead_in.arrivals(seed + 1_000), body])
        return ScoredLoad(profile.name, arrivals, (LEAD_IN_S, LEAD_IN_S + profile.end_s))

    training = load(_TRAIN_SEED)
    base = _setting(training, options, training.arrivals.between(0.0, LEAD_IN_S))
    knowledge = _knowledge(base, training.arrivals, np.empty(0))
    return Cell(profile.name, base, lambda seed: base.with_load(load(seed)), knowledge, profile)


def day_cell(profile: RateProfile, day: int, mean_rps: float | None, options: CellOptions) -> Cell:
    """One day (from 0) of a rate file of days, thinned so that its mean is `mean_rps`."""
    last = int(profile.end_s // DAY_S) - 1
    if last < 1:
        raise HarmonyError(
            f"{profile.name} lasts {profile.end_s / DAY_S:.4g} days: --day needs a file of two or more.", 2
        )
    if not 1 <= day <= last:
        raise HarmonyError(
            f"--day must be in 1..{last}: the day before it is trained on, and the file must hold it.", 2
        )
    core = profile.between(day * DAY_S, (day + 1) * DAY_S)
    if core.mean_rps <= 0:
        raise HarmonyError(f"Day {day} of {profile.name} holds no request: choose another with --day.", 2)
    scale = 1.0 if mean_rps is None else mean_rps / core.mean_rps
    profile = replace(profile, rates_rps=profile.rates_rps * scale)
    rates = profile.between(day * DAY_S, (day + 1) * DAY_S)
    rates.refuse_too_many()
    name = f"{profile.name}-day{day}"

    def load(start_s: float, end_s: float, score: tuple[float, float], seed: int) -> ScoredLoad:
        return ScoredLoad(name, profile.between(start_s, end_s).arrivals(seed), score)

    def after(setting: Setting, start_s: float, seed: int) -> Setting:
        """With what HARMONY has seen by then, and the file's time of day; without, its clock begins at midnight."""
        from_s = max(start_s - options.past_days * DAY_S, 0.0)
        if from_s >= start_s:
            return setting
        start_ts_ms = START_TS_MS + round(start_s * 1000)
        past = prior_days(profile.between(from_s, start_s), seed + _PAST_SEED, options.step_s, start_ts_ms)
        return replace(setting, start_ts_ms=start_ts_ms, past=past)

    first = day * DAY_S - DAY_LEAD_IN_S
    # A third of the day before, its middle, costs a third and holds its peak.
    training = load(first - DAY_S / 2, first - DAY_S / 6, (TRAIN_FROM_S, DAY_S / 3), _TRAIN_SEED)
    base = _setting(training, options, training.arrivals.between(0.0, 600.0))
    base = after(base, first - DAY_S / 2, _TRAIN_SEED)
    knowledge = replace(
        _knowledge(base, training.arrivals, _history(profile, first), first % DAY_S),
        training_history=_history(profile, first - DAY_S / 2),
        training_day_offset_s=(first - DAY_S / 2) % DAY_S,
    )
    score = (DAY_LEAD_IN_S, DAY_LEAD_IN_S + DAY_S)

    def scored(seed: int) -> Setting:
        day_load = load(first, first + DAY_LEAD_IN_S + DAY_S, score, seed)
        return after(_setting(day_load, options, day_load.arrivals.between(0.0, 600.0)), first, seed)

    return Cell(name, base, scored, knowledge, rates)


def _history(profile: RateProfile, end_s: float) -> np.ndarray:
    """Requests/s per bin before an instant, of eight days at most; empty where the file begins later."""
    if end_s <= 0:
        return np.empty(0)
    before = profile.between(0.0, end_s)
    bins = np.arange(0.0, before.end_s, BIN_S)[-round(8 * DAY_S / BIN_S) :]
    place = np.clip(np.searchsorted(before.edges_s, bins, side="right") - 1, 0, len(before.rates_rps) - 1)
    return np.asarray(before.rates_rps[place])


def _shifted(arrivals: Arrivals, by_s: float) -> Arrivals:
    return Arrivals(arrivals.arrival_s + by_s, arrivals.prompt_tokens, arrivals.output_tokens)


def _setting(load: ScoredLoad, options: CellOptions, first: Arrivals) -> Setting:
    """The cell with as many replicas at first as the first minutes need, within the bounds."""
    need = fixed_need(
        options.profile, first, options.objective, options.share, 0.0, 600.0, options.max_replicas
    ) if len(first) else options.min_replicas  # fmt: skip
    return Setting(
        load=load,
        profile=options.profile,
        objective=options.objective,
        share=options.share,
        lead_s=options.lead_s,
        lead_sigma_log=options.lead_sigma_log,
        mixed_starts=options.mixed_starts,
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        initial_replicas=min(max(need, options.min_replicas), options.max_replicas),
        step_s=options.step_s,
        telemetry=Telemetry(options.scrape_s, options.delay_s, options.noise),
    )


def _knowledge(
    setting: Setting, lengths: Arrivals, history: np.ndarray, day_offset_s: float = 0.0
) -> OperatorKnowledge:
    """What a load test says.

    Raises:
        HarmonyError: no lengths, or an objective beyond what one replica with a single request can do.
    """
    if not len(lengths):
        raise HarmonyError(
            f"No request of {setting.load.name} arrives in what is tuned on, another draw of it or the day before: use "
            "a longer or busier load, or another --day.",
            2,
        )
    p, objective = setting.profile, setting.objective
    rate = benchmark_rps(p, lengths, objective, setting.share, 0)
    if rate is None:
        alone = lone_attainment(p, lengths, objective, 0)
        raise HarmonyError(
            f"The objective of {objective.ttft_s:g} s to the first token and {objective.tpot_s:g} s per token cannot "
            f"be kept: on an idle replica of {p.name} only {alone:.1%} of these requests meet it, {setting.share:.1%} "
            "are wanted. Relax --slo-ttft or --slo-tpot.",
            2,
        )
    prompt, output = float(lengths.prompt_tokens.mean()), float(lengths.output_tokens.mean())
    tokens = prompt + output / 2
    prefill_s = (p.prefill_token_s + p.prefill_token_sq_s * prompt / 2) * prompt
    # Little's law at the load test's rate: each request's own time, stretched by what the others add.
    base_s = output * p.base_s + prefill_s
    per_request_s = output * (p.sequence_s + p.kv_token_s * tokens) + prefill_s
    concurrency = rate * base_s / max(0.1, 1.0 - rate * per_request_s)
    return OperatorKnowledge(rate, max(1.0, min(concurrency, float(p.max_batch))), history, day_offset_s)
