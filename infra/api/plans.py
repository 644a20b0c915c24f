"""`harmony.plan`: what HARMONY would do with a load, by the stages of a worker; `harmony.explain`: why, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from infra.api.errors import InputError, python_errors
from infra.api.frames import tables_of_frame, whole_number

if TYPE_CHECKING:
    import pandas as pd

    from agents.records import Decision
    from infra.lab.series import Table

_WORKLOAD: Final = "load"
_MOST_STEPS: Final = 512
_LEAST_STEPS: Final = 32
_LONGEST_LEAD_S: Final = 86_400.0
_UNWRAPPED: Final = 10_000


def plan(
    df: pd.DataFrame,
    *,
    capacity_rps: float,
    replicas: int,
    lead_time: float = 100.0,
    slo_ttft: float = 2.0,
    slo_tpot: float = 0.2,
    objective: float = 0.99,
    min_replicas: int = 1,
    max_replicas: int = 16,
    gpus_per_replica: int = 1,
) -> Decision:
    """What HARMONY would decide at the end of a load: the count, its risk, the guards, and what other rules would want.

    The last 512 rows go through the stages of a worker, ingest, forecast, plan and guards, with the shipped settings.
    Only the warm-up is shorter: 32 steps. Capacity and lead time are the declared ones, as no engine is observed. The
    replicas stay as they are throughout, as in mode observe, and the decision is the one at the end.

    Args:
        df: pandas DataFrame with the columns timestamp and target, requests/s, at a regular step of 1 s or more. Holes
            are missing telemetry; after one the guards hold.
        capacity_rps: requests/s that one replica carries within the SLO.
        replicas: replicas that are ready.
        lead_time: seconds from command to ready.
        slo_ttft, slo_tpot: seconds to the first token, and per further token.
        objective: wanted share of requests within both.
        min_replicas, max_replicas: bounds.
        gpus_per_replica: GPUs that one replica holds.

    Returns:
        The record that a worker publishes on the topic `decisions` (docs/formats). `.action` is up, down or hold,
        `.replicas.final` the count, `.risk.p_miss` the risk per count, `.shadow` what other rules would want.

    Raises:
        InputError: a table as `forecast` refuses it, of several items, with negative rates, or with fewer than 32 rows;
            a bound or an objective that cannot be.
    """
    whole_number("replicas", replicas, 0, 100_000)
    whole_number("min_replicas", min_replicas, 0)
    whole_number("max_replicas", max_replicas, max(1, min_replicas), 100_000)
    whole_number("gpus_per_replica", gpus_per_replica, 1)
    numbers = {"capacity_rps": capacity_rps, "lead_time": lead_time, "slo_ttft": slo_ttft, "slo_tpot": slo_tpot}
    for name, number in numbers.items():
        if not (math.isfinite(number) and number > 0):
            raise InputError(f"{name}: {number!r} must be a number above 0.")
    if lead_time > _LONGEST_LEAD_S:
        raise InputError(f"lead_time: {lead_time!r} must be at most a day, in seconds.")
    if not 0 < objective < 1:
        raise InputError(f"objective: {objective!r} must be between 0 and 1, such as 0.99.")
    with python_errors():
        (table, *others) = tables_of_frame(df, "item_id", "timestamp", "target", None)
    if others:
        raise InputError(f"df: holds {1 + len(others)} items; plan one at a time, such as df[df.item_id == 'web'].")
    _check_rates(table)

    from agents.policy import GuardLimits, Policy, Slo, TargetRef, WorkloadSpec
    from infra.lab.replay.policies.harmony import acting_early

    spec = WorkloadSpec(
        id=_WORKLOAD,
        target=TargetRef(name=_WORKLOAD),
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        gpus_per_replica=gpus_per_replica,
        slo=Slo(slo_ttft, slo_tpot, objective),
        capacity_rps=capacity_rps,
        lead_time_s=lead_time,
    )
    policy = Policy(fleet="plan", guards=acting_early(GuardLimits()), workloads=(spec,))
    return _last_decision(table, replicas, policy)


def _check_rates(table: Table) -> None:
    import numpy as np

    rates = table.values[:, 0]
    if len(rates) < _LEAST_STEPS:
        raise InputError(f"df: holds {len(rates)} steps; a plan needs {_LEAST_STEPS}. Give a longer load.")
    if np.nanmin(rates, initial=0.0) < 0:
        raise InputError("df: column 'target' must be requests/s, none negative.")
    if table.step_ms < 1000:
        raise InputError(f"df: has a step of {table.step_ms} ms; resample it to 1 s or more.")


def _last_decision(table: Table, replicas: int, policy: Any) -> Decision:
    """Publish the load step by step as telemetry; the decision of the last one."""
    import numpy as np
    import torch

    from infra.lab.replay.loop import MemoryLoop
    from model.network.forecaster import worker_forecaster
    from streams.config import StreamConfig
    from streams.records.facts import FleetFacts
    from streams.records.schema import encode_fleet, encode_sample

    torch.set_num_threads(1)  # the tensors are small
    rates, step_ms = table.values[-_MOST_STEPS:, 0], table.step_ms
    first_ms = table.start_ts_ms + (len(table.values) - len(rates)) * step_ms
    first_ms += -first_ms % step_ms  # slots begin at multiples of the step
    loop = MemoryLoop(policy, StreamConfig(step_ms=step_ms, grace_ms=0, skew_ms=0), worker_forecaster())
    try:
        started = 0.0
        for k in range(-1, len(rates)):
            end_ms = first_ms + (k + 1) * step_ms
            facts = FleetFacts(end_ms - 1, replicas, pending=0, draining=0, desired=replicas)
            values = [encode_fleet(_WORKLOAD, "plan", facts)]
            if k < 0 or np.isfinite(rates[k]):
                started += 0.0 if k < 0 else float(rates[k]) * step_ms / 1000
                sample = {"requests_started_total": started}
                values.append(encode_sample("requests", _WORKLOAD, "plan", end_ms - 1, sample))
            loop.close_slot(_WORKLOAD, values, end_ms)
        return loop.decisions[-1]
    finally:
        loop.close()


def explain(decision: Decision) -> str:
    """A decision in plain words, as `harmony explain` prints it.

    Args:
        decision: of `plan` or `subscribe("decisions")`.
    """
    from io import StringIO

    from rich.console import Console

    from infra.explain.views import explanation

    out = StringIO()
    Console(file=out, width=_UNWRAPPED, color_system=None, force_terminal=False).print(explanation(decision))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
