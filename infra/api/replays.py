"""`harmony.replay`: scaling policies on a recorded load (docs/replay.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.api.errors import InputError, python_errors
from infra.api.frames import DF, check_frame, frame_cells, tables_of_frame, whole_number
from infra.lab.defaults import OUTPUT_TOKENS, PROMPT_TOKENS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy and seed.

    Attributes:
        params: what tuning chose.
        attainment: share of requests within the SLO, 0 to 1.
        worst_window_attainment: of the worst hour; of the worst ten minutes in a load of about an hour.
        gpu_hours: GPUs held, over the scored part.
        mean_replicas: over the scored part.
        switches_per_hour: changes of the wanted count.
        ttft_p50_s, ttft_p99_s: time to the first token, seconds.
        tpot_p50_s, tpot_p99_s: time per further token, seconds.
    """

    policy: str
    seed: int
    params: str
    attainment: float
    worst_window_attainment: float
    gpu_hours: float
    mean_replicas: float
    switches_per_hour: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay measured.

    Attributes:
        load: its name.
        runs: one per policy and seed.
        oracle_gpu_hours: of the best schedule found for one who knows the arrivals, mean over seeds; None: not sought,
            or none keeps the objective.
        document: everything, as `harmony replay --json` writes it.
    """

    load: str
    runs: tuple[PolicyRun, ...]
    oracle_gpu_hours: float | None
    document: dict[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """A row per policy and seed (needs pandas)."""
        from dataclasses import asdict

        import pandas as pd

        return pd.DataFrame([asdict(run) for run in self.runs])


def replay(
    load: str | Path | pd.DataFrame,
    policies: Sequence[str] = ("harmony", "hpa", "static-peak"),
    *,
    profile: str = "dense-70b",
    slo_ttft: float = 2.0,
    slo_tpot: float = 0.2,
    objective: float = 0.99,
    lead_time: float | str = 100.0,
    min_replicas: int = 1,
    max_replicas: int = 16,
    seeds: int = 1,
    step: float = 15.0,
    tune: bool = True,
    oracle: int = 0,
    day: int | None = None,
    mean_rate: float | None = None,
    prompt_tokens: str = PROMPT_TOKENS,
    output_tokens: str = OUTPUT_TOKENS,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> ReplayResult:
    """Run scaling policies on the same load, simulated engine, lead times and bounds.

    Args:
        load: a built-in load (ramp, flash-crowd, regime-shift, longer-answers, hourly, half-hourly), a file of
            requests or rates as `harmony replay` reads it, or a DataFrame. A frame of requests has the columns
            arrival_s, prompt_tokens and output_tokens; a frame of rates has timestamp and target, requests/s that
            hold until the next row.
        policies: names of docs/replay.md.
        profile: engine profile, a built-in name or a JSON file.
        slo_ttft, slo_tpot: seconds to the first token, and per further token.
        objective: wanted share of requests within both.
        lead_time: seconds from command to ready, or as "100~0.3" and "40/300:0.25" of `harmony replay`.
        min_replicas, max_replicas: bounds of every policy.
        seeds: runs per policy: draws of the arrivals of rates, and of lead times.
        step: seconds per telemetry step of HARMONY.
        tune: tune every policy on the training part.
        oracle: simulations that the search for the best schedule may take; 0 = none.
        day: day of a load of several days, from 0; the one before is tuned on.
        mean_rate: thin rates to this mean, requests/s.
        prompt_tokens, output_tokens: mean, or mean:sigma of the logarithm, for a load without token counts.
        jobs: processes side by side.
        progress: takes a sentence for each part that begins.

    Raises:
        InputError: a load, policy, profile, bound or objective that cannot be used.
    """
    from infra.lab.replay.job import ReplayRequest, measure

    whole_number("seeds", seeds, 1, 1000)
    whole_number("jobs", jobs, 1, 256)
    whole_number("oracle", oracle, 0)
    if not 1.0 <= step < float("inf"):
        raise InputError(f"step: {step!r} must be seconds, 1 or more.")
    is_frame = not isinstance(load, str | Path)
    with python_errors(of_table=is_frame):
        source = _load_of_frame(load, prompt_tokens, output_tokens) if is_frame else _named_load(load)
        is_rate = "requests" not in source
        request = ReplayRequest(
            **source, prompt_tokens=prompt_tokens if is_rate else None,
            output_tokens=output_tokens if is_rate else None, policies=",".join(policies), profile=profile,
            slo_ttft=slo_ttft, slo_tpot=slo_tpot,
            objective=objective, lead_time=str(lead_time), min_replicas=min_replicas, max_replicas=max_replicas,
            seeds=seeds, step=step, tune=tune, oracle=oracle, day=day, mean_rate=mean_rate, jobs=jobs,
        )  # fmt: skip
        report = measure(request, lambda text, _=None: progress(text))
    bounds = [bound.gpu_hours for bound in report.result.oracle.values()]
    fields = PolicyRun.__dataclass_fields__
    runs = tuple(PolicyRun(**{name: getattr(row, name) for name in fields}) for row in report.result.rows)
    return ReplayResult(report.result.name, runs, sum(bounds) / len(bounds) if bounds else None, report.document)


def _named_load(load: str | Path) -> dict[str, Any]:
    """A file of requests or of rates, by what its first line says; else a built-in rate."""
    from infra.simulator.traces import holds_requests

    where = Path(load)
    return {"requests": where} if where.is_file() and holds_requests(where) else {"rate": str(load)}


def _load_of_frame(df: Any, prompt_tokens: str, output_tokens: str) -> dict[str, Any]:
    from infra.lab.replay.job import token_law
    from infra.simulator.arrivals import RateProfile, TraceError
    from infra.simulator.traces import PLAIN, TraceRow, trace_of

    if PLAIN[0] in getattr(df, "columns", ()):
        check_frame(df, PLAIN)
        try:
            return {"requests": trace_of(DF, PLAIN, (TraceRow(*row) for row in frame_cells(df, PLAIN)))}
        except TraceError as error:
            raise InputError(f"{str(error).replace(', line ', ', row ')}.") from None
    tables = tables_of_frame(df, "item_id", "timestamp", "target", None)
    if len(tables) > 1:
        raise InputError(f"df: holds {len(tables)} items; replay one at a time, such as df[df.item_id == 'web'].")
    import numpy as np

    from model.evaluation.rolling import fill_forward

    rates = fill_forward(tables[0].values)[:, 0]
    if not (rates >= 0).all() or not rates.any():
        raise InputError("df: column 'target' must be requests/s, none negative and not all 0.")
    edges = np.arange(len(rates) + 1, dtype=np.float64) * (tables[0].step_ms / 1000)
    laws = token_law(prompt_tokens), token_law(output_tokens)
    return {"rate": RateProfile(tables[0].item_id, edges, rates, (laws[0],) * len(rates), (laws[1],) * len(rates))}
