"""Run of a cell: tune every policy, simulate every seed, and search the oracles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from agents.policy import Policy
from infra.console.progress import ReportProgress
from infra.lab.replay.calibration import StatedRisk, stated_risks
from infra.lab.replay.oracle import (
    SurpriseOptions,
    causal_bound,
    find_schedule,
    run_schedule,
    schedule_for_rate,
    surprise_times,
)
from infra.lab.replay.policies.catalogue import (
    STATIC_PEAK,
    OperatorKnowledge,
    PolicyChoice,
    candidates,
    controller_of,
    given_choice,
    neighbours,
    towards_cheaper,
    with_floors,
)
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS
from infra.lab.replay.prepare import Cell
from infra.lab.replay.results import (
    Bound,
    CausalBounds,
    CellResult,
    EqualAttainment,
    Row,
    Trial,
    equal_attainment,
    row_of,
    write_logs,
)
from infra.lab.replay.setting import Setting
from infra.lab.replay.simulation import Controller, HarmonyController, RunResult, simulate
from infra.simulator.cluster import Cluster

# Tuning. Every policy has the same number of candidates on the training part. A rival has more where its best lies at
# the end of their values. The cheapest that meets the objective wins.
#
# If none meets it, the cheapest of those with about the fewest misses wins. Otherwise one request more or less would
# decide the cost. The static peak uses hindsight: it is the smallest constant count that meets the objective on the
# scored part.
#
# A candidate that just meets the objective in its trial misses it later about half of the time. A trial must therefore
# stay within `MARGIN` of the allowed misses.


MARGIN = 0.6
"""Share of the allowed misses that a trial may use."""
EXTENSIONS = 12
"""Trials of a rival beyond its first candidates, where the best of these lies at the end of their values."""
_REFINED = 3
"""Cheapest sufficient trials in hindsight, from each of which the way to the next cheaper value is halved twice."""
_EQUAL_MISS_FACTOR = 1.05
"""Trials with up to this multiple of the fewest misses count as equally good."""


def tune(
    policy: str, training: Setting, scored: Setting, knowledge: OperatorKnowledge, seed: int, *, tuned: bool = True
) -> tuple[PolicyChoice, list[Trial]]:
    """The candidate to score, and every trial that was made for it; not `tuned`: the middle candidate, untried.

    HARMONY runs as it is shipped, and a rival with the settings that it was given. Candidates of the static peak are
    ordered, the cheapest first, so they are bisected.
    """
    given = given_choice(policy, training, knowledge)
    if given is not None:
        return given, []
    offered = candidates(policy, training, knowledge)
    if policy == STATIC_PEAK:
        return _bisect(offered, lambda choice: _run_trial(choice, scored, knowledge, seed), scored.share)
    if policy in HARMONY_VARIANTS or not tuned:
        return offered[len(offered) // 2], []
    knowledge = knowledge.for_training()
    return search(
        offered,
        lambda choice: _run_trial(choice, training, knowledge, seed),
        training,
        knowledge,
        _target_share(training),
    )


RunTrial = Callable[[PolicyChoice], Trial]


def search(
    offered: Sequence[PolicyChoice], trial_of: RunTrial, setting: Setting, knowledge: OperatorKnowledge, share: float
) -> tuple[PolicyChoice, list[Trial]]:
    """The best candidate for a share of good requests, and every trial.

    All that is offered is tried. While the best lies at the end of the values tried, its neighbours beyond are tried
    too, at most `EXTENSIONS` of them. Then the smallest floor of replicas is searched with which the cheapest trial
    keeps the share: on loads that nothing foresees, a floor is cheaper than a reaction.
    """
    trials = [trial_of(choice) for choice in offered]
    most = len(trials) + EXTENSIONS
    while len(trials) < most:
        tried = [trial.choice for trial in trials]
        further = neighbours(best_of(trials, share), tried, setting, knowledge)
        if not further:
            break
        trials += [trial_of(choice) for choice in further[: most - len(trials)]]
    cheapest = min(trials, key=lambda trial: trial.gpu_hours).choice
    floors = [
        choice for choice in with_floors(cheapest, setting, knowledge) if choice not in [t.choice for t in trials]
    ]
    trials += _bisect(floors, trial_of, share)[1] if floors else []
    return best_of(trials, share), trials


def scored_trials(
    policy: str,
    settings: Sequence[Setting],
    knowledge: OperatorKnowledge,
    share: float,
    trial_of: RunTrial | None = None,
) -> list[Trial]:
    """Trials of a rival on the scored part itself, searched for the cheapest that keeps a share: hindsight.

    Args:
        settings: what is scored, by seed.
        trial_of: runs a candidate on all of them; None: as `scored_trial`.
    """
    run_one = trial_of or (lambda choice: scored_trial(choice, settings, knowledge))
    offered = candidates(policy, settings[0], knowledge)
    if policy == STATIC_PEAK:
        return _bisect(offered, run_one, share)[1]
    _, trials = search(offered, run_one, settings[0], knowledge, share)
    enough = sorted((trial for trial in trials if trial.attainment >= share), key=lambda trial: trial.gpu_hours)
    for trial in enough[:_REFINED]:
        between = towards_cheaper(trial.choice, settings[0], knowledge)
        if between:
            quarter, half, three_quarters = between
            trials.append(run_one(half))
            trials.append(run_one(three_quarters if trials[-1].attainment >= share else quarter))
    return trials


def scored_trial(choice: PolicyChoice, settings: Sequence[Setting], knowledge: OperatorKnowledge) -> Trial:
    """What a candidate does on the scored part: means over seeds, which count once where all are the same."""
    runs = [
        simulate(setting, controller_of(choice, knowledge), seed) for seed, setting in enumerate(_distinct([*settings]))
    ]
    hours = tuple(run.gpu_hours for run in runs)
    return Trial(choice, sum(run.attainment for run in runs) / len(runs), sum(hours) / len(hours), hours)


def best_of(trials: Sequence[Trial], share: float) -> PolicyChoice:
    """The cheapest trial that kept the objective, else of those that missed about as little as the best."""
    fewest = 1.0 - max(t.attainment for t in trials)
    finalists = [t for t in trials if t.attainment >= share] or [
        t for t in trials if 1.0 - t.attainment <= _EQUAL_MISS_FACTOR * fewest
    ]
    return min(finalists, key=lambda t: (t.gpu_hours, -t.attainment)).choice


def _target_share(training: Setting) -> float:
    return 1.0 - MARGIN * (1.0 - training.share)


def _run_trial(choice: PolicyChoice, setting: Setting, knowledge: OperatorKnowledge, seed: int) -> Trial:
    run = simulate(setting, controller_of(choice, knowledge), seed)
    return Trial(choice, run.attainment, run.gpu_hours, (run.gpu_hours,))


def _bisect(offered: Sequence[PolicyChoice], trial_of: RunTrial, share: float) -> tuple[PolicyChoice, list[Trial]]:
    """The first of the candidates, in the order given, that keeps the objective; the best tried where none does.

    The last where all candidates missed alike.
    """
    trials: list[Trial] = []
    low, high = 0, len(offered) - 1
    while low < high:
        middle = (low + high) // 2
        trials.append(trial_of(offered[middle]))
        low, high = (low, middle) if trials[-1].attainment >= share else (middle + 1, high)
    if low == len(offered) - 1:
        trials.append(trial_of(offered[low]))
        if len({t.attainment for t in trials}) == 1 and trials[0].attainment < share:
            return offered[-1], trials  # what was missed, no candidate could help: the trials say nothing
        return best_of(trials, share), trials
    return offered[low], trials


T = TypeVar("T")
# Work beside that of a rule, for the time left: HARMONY forecasts at each step; an oracle simulates as often as it may.
_HARMONY_WORK = 8.0
_SIMULATIONS_OF_A_RULE = 20.0


def run_cell(
    cell: Cell,
    policies: tuple[str, ...],
    seeds: int,
    *,
    tuned: bool,
    oracle_budget: int,
    rate_budget: int,
    surprises: SurpriseOptions,
    log_dir: Path | None,
    jobs: int,
    progress: ReportProgress,
    equal: bool = False,
) -> CellResult:
    """Replay a cell; `jobs` above 1 runs policies side by side.

    Args:
        equal: search rivals at HARMONY's attainment, in hindsight.
    """
    _one_thread()  # tensors here are small: a second thread would only spin
    settings = [cell.scored(seed) for seed in range(seeds)]
    begin_s, end_s = settings[0].load.score
    surprises_s = surprise_times(surprises, cell.rates, end_s - begin_s, settings[0].careful_lead_s)
    if seeds > 1 and len(_distinct(settings)) == 1:
        progress(f"{seeds} runs have the same arrivals and lead times: only HARMONY's own draws differ, rules run once")
    rows: list[Row] = []
    chosen: dict[str, PolicyChoice] = {}
    trials: dict[str, list[Trial]] = {}
    free: Bound | None = None
    tasks = [_PolicyTask(p, cell.training, settings, cell, tuned, log_dir) for p in policies]
    work = [_HARMONY_WORK if p in HARMONY_VARIANTS else 1.0 for p in policies]
    oracle_work = oracle_budget * len(_distinct(settings)) / _SIMULATIONS_OF_A_RULE
    rest_work = (oracle_budget / 2 + rate_budget * 10) / _SIMULATIONS_OF_A_RULE + (len(policies) * 2 if equal else 0)
    total_work = sum(work) + oracle_work * (2 if surprises_s else 1) + rest_work
    if jobs > 1:
        with ProcessPoolExecutor(jobs, initializer=_one_thread) as pool:
            bounds = [pool.submit(_bound, s, k, oracle_budget) for k, s in enumerate(_distinct(settings))]
            surprised = [
                pool.submit(_causal, s, k, surprises_s, oracle_budget) for k, s in enumerate(_distinct(settings))
            ]
            answers = [pool.submit(_run_policy, task.portable()) for task in tasks]
            ended = 0.0
            for answer in as_completed(answers):
                ended += work[answers.index(answer)]
                progress(f"{policies[answers.index(answer)]} is done", ended / total_work)
            done = [answer.result() for answer in answers]
            oracle_bounds = [bound.result() for bound in bounds]
            causal = [bound.result() for bound in surprised]
    else:
        done = []
        for k, task in enumerate(tasks):
            progress(task.policy, sum(work[:k]) / total_work)
            done.append(_run_policy(task.portable()))
        if oracle_budget > 0:
            progress("oracle", sum(work) / total_work)
        oracle_bounds = [_bound(s, k, oracle_budget) for k, s in enumerate(_distinct(settings))]
        if surprises_s and oracle_budget > 0:
            progress("oracle to whom surprises come without a word", (sum(work) + oracle_work) / total_work)
        causal = [_causal(s, k, surprises_s, oracle_budget) for k, s in enumerate(_distinct(settings))]
    stated: dict[str, list[StatedRisk]] = {}
    for policy, (choice, policy_trials, policy_rows, risks) in zip(policies, done, strict=True):
        chosen[policy], trials[policy] = choice, policy_trials
        rows += policy_rows
        if risks:
            stated[policy] = risks
    hindsight: dict[str, EqualAttainment | None] = {}
    harmony = [row for row in rows if row.policy == "harmony"]
    if equal and harmony:
        for policy in policies:
            if policy not in HARMONY_VARIANTS:
                progress(f"{policy} at HARMONY's attainment")
                hindsight[policy] = _equal(policy, settings, cell.knowledge, harmony)
    if oracle_budget > 0:
        progress("oracle with free moves", 1 - rest_work / total_work)
        free = _bound(settings[0], 0, max(20, oracle_budget // 2), free_moves=True)
    if rate_budget > 0:
        progress("oracle that knows the rate alone")
    rate_bounds = _rate_bounds(cell.scored, settings, rate_budget)
    return CellResult(
        cell.name, cell.knowledge.benchmark_rps, rows, chosen, trials, _by_seed(oracle_bounds, seeds), free,
        rate_bounds, surprises_s, _by_seed(causal, seeds), stated, hindsight,
    )  # fmt: skip


def _equal(
    policy: str, settings: Sequence[Setting], knowledge: OperatorKnowledge, harmony: Sequence[Row]
) -> EqualAttainment | None:
    wanted = sum(row.attainment for row in harmony) / len(harmony)
    return equal_attainment(scored_trials(policy, settings, knowledge, wanted), harmony)


@dataclass(frozen=True, slots=True)
class _PolicyTask:
    policy: str
    training: Setting
    settings: list[Setting]
    cell: Cell
    tuned: bool
    log_dir: Path | None

    def portable(self) -> tuple[object, ...]:
        """Without the cell's functions, which cannot travel to another process."""
        return (self.policy, self.training, self.settings, self.cell.knowledge, self.tuned, self.log_dir)


