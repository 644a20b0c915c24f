"""Job of `harmony replay`: check the options, prepare the cell, run it, print and write the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.console.progress import ReportProgress, WorkBar
from infra.lab.defaults import OUTPUT_TOKENS, PROMPT_TOKENS, TRAIN_SHARE
from infra.lab.plots import RunCost, pareto_svg, pyplot
from infra.lab.replay.calibration import draw_diagram, reliability
from infra.lab.replay.oracle import parse_surprises
from infra.lab.replay.policies.catalogue import DEFAULT_POLICIES, POLICY_NAMES, given_choice
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS, REPLAY_POLICY
from infra.lab.replay.prepare import Cell, CellOptions, day_cell, rate_cell, trace_cell
from infra.lab.replay.results import CellResult, as_json, mean_of, print_results
from infra.lab.replay.run import run_cell
from infra.lab.replay.setting import Setting, TelemetryFault, read_faults
from infra.lab.report import STDOUT, write_json
from infra.simulator.arrivals import DAY_S, MAX_TOKENS, MOST_SIGMA, RateProfile, Tokens, Trace, TraceError
from infra.simulator.cluster import MixedStarts
from infra.simulator.ledger import Objective
from infra.simulator.profiles import ProfileError, named_profile
from infra.simulator.rate_files import read_rates
from infra.simulator.traces import read_trace, remark

# Checks before anything runs: a wrong option ends with one sentence and exit code 2.


_MOST_REPLICAS: Final = 100_000  # of which the first need is searched by simulation
_SHORTEST_SCRAPE_S: Final = 0.1


def named_policies(text: str | None) -> tuple[str, ...]:
    """Those between the commas; all public ones where none is named."""
    if text is None:
        return DEFAULT_POLICIES
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in POLICY_NAMES]
    if unknown or not names:
        raise HarmonyError(f"Unknown policy {(unknown or [''])[0]!r}: choose from {', '.join(POLICY_NAMES)}.", 2)
    return names


def given_settings(texts: Sequence[str], policies: Sequence[str]) -> dict[str, dict[str, float]]:
    """`policy.name=value` each, by policy.

    Raises:
        HarmonyError: not of this form, a policy that is not replayed, or one of HARMONY, which is replayed as shipped.
    """
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, number = text.partition("=")
        policy, _, setting = name.partition(".")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not setting or not (math.isfinite(value) and value >= 0):
            raise HarmonyError(f"--set: {text!r} is no setting: write POLICY.NAME=VALUE, such as hpa.target=40.", 2)
        rivals = [each for each in policies if each not in HARMONY_VARIANTS]
        if policy not in rivals:
            raise HarmonyError(
                f"--set: {policy!r} is no rival in this replay: it has {', '.join(rivals) or 'none'}.", 2
            )
        found.setdefault(policy, {})[setting] = value
    return found


def token_law(text: str) -> Tokens:
    """`mean` or `mean:sigma`."""
    mean, _, sigma = text.partition(":")
    try:
        law = Tokens(float(mean), float(sigma) if sigma else 0.0)
    except ValueError:
        law = Tokens(math.nan)
    if not (1 <= law.mean <= MAX_TOKENS and 0 <= law.sigma <= MOST_SIGMA):
        raise HarmonyError(
            f"Token counts must be a mean of 1 to {MAX_TOKENS}, such as 900, or 900:0.6 with a sigma of at most "
            f"{MOST_SIGMA:g}, got {text!r}.",
            2,
        )
    return law


def parse_capacity(text: str) -> tuple[float, float | None]:
    """`times`, or `times:off_by`."""
    times, _, off_by = text.partition(":")
    try:
        capacity = float(times), float(off_by) if off_by else None
    except ValueError:
        capacity = math.nan, None
    if not (0.01 <= capacity[0] <= 100 and (capacity[1] is None or 1.01 <= capacity[1] <= 2.5)):
        raise HarmonyError(
            "--told-capacity must be times of the load test's figure of 0.01 to 100, such as 2.2, or 2.2:2 with a "
            f"factor of 1.01 to 2.5 that it may be off by, got {text!r}.",
            2,
        )
    return capacity


def check_slo(ttft_s: float, tpot_s: float, share: float) -> None:
    """What requests are promised, and how many of them."""
    if not (math.isfinite(ttft_s) and ttft_s > 0 and math.isfinite(tpot_s) and tpot_s > 0):
        raise HarmonyError(f"--slo-ttft and --slo-tpot must be seconds above 0, got {ttft_s} and {tpot_s}.", 2)
    if not 0 < share < 1:
        raise HarmonyError(f"--objective must be between 0 and 1, such as 0.99, got {share}.", 2)


def check_numbers(
    ttft_s: float, tpot_s: float, share: float, bounds: tuple[int, int], train_share: float, scrape_s: float
) -> None:
    """The others. `bounds`: fewest and most replicas."""
    check_slo(ttft_s, tpot_s, share)
    fewest, most = bounds
    if fewest < 0 or most < 1 or fewest > most:
        raise HarmonyError(f"Replica bounds must satisfy 0 <= min <= max and max >= 1, got {fewest} and {most}.", 2)
    if most > _MOST_REPLICAS:
        raise HarmonyError(f"--max-replicas must be {_MOST_REPLICAS} at most, got {most}.", 2)
    if not 0 < train_share < 1:
        raise HarmonyError(f"--train-share must be between 0 and 1, got {train_share}.", 2)
    if 0 < scrape_s < _SHORTEST_SCRAPE_S:
        raise HarmonyError(
            f"--scrape-interval must be 0 or at least {_SHORTEST_SCRAPE_S:g} seconds, got {scrape_s}.", 2
        )


def policy_with(epsilon: float | None) -> Policy:
    """HARMONY's, as asked for."""
    if epsilon is None:
        return REPLAY_POLICY
    if not 0 < epsilon < 1:
        raise HarmonyError(f"--epsilon must be between 0 and 1, such as 0.01, got {epsilon}.", 2)
    return replace(REPLAY_POLICY, epsilon=epsilon)


