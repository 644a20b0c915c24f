"""The plan of each workload: the fewest replicas whose risk of missing the SLO is at most the stated one.

    demand paths, capacity and lead-time posteriors ─▶ screen: proposals ─▶ verify on fresh draws ─▶ count, risks, cost

Proposals come from a reactive rule, a quantile of the peak, the chance constraint on the screened futures and the last
plan. The constraint is then read on fresh draws, outwards from its screened proposal until the fewest count that
satisfies it is enclosed. A row's random numbers come from (workload, origin, seed), so a row does not depend on its
batch. Pure: takes records and tensors, returns records.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from agents.plan_request import LEVELS, PlanInput, PlanResult
from agents.policy import Policy
from agents.records import LevelRisk, Quantiles
from model.backlog import risk_of
from model.chance import Outlook, Verified, fewest, screen, verify
from model.contract import quantiles_of_paths

__all__ = ["LEVELS", "PlanInput", "PlanResult", "horizon_steps", "plan", "reactive_replicas"]

_STRATA: Final = (np.arange(1024) + 0.5) / 1024  # levels of the quantiles that draws are taken from
_MOST_RISKS: Final = 16  # counts a plan states the risk of
_SURE_SIGMAS: Final = 2.0  # of a Poisson count, below which a slot's arrivals are surely not chance


@dataclass(frozen=True, slots=True)
class _Row:
    """A request with what was read off its posteriors."""

    request: PlanInput
    bounds: tuple[int, int]
    reactive: int | None
    epsilon: float
    horizon: int
    delay_s: float
    lead_s: tuple[float, ...]
    capacity: tuple[float, ...]


def horizon_steps(lead_p95_s: float, commit_s: float, step_ms: int, max_horizon: int) -> int | None:
    """Steps a forecast must reach to cover lead time and commit window; None when above `max_horizon`."""
    steps = max(math.ceil((lead_p95_s + commit_s) * 1000.0 / step_ms - 1e-9), 1)
    return steps if steps <= max_horizon else None


def reactive_replicas(request: PlanInput, commit_s: float) -> int | None:
    """Replicas for the present arrival rate, and to work the queue off within the commit time; None when unknown.

    One slot is a noisy witness: of its requests only as many count as are surely more than chance.
    """
    rate = request.arrival_rate_now
    if rate is None or not math.isfinite(rate) or not request.capacity.known:
        return None
    step_s = request.step_ms / 1000.0
    requests = max(rate, 0.0) * step_s
    surely = max(0.0, requests - _SURE_SIGMAS * math.sqrt(requests)) / step_s
    capacity = float(request.capacity.quantiles((0.5,))[0])
    return _clip(_replicas_for(surely + request.waiting / commit_s, capacity), request.bounds)


def plan(
    requests: Sequence[PlanInput], paths: Tensor, policy: Policy, *, indicator: int = 0, delay_s: float = 0.0
) -> list[PlanResult]:
    """Plan every workload of a batch.

    Args:
        requests: B of them, of one step length.
        paths: float [B, S, H, N], joint sample paths aligned with `requests`.
        indicator: column of N that is the arrival rate.
        delay_s: time from the origin until a command is given, which the lead time does not hold.

    Returns:
        One result per request, in order.

    Raises:
        ValueError: paths that do not fit the requests, or requests of several step lengths.
    """
    if paths.ndim != 4 or paths.shape[0] != len(requests):
        raise ValueError(f"paths must be [{len(requests)}, S, H, N], got {tuple(paths.shape)}")
    if not requests:
        return []
    if len({r.step_ms for r in requests}) > 1:
        raise ValueError("requests of one batch must share one step length")
    demand = paths[..., indicator].to(torch.float32).clamp(min=0.0)  # [B, S, H]
    finite = torch.isfinite(demand).all(dim=-1).all(dim=-1).tolist()
    described = [_describe(r, policy, demand.shape[-1], delay_s, ok) for r, ok in zip(requests, finite, strict=True)]
    at = [i for i, d in enumerate(described) if isinstance(d, _Row)]
    rows = [d for d in described if isinstance(d, _Row)]
    planned = iter(_plan_rows(rows, demand[torch.tensor(at, device=demand.device)], policy) if rows else ())
    return [next(planned) if isinstance(d, _Row) else d for d in described]


def _describe(request: PlanInput, policy: Policy, horizon: int, delay_s: float, finite: bool) -> _Row | PlanResult:
    """The request with its quantiles, or the answer where no futures need be looked at."""
    epsilon = policy.epsilon if request.epsilon is None else request.epsilon
    lead_s = tuple(request.lead.quantiles(LEVELS).tolist())
    lead = Quantiles(LEVELS, lead_s)
    known = request.capacity.known
    capacity = tuple(request.capacity.quantiles(LEVELS).tolist()) if known else ()
    reactive = reactive_replicas(request, policy.commit_s)
    reach = min(policy.max_horizon, horizon)
    steps = horizon_steps(lead_s[-1] + delay_s, policy.commit_s, request.step_ms, reach)
    if steps is None or not finite:
        return PlanResult(
            request.workload,
            "horizon" if steps is None else "forecast",
            epsilon,
            capacity=Quantiles(LEVELS, capacity) if known else None,
            lead_time_s=lead,
            reactive_replicas=reactive,
        )
    if not known:
        current = request.ready + request.pending
        wanted = (request.arrival_rate_now or 0.0) > 0 or request.waiting > 0
        proposed = _clip(max(current, 1) if wanted else current, request.bounds)
        return PlanResult(request.workload, None, epsilon, proposed, "capacity_unknown", lead_time_s=lead)
    return _Row(request, request.bounds, reactive, epsilon, steps, delay_s, lead_s, capacity)


def _plan_rows(rows: Sequence[_Row], demand: Tensor, policy: Policy) -> list[PlanResult]:
    outlook = _outlook(rows, demand, policy)
    needs = screen(outlook)
    chance = fewest(needs.kept, outlook.epsilon)
    windows = [_window(row, policy.commit_s) for row in rows]
    peaks = _peaks(rows, windows, demand, outlook)
    proposals = [_proposals(*known) for known in zip(rows, chance, peaks, strict=True)]
    verified = verify(outlook, chance, policy.paths_verify)
    counts = [_stated(*known) for known in zip(rows, verified, proposals, strict=True)]
    width = max(map(len, counts))
    padded = outlook.whole([c + c[-1:] * (width - len(c)) for c in counts])
    rough = risk_of(needs.missed, padded, outlook.num_paths)
    return [
        PlanResult(
            workload=row.request.workload,
            refused=None,
            epsilon=row.epsilon,
            proposed=answer.replicas,
            proposer=answer.ground,
            proposals=proposed,
            risks=_risks(row, answer, count, p_miss, stderr, policy.commit_s),
            peak=Quantiles(LEVELS, peak),
            window_s=window[1] - window[0],
            capacity=Quantiles(LEVELS, row.capacity),
            lead_time_s=Quantiles(LEVELS, row.lead_s),
            reactive_replicas=row.reactive,
        )
        for row, answer, proposed, count, p_miss, stderr, peak, window in zip(
            rows, verified, proposals, counts, rough.p_miss.tolist(), rough.stderr.tolist(), peaks, windows, strict=True
        )
    ]


def _outlook(rows: Sequence[_Row], demand: Tensor, policy: Policy) -> Outlook:
    device, horizon = demand.device, demand.shape[2]
    requests = [row.request for row in rows]
    step_s = requests[0].step_ms / 1000.0

    def whole(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    def real(numbers: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=device)

    def table(quantiles: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(quantiles)).to(device)

    return Outlook(
        demand=demand,
        capacity=table([r.capacity.quantiles(_STRATA) for r in requests]),
        lead_s=table([row.request.lead.quantiles(_STRATA) + row.delay_s for row in rows]),
        horizon=whole([row.horizon for row in rows]),
        ready=whole([r.ready for r in requests]),
        pending=whole([r.pending for r in requests]),
        arrived=table([_arrived(r, horizon, step_s) for r in requests]),
        backlog=real([r.waiting for r in requests]),
        ttft_s=real([r.declared.slo.ttft_s for r in requests]),
        objective=real([r.declared.slo.objective for r in requests], torch.float64),
        bounds=tuple(row.bounds for row in rows),
        epsilon=tuple(row.epsilon for row in rows),
        seeds=tuple(_seeds(r, policy.seed) for r in requests),
        window_steps=min(max(math.ceil(policy.commit_s / step_s - 1e-9), 1), horizon),
        step_s=step_s,
    )


def _seeds(request: PlanInput, seed: int) -> tuple[int, int, int, int]:
    text = f"{request.workload}\x1f{request.origin_ts_ms}\x1f{seed}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    first, second, third, fourth = (int.from_bytes(digest[i : i + 4], "little") for i in (0, 4, 8, 12))
    return first, second, third, fourth


def _arrived(request: PlanInput, horizon: int, step_s: float) -> np.ndarray:
    """Pending replicas of known remaining time that serve from the start of each step; int64 [H]."""
    remaining = np.asarray(request.pending_remaining_s[: request.pending], dtype=np.float64)
    first = np.ceil(np.maximum(remaining, 0.0) / step_s - 1e-9)
    arrived: np.ndarray = (first[None, :] <= np.arange(horizon)[:, None]).sum(axis=1).astype(np.int64)
    return arrived


def _window(row: _Row, commit_s: float) -> tuple[float, float]:
    """The time a replica commanded now answers for, in seconds after the origin."""
    return row.lead_s[LEVELS.index(0.5)] + row.delay_s, row.lead_s[-1] + row.delay_s + commit_s


def _peaks(
    rows: Sequence[_Row], windows: Sequence[tuple[float, float]], demand: Tensor, outlook: Outlook
) -> list[tuple[float, ...]]:
    """Quantiles of the largest arrival rate within each row's window, 1/s."""
    steps = torch.arange(demand.shape[2], device=demand.device)
    starts = [min(int(start / outlook.step_s), row.horizon - 1) for row, (start, _) in zip(rows, windows, strict=True)]
    inside = (steps >= outlook.whole(starts)[:, None]) & (steps < outlook.horizon[:, None])  # [B, H]
    peak = demand.masked_fill(~inside[:, None, :], 0.0).amax(dim=-1)  # [B, S]
    quantiles = quantiles_of_paths(peak, torch.tensor(LEVELS, dtype=torch.float64, device=demand.device))
    return [tuple(q) for q in quantiles.tolist()]


