"""The job behind `harmony replay`: check what was asked, prepare the cell, run it, print and write the results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.lab.defaults import OUTPUT_TOKENS, PROMPT_TOKENS, TRAIN_SHARE
from infra.lab.plots import RunCost, pareto_svg, pyplot
from infra.lab.replay.calibration import draw_diagram, reliability
from infra.lab.replay.causal import asked_for
from infra.lab.replay.checks import (
    check_numbers,
    named_policies,
    policy_with,
    read_lead_time,
    short_sight,
    token_law,
    told_capacity,
)
from infra.lab.replay.matrix import run_cell
from infra.lab.replay.prepare import Cell, Options, day_cell, rate_cell, trace_cell
from infra.lab.replay.results import CellResult, as_json, mean_of, print_results
from infra.lab.replay.setting import Setting, TelemetryFault, read_faults
from infra.lab.report import STDOUT, write_json
from infra.simulator.arrivals import DAY_S, Tokens, TraceError, read_trace
from infra.simulator.ledger import Objective
from infra.simulator.profiles import ProfileError, named_profile
from infra.simulator.rate_files import read_rates


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for, unchecked."""

    requests: Path | None
    rate: str | None
    profile: str
    policies: str | None
    slo_ttft: float
    slo_tpot: float
    objective: float
    lead_time: str
    min_replicas: int
    max_replicas: int
    seeds: int
    first_seed: int
    step: float
    scrape_interval: float
    delay: float
    noise: float
    faults: str | None
    train_share: float | None
    day: int | None
    past_days: int
    mean_rate: float | None
    prompt_tokens: str | None
    output_tokens: str | None
    tune: bool
    epsilon: float | None
    told_capacity: str
    guards: str
    oracle: int
    oracle_rate: int
    surprise: str | None
    jobs: int
    json_out: Path | None
    log_dir: Path | None
    plot: Path | None
    plot_risk: Path | None


def run_replay(q: Request) -> None:
    """Do it.

    Raises:
        HarmonyError: a load, profile, policy, bound or objective that cannot be used; one sentence, exit code 2.
    """
    wanted = named_policies(q.policies)
    if q.plot_risk is not None:
        pyplot(q.plot_risk)  # a plot that cannot be drawn is known before the work is done
    _check_load(q)
    train_share = TRAIN_SHARE if q.train_share is None else q.train_share
    lead_s, sigma, kinds = read_lead_time(q.lead_time)
    bounds = q.min_replicas, q.max_replicas
    check_numbers(q.slo_ttft, q.slo_tpot, q.objective, bounds, train_share, q.scrape_interval)
    policy = policy_with(q.epsilon, q.guards, tuned=q.tune)
    times, off_by = told_capacity(q.told_capacity)
    faults = read_faults(q.faults)
    surprises = asked_for(q.surprise, q.rate)
    try:
        options = Options(
            named_profile(q.profile), Objective(q.slo_ttft, q.slo_tpot), q.objective, lead_s, sigma,
            q.min_replicas, q.max_replicas, q.step, q.scrape_interval, q.delay, q.noise, kinds, q.past_days,
        )  # fmt: skip
        if q.requests is not None:
            cell = trace_cell(read_trace(q.requests), options, train_share)
        else:
            lengths = (
                token_law(PROMPT_TOKENS if q.prompt_tokens is None else q.prompt_tokens),
                token_law(OUTPUT_TOKENS if q.output_tokens is None else q.output_tokens),
            )
            cell = _rate_cell(str(q.rate), q.day, q.mean_rate, lengths, options)
    except (TraceError, ProfileError) as error:
        raise HarmonyError(str(error), 2) from None
    short = short_sight(wanted, policy, q.step, lead_s)
    if short is not None:
        say(short)
    known = replace(cell.known, policy=policy, told_times=times, told_off_by=off_by)
    cell = replace(cell, known=known, scored=_as_told(cell.scored, q.first_seed, faults))
    result = run_cell(
        cell, wanted, q.seeds, tuned=q.tune, oracle_budget=q.oracle, rate_budget=q.oracle_rate,
        surprises=surprises, log_dir=q.log_dir, jobs=q.jobs, progress=lambda what: say(f"{cell.name}: {what}"),
    )  # fmt: skip
    guards = {"named": q.guards, **asdict(policy.guards)}
    body = as_json(result, options) | {
        "guards": guards,
        "first_seed": q.first_seed,
        "told_capacity": q.told_capacity,
        "faults": [asdict(fault) for fault in faults],
        "past_days": q.past_days,
    }
    write_json(q.json_out, body)
    title = f"{cell.name}, lead time {q.lead_time} s"
    if q.plot is not None:
        bound = mean_of([b.gpu_hours for b in result.oracle.values()])
        q.plot.parent.mkdir(parents=True, exist_ok=True)
        q.plot.write_text(pareto_svg(_run_costs(result), bound, q.objective, title), encoding="utf-8")
    if q.plot_risk is not None and result.stated:
        draw_diagram(q.plot_risk, {p: reliability(risks) for p, risks in result.stated.items()}, title)
    if q.json_out != STDOUT:
        print_results(result, q.objective)


def _check_load(q: Request) -> None:
    """One load, and no option that is of the other kind: it would be ignored."""
    if q.past_days and q.day is None:
        raise HarmonyError("--past-days are those before --day: name the day of a rate file.", 2)
    if (q.requests is None) == (q.rate is None):
        raise HarmonyError("Give the load: either --requests FILE or --rate FILE.", 2)
    if q.requests is None:
        if q.train_share is not None:
            raise HarmonyError("--train-share is of recorded requests: a rate file is tuned on another draw or day.", 2)
        return
    if q.first_seed:
        raise HarmonyError("--first-seed chooses draws of a rate file: recorded requests are one.", 2)
    if q.day is not None or q.mean_rate is not None:
        raise HarmonyError("--day and --mean-rate are of a rate file: recorded requests are replayed as they are.", 2)
    if q.prompt_tokens is not None or q.output_tokens is not None:
        raise HarmonyError("--prompt-tokens and --output-tokens are of a rate file: recorded requests have theirs.", 2)


def _as_told(
    scored: Callable[[int], Setting], first_seed: int, faults: tuple[TelemetryFault, ...]
) -> Callable[[int], Setting]:
    return lambda run: scored(first_seed + run).with_faults(faults)


def _rate_cell(
    rate: str, day: int | None, mean_rate: float | None, lengths: tuple[Tokens, Tokens], options: Options
) -> Cell:
    rates = read_rates(rate, *lengths)
    if mean_rate is not None and not (math.isfinite(mean_rate) and mean_rate > 0):
        raise HarmonyError(f"--mean-rate must be a positive number, got {mean_rate}.", 2)
    if day is not None:
        return day_cell(rates, day, mean_rate, options)
    if rates.end_s > DAY_S:
        raise HarmonyError(f"{rate} lasts {rates.end_s / DAY_S:.4g} days: choose one with --day.", 2)
    return rate_cell(rates if mean_rate is None else rates.thinned(mean_rate), options)


def _run_costs(result: CellResult) -> list[RunCost]:
    """HARMONY first, so that it has the first colour."""
    rows = sorted(result.rows, key=lambda r: (r.policy != "harmony", r.policy, r.seed))
    return [RunCost(r.policy, r.gpu_hours, r.attainment) for r in rows]
