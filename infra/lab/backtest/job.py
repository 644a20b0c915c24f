"""Job of `harmony backtest`: fetch the history, compare, draw and write the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agents.policy import Policy, Slo
from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader, metric_names
from infra.collect.mapping.workloads import Identities
from infra.collect.sources.prometheus import PrometheusApi, PrometheusError
from infra.console.errors import HarmonyError
from infra.console.progress import ReportProgress
from infra.console.web import http_client, printable_url
from infra.lab.backtest.comparison import ComparisonTerms, compare
from infra.lab.backtest.history import BIN_S, HistoryBuilder, RecordedHistory, read_history, write_history
from infra.lab.backtest.report import PLOT, draw, write_report
from infra.lab.replay.policies.harmony import acting_early
from infra.settings.load import Settings
from infra.simulator.arrivals import Tokens
from infra.simulator.ledger import Objective
from infra.simulator.profiles import ProfileError, named_profile

# The history of a workload, fetched from a Prometheus server in portions of some hours.


_PORTION_S = 6 * 3600


def fetch(
    api: PrometheusApi,
    reader: Reader,
    names: Sequence[str],
    start_s: float,
    end_s: float,
    progress: ReportProgress,
) -> HistoryBuilder:
    """Histories of every workload of `[start_s, end_s)`.

    Args:
        names: series to ask for.

    Raises:
        HarmonyError: the server does not answer.
    """
    builder = HistoryBuilder()
    at_s = start_s - start_s % BIN_S
    total = max(1.0, end_s - at_s)
    begun_s = at_s
    while at_s < end_s:
        until_s = min(at_s + _PORTION_S, end_s)
        try:
            points = api.graph(names, at_s, until_s - BIN_S, BIN_S)
        except PrometheusError as error:
            raise HarmonyError(f"The Prometheus server does not answer: {error}") from None
        builder.add(reader.read(points))
        at_s = until_s
        progress(f"read {(at_s - begun_s) / total:.0%} of the history", (at_s - begun_s) / total)
    return builder


_TIMEOUT_S = 120.0
_PROMPT, _OUTPUT = Tokens(900, 0.6), Tokens(200, 0.6)
_HISTORY = "history.csv"
_STEP_S, _LONG_STEP_S, _LONG_H = 15.0, 60.0, 48.0


@dataclass(frozen=True, slots=True)
class BacktestJob:
    """What the command line asks for."""

    settings: Settings
    prometheus: str | None
    history: Path | None
    workload: str | None
    days: float
    until_s: float
    profiles: tuple[str, ...]
    mappings: tuple[Path, ...]
    selector: str
    slo_ttft: float | None
    slo_tpot: float | None
    objective: float | None
    lead_time: float | None
    min_replicas: int
    max_replicas: int | None
    engine: str
    gpus_per_replica: int | None
    fit: bool
    epsilon: float | None
    step: float | None
    seeds: int
    out: Path
    headers: tuple[str, ...]
    token_file: Path | None
    ca_file: Path | None


def run_backtest(job: BacktestJob, say: ReportProgress) -> dict[str, Any]:
    """Run the backtest and return the data of its report.

    Raises:
        HarmonyError: anything that cannot be used, in a sentence.
    """
    torch.set_num_threads(1)  # tensors here are small: a second thread would only spin
    try:
        job.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarmonyError(f"--out: cannot make {job.out} ({error.strerror}).") from None
    if job.history is not None:
        recorded = read_history(job.history, job.workload or job.history.name.split(".")[0])
    else:
        recorded = _fetch_history(job, say)
        write_history(job.out / _HISTORY, recorded)
        say(f"The history is kept in {job.out / _HISTORY}; --history reads it again.")
    filled = recorded.filled()
    comparison = compare(filled, terms_of(job, filled), job.seeds, fitted=job.fit, progress=say)
    plot_path = draw(job.out / PLOT, filled, comparison)
    return write_report(job.out, recorded, filled, comparison, plot_path)


def terms_of(job: BacktestJob, history: RecordedHistory) -> ComparisonTerms:
    """Flags, else the settings of the workload, else the defaults.

    Raises:
        HarmonyError: an unknown engine, or bounds that contradict each other (exit code 2).
    """
    spec = next((w for w in job.settings.policy.workloads if w.id == history.workload), None)
    slo = slo_of(job, history.workload)
    most = int(history.replicas.max())
    top = job.max_replicas if job.max_replicas is not None else max(2, 2 * most)
    if job.min_replicas > top or top < most:
        raise HarmonyError(
            f"--max-replicas {top}: up to {most} replicas are recorded, and --min-replicas is {job.min_replicas}.", 2
        )
    try:
        engine = named_profile(job.engine)
    except ProfileError as error:
        raise HarmonyError(str(error), 2) from None
    gpus = job.gpus_per_replica or (spec.gpus_per_replica if spec else engine.gpus_per_replica)
    step_s = job.step if job.step is not None else _STEP_S if history.hours <= _LONG_H else _LONG_STEP_S
    lead_s = job.lead_time if job.lead_time is not None else spec.lead_time_s if spec else 120.0
    return ComparisonTerms(
        replace(engine, gpus_per_replica=gpus), Objective(slo.ttft_s, slo.tpot_s), slo.objective, lead_s,
        job.min_replicas, top, step_s, policy_of(job, history.workload), _PROMPT, _OUTPUT,
    )  # fmt: skip


def policy_of(job: BacktestJob, workload: str) -> Policy:
    """That of the settings with the flag's ε, else the workload's own, and its own limits.

    HARMONY acts early, and a floor under the fleet is not one workload's.
    """
    policy = job.settings.policy
    spec = policy.spec(workload)
    own = policy.epsilon if spec is None else policy.epsilon_of(spec.slo)
    return replace(
        policy,
        epsilon=own if job.epsilon is None else job.epsilon,
        guards=acting_early(replace(policy.limits(workload), fleet_min_replicas=0)),
    )


def slo_of(job: BacktestJob, workload: str) -> Slo:
    """Flags, else the settings of the workload, else the defaults."""
    spec = next((w for w in job.settings.policy.workloads if w.id == workload), None)
    slo = spec.slo if spec else Slo()
    slo = Slo(
        slo.ttft_s if job.slo_ttft is None else job.slo_ttft,
        slo.tpot_s if job.slo_tpot is None else job.slo_tpot,
        slo.objective if job.objective is None else job.objective,
    )
    if not (slo.ttft_s > 0 and slo.tpot_s > 0 and 0 < slo.objective < 1):
        raise HarmonyError("--slo-ttft and --slo-tpot must be seconds above 0, --objective between 0 and 1.", 2)
    return slo


def _fetch_history(job: BacktestJob, say: ReportProgress) -> RecordedHistory:
    http = http_client(_TIMEOUT_S, job.headers, job.token_file, job.ca_file)
    mapping = choose(job.profiles, job.mappings)
    read = [p for p in mapping.profiles if p.kind != "gpu"]
    if job.profiles and "kube" not in job.profiles:
        read += [p for p in choose(("kube", "kube-statefulset")).profiles if p.name not in {q.name for q in read}]
    identities = Identities(job.settings.matches, mapping.rules)
    reader = Reader(read, identities, lambda workload: slo_of(job, workload))
    names = sorted({name for p in read for name in metric_names(p)})
    api = PrometheusApi(str(job.prometheus), http, job.selector)
    end_s = job.until_s - job.until_s % BIN_S
    builder = fetch(api, reader, names, end_s - job.days * 86_400, end_s, say)
    workloads = builder.workloads()
    if job.workload is not None:
        return builder.history(job.workload)
    if len(workloads) == 1:
        return builder.history(next(iter(workloads)))
    if not workloads:
        reasons = "; ".join(f"{profile}: {why}" for profile, why in list(reader.tally.unplaced)[:3])
        raise HarmonyError(
            f"{printable_url(str(job.prometheus))} holds no requests of the last {job.days:g} days that a profile knows"
            + (f" ({reasons})" if reasons else "")
            + ". `harmony collect profiles` lists what is known; --mapping reads other exporters."
        )
    listed = ", ".join(f"{w} ({n:.0f} requests)" for w, n in sorted(workloads.items(), key=lambda x: -x[1])[:8])
    raise HarmonyError(f"--workload: there are {len(workloads)}: {listed}.", 2)