def _clip(replicas: int, bounds: tuple[int, int]) -> int:
    return min(max(replicas, bounds[0]), bounds[1])


def _replicas_for(rate: float, capacity: float) -> int:
    return math.ceil(min(rate / capacity, 1e9) - 1e-9)


def _proposals(row: _Row, chance: int, peak: tuple[float, ...]) -> dict[str, int]:
    quantile = _replicas_for(peak[-1], row.capacity[LEVELS.index(0.5)])
    offered = {
        "chance_constrained": chance,
        "quantile": quantile,
        "reactive": row.reactive,
        "last_plan": row.request.last_replicas,
    }
    return {proposer: _clip(count, row.bounds) for proposer, count in offered.items() if count is not None}


def _stated(row: _Row, verified: Verified, proposals: dict[str, int]) -> list[int]:
    """Counts whose risk the plan states: the nearest to the proposed one, when there are many."""
    others = {_clip(row.request.ready + row.request.pending, row.bounds), *proposals.values()}
    beside = {_clip(n + d, row.bounds) for n in others for d in (-1, 0, 1)}
    nearest = sorted(beside, key=lambda n: (n not in others, abs(n - verified.replicas), n))
    return sorted({*nearest[:_MOST_RISKS], *verified.counts})


def _risks(
    row: _Row, verified: Verified, counts: list[int], p_miss: list[float], stderr: list[float], commit_s: float
) -> tuple[LevelRisk, ...]:
    """Verified risks where there are, screened ones elsewhere, never rising with the count."""
    known = dict(zip(verified.counts, zip(verified.p_miss, verified.stderr, strict=True), strict=True))
    most, least = verified.p_miss[0], verified.p_miss[-1]
    hours = row.request.declared.gpus_per_replica * commit_s / 3600.0
    risks = []
    for count, rough, error in zip(counts, p_miss, stderr, strict=False):
        if count in known:
            p, e = known[count]
        else:
            p, e = (max(rough, most) if count < verified.counts[0] else min(rough, least)), error
        risks.append(LevelRisk(count, p, e, count * hours))
    return tuple(risks)