def _run_policy(task: tuple[object, ...]) -> tuple[PolicyChoice, list[Trial], list[Row], list[StatedRisk]]:
    policy, training, settings, knowledge, tuned, log_dir = task
    return run_policy(policy, training, settings, knowledge, tuned=tuned, log_dir=log_dir)  # type: ignore[arg-type]


def run_policy(
    policy: str,
    training: Setting,
    settings: Sequence[Setting],
    knowledge: OperatorKnowledge,
    *,
    tuned: bool,
    log_dir: Path | None = None,
) -> tuple[PolicyChoice, list[Trial], list[Row], list[StatedRisk]]:
    """Tune a policy and simulate it on every seed.

    Args:
        settings: what is scored, by seed.

    Returns:
        The chosen candidate, all trials, a row per seed, and HARMONY's stated risks.
    """
    _one_thread()  # tensors here are small: a second thread would only spin
    choice, trials = tune(policy, training, settings[0], knowledge, 0, tuned=tuned)
    rows = []
    risks: list[StatedRisk] = []
    # A rule draws nothing of its own: where arrivals and lead times are the same, so is every run of it.
    distinct = settings if policy in HARMONY_VARIANTS else _distinct([*settings])
    for seed, setting in enumerate(distinct):
        controllers: list[Controller] = []
        make = controller_of(choice, knowledge)

        def new(s: Setting, c: Cluster, k: int) -> Controller:
            controllers.append(make(s, c, k))  # noqa: B023 - used up before the next turn
            return controllers[-1]  # noqa: B023

        run = simulate(setting, new, seed)
        rows.append(_row(choice, run, controllers[0]))
        risks += _stated(run, controllers[0])
        if log_dir is not None:
            write_logs(log_dir, choice.policy, run)
    rows += [replace(rows[0], seed=seed) for seed in range(len(rows), len(settings))]
    return choice, trials, rows, risks