def short_sight(policies: tuple[str, ...], policy: Policy, step_s: float, lead_s: float) -> str | None:
    """Return a warning if the forecast horizon is shorter than the lead time; HARMONY then removes no replica."""
    sight_s = policy.max_horizon * step_s
    if sight_s >= lead_s or not any(name in HARMONY_VARIANTS for name in policies):
        return None
    return (
        f"With steps of {step_s:g} s HARMONY sees {sight_s:g} s ahead, less than the {lead_s:g} s that a start takes: "
        f"it gives no replica up. A --step of {math.ceil(lead_s / policy.max_horizon)} or more sees as far."
    )


# `--lead-time` as it is written: constant, lognormal, or of warm and cold starts.


_LONGEST_LEAD_S: Final = 86_400.0


def read_lead_time(text: str) -> tuple[float, float, MixedStarts | None]:
    """Mean in seconds, sigma of the logarithm, and starts of two kinds.

    Raises:
        HarmonyError: it says nothing of the kind.
    """
    quick, kinds, slow = text.partition("/")
    if kinds:
        slow_s, _, share = slow.partition(":")
        starts = MixedStarts(_number(quick), _number(slow_s), _number(share))
        if 0 < starts.quick_s <= starts.slow_s <= _LONGEST_LEAD_S and 0 < starts.slow_share < 1:
            return starts.mean_s, 0.0, starts
    else:
        mean, _, sigma = text.partition("~")
        mean_s, sigma_log = _number(mean), _number(sigma) if sigma else 0.0
        if 0 < mean_s <= _LONGEST_LEAD_S and 0 <= sigma_log <= MOST_SIGMA:
            return mean_s, sigma_log, None
    raise HarmonyError(
        "--lead-time must be seconds above 0 and at most a day, such as 100, 100~0.3 with a sigma of at most "
        f"{MOST_SIGMA:g}, or 40/300:0.25 of quick and slow starts and the share of the slow, got {text!r}.",
        2,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Options of the command line, unchecked, with its defaults.

    Attributes:
        requests, rate: exactly one of them: a file, a built-in name, or a load that has been read.
    """

    requests: Path | Trace | None = None
    rate: str | RateProfile | None = None
    profile: str = "dense-70b"
    policies: str | None = None
    slo_ttft: float = 2.0
    slo_tpot: float = 0.2
    objective: float = 0.99
    lead_time: str = "100"
    min_replicas: int = 1
    max_replicas: int = 16
    seeds: int = 5
    first_seed: int = 0
    step: float = 15.0
    scrape_interval: float = 0.0
    delay: float = 0.0
    noise: float = 0.0
    faults: str | None = None
    train_share: float | None = None
    day: int | None = None
    past_days: int = 0
    mean_rate: float | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    tune: bool = True
    epsilon: float | None = None
    told_capacity: str = "1"
    given: tuple[str, ...] = ()
    oracle: int = 160
    oracle_rate: int = 0
    surprise: str | None = None
    equal: bool = False
    jobs: int = 1
    json_out: Path | None = None
    log_dir: Path | None = None
    plot: Path | None = None
    plot_risk: Path | None = None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay measured, and the JSON document of it."""

    result: CellResult
    document: dict[str, Any]


def run_replay(q: ReplayRequest) -> None:
    """Run the replay and write what was asked for.

    Raises:
        HarmonyError: a load, profile, policy, bound or objective that cannot be used; one sentence, exit code 2.
    """
    if q.plot_risk is not None:
        pyplot(q.plot_risk)  # a plot that cannot be drawn is known before the work is done
    with WorkBar() as bar:
        report = measure(q, bar)
    result = report.result
    write_json(q.json_out, report.document)
    title = f"{result.name}, lead time {q.lead_time} s"
    if q.plot is not None:
        bound = mean_of([b.gpu_hours for b in result.oracle.values()])
        q.plot.parent.mkdir(parents=True, exist_ok=True)
        q.plot.write_text(pareto_svg(_run_costs(result), bound, q.objective, title), encoding="utf-8")
    if q.plot_risk is not None and result.stated:
        draw_diagram(q.plot_risk, {p: reliability(risks) for p, risks in result.stated.items()}, title)
    if q.json_out != STDOUT:
        print_results(result, q.objective)


def measure(q: ReplayRequest, progress: ReportProgress) -> ReplayReport:
    """Prepare the cell and run it.

    Args:
        progress: takes what begins, and the share of the work that is done.

    Raises:
        HarmonyError: as `run_replay` does.
    """
    policies = named_policies(q.policies)
    _check_load(q)
    train_share = TRAIN_SHARE if q.train_share is None else q.train_share
    lead_s, sigma, kinds = read_lead_time(q.lead_time)
    bounds = q.min_replicas, q.max_replicas
    check_numbers(q.slo_ttft, q.slo_tpot, q.objective, bounds, train_share, q.scrape_interval)
    policy = policy_with(q.epsilon)
    times, off_by = parse_capacity(q.told_capacity)
    faults = read_faults(q.faults)
    given = given_settings(q.given, policies)
    surprises = parse_surprises(q.surprise, q.rate if isinstance(q.rate, str) else None)
    try:
        options = CellOptions(
            named_profile(q.profile), Objective(q.slo_ttft, q.slo_tpot), q.objective, lead_s, sigma,
            q.min_replicas, q.max_replicas, q.step, q.scrape_interval, q.delay, q.noise, kinds, q.past_days,
        )  # fmt: skip
        if q.requests is not None:
            trace = q.requests if isinstance(q.requests, Trace) else read_trace(q.requests)
            passed_over = remark(trace)
            if passed_over is not None:
                progress(passed_over)
            cell = trace_cell(trace, options, train_share)
        else:
            lengths = (
                token_law(PROMPT_TOKENS if q.prompt_tokens is None else q.prompt_tokens),
                token_law(OUTPUT_TOKENS if q.output_tokens is None else q.output_tokens),
            )
            assert q.rate is not None
            cell = cell_of_rate(q.rate, q.day, q.mean_rate, lengths, options)
    except (TraceError, ProfileError) as error:
        raise HarmonyError(str(error), 2) from None
    short = short_sight(policies, policy, q.step, lead_s)
    if short is not None:
        progress(short)
    knowledge = replace(cell.knowledge, policy=policy, declared_times=times, declared_off_by=off_by, given=given)
    cell = replace(cell, knowledge=knowledge, scored=_with_faults(cell.scored, q.first_seed, faults))
    for policy_name in given:
        given_choice(policy_name, cell.training, knowledge)  # a wrong setting is known before the work is done
    result = run_cell(
        cell, policies, q.seeds, tuned=q.tune, oracle_budget=q.oracle, rate_budget=q.oracle_rate,
        surprises=surprises, log_dir=q.log_dir, jobs=q.jobs, equal=q.equal,
        progress=lambda what, done=None: progress(f"{cell.name}: {what}", done),
    )  # fmt: skip
    body = as_json(result, options) | {
        "guards": asdict(policy.guards),
        "first_seed": q.first_seed,
        "told_capacity": q.told_capacity,
        "faults": [asdict(fault) for fault in faults],
        "past_days": q.past_days,
    }
    return ReplayReport(result, body)


def _check_load(q: ReplayRequest) -> None:
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


def _with_faults(
    scored: Callable[[int], Setting], first_seed: int, faults: tuple[TelemetryFault, ...]
) -> Callable[[int], Setting]:
    return lambda run: scored(first_seed + run).with_faults(faults)


def cell_of_rate(
    rate: str | RateProfile,
    day: int | None,
    mean_rate: float | None,
    lengths: tuple[Tokens, Tokens],
    options: CellOptions,
) -> Cell:
    """Return the cell of a rate file, or of one of its days.

    Args:
        mean_rate: requests/s to which the load is thinned; None: as it is.
        lengths: laws of prompt and output tokens where the file has none.

    Raises:
        HarmonyError: a rate that is no number, or a load of several days without `day`.
    """
    rates = rate if isinstance(rate, RateProfile) else read_rates(rate, *lengths)
    if mean_rate is not None and not (math.isfinite(mean_rate) and mean_rate > 0):
        raise HarmonyError(f"--mean-rate must be a positive number, got {mean_rate}.", 2)
    if day is not None:
        return day_cell(rates, day, mean_rate, options)
    if rates.end_s > DAY_S:
        raise HarmonyError(f"{rates.name} lasts {rates.end_s / DAY_S:.4g} days: choose one with --day.", 2)
    return rate_cell(rates if mean_rate is None else rates.thinned(mean_rate), options)


def _run_costs(result: CellResult) -> list[RunCost]:
    """HARMONY first, so that it has the first colour."""
    rows = sorted(result.rows, key=lambda r: (r.policy != "harmony", r.policy, r.seed))
    return [RunCost(r.policy, r.gpu_hours, r.attainment) for r in rows]