def oracle_bounds(settings: Sequence[Setting], budget: int) -> list[Bound]:
    """The lead-constrained oracle of each distinct seed; left out where no schedule keeps the objective.

    Args:
        budget: schedules that are tried for each.
    """
    bounds = [_bound(setting, seed, budget) for seed, setting in enumerate(_distinct([*settings]))]
    return [bound for bound in bounds if bound is not None]


def _stated(run: RunResult, controller: Controller) -> list[StatedRisk]:
    if not isinstance(controller, HarmonyController):
        return []
    s = run.setting
    return stated_risks(
        controller.decisions, run.requests, s.objective, s.share, s.load.score, s.start_ts_ms, Policy().commit_s
    )


def _row(choice: PolicyChoice, run: RunResult, controller: Controller) -> Row:
    holds: Counter[str] = Counter()
    forecasts: Counter[str] = Counter()
    if isinstance(controller, HarmonyController):
        for decision in controller.decisions:
            if decision.action == "hold":
                holds[decision.reason] += 1
            forecasts[decision.forecast.source or "none"] += 1
    return row_of(choice.policy, str(choice), run, dict(holds), dict(forecasts))


def _distinct(settings: list[Setting]) -> list[Setting]:
    """One setting when every seed has the same arrivals and lead times."""
    first = settings[0]
    same = all(s.load is first.load for s in settings) and not first.starts_differ
    return settings[:1] if same else settings


def _bound(setting: Setting, seed: int, budget: int, *, free_moves: bool = False) -> Bound | None:
    if budget <= 0:
        return None
    oracle = find_schedule(setting, seed, free_moves=free_moves, budget=budget)
    if oracle is None:
        return None
    return _bound_of(oracle.run, oracle.simulations)


def _rate_bounds(scored: Callable[[int], Setting], settings: list[Setting], budget: int) -> dict[int, Bound]:
    oracle = schedule_for_rate(scored, budget=budget) if budget > 0 else None
    if oracle is None:
        return {}
    runs = [run_schedule(oracle.schedule, setting, seed) for seed, setting in enumerate(settings)]
    return {seed: _bound_of(run, oracle.simulations) for seed, run in enumerate(runs)}


def _by_seed(values: Sequence[T | None], seeds: int) -> dict[int, T]:
    """Return the answers by seed; a single answer holds for every seed."""
    answers = values if len(values) > 1 else [*values] * seeds
    return {seed: answer for seed, answer in enumerate(answers) if answer is not None}


def _causal(setting: Setting, seed: int, surprises_s: Sequence[float], budget: int) -> CausalBounds | None:
    if budget <= 0 or not surprises_s:
        return None
    begin_s = setting.load.score[0]
    schedules = causal_bound(setting, seed, [begin_s + at_s for at_s in surprises_s], budget)
    if schedules is None:
        return None
    unready, ready = _bound_of(schedules.unready.run, schedules.simulations), schedules.ready
    if ready is None:
        return CausalBounds(unready, None, None)
    return CausalBounds(unready, _bound_of(ready.run, schedules.simulations), ready.reserve_ratio)


def _bound_of(run: RunResult, simulations: int) -> Bound:
    return Bound(run.attainment, run.gpu_hours, run.mean_replicas, simulations)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
