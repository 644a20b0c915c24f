"""Pools of one service that do one half of the work: prefill reads prompts, decode generates tokens.

What a replica of such a pool carries is a rate of tokens, not of requests, so that longer prompts or answers are more
load and not less capacity. Prefill is judged by the time to the first token against prompt tokens, decode by the time
per token against generated ones. A queue counts in tokens too, by how many a request has of late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from agents.policy import Role, WorkloadSpec
from model.slot_evidence import SlotEvidence
from streams.catalogue import ARRIVAL_RATE
from streams.window_table import Window

if TYPE_CHECKING:  # decisions are made where no model is
    from torch import Tensor

    from agents.plan_request import PlanInput

DEMAND_OF: Final[dict[Role, str]] = {
    "both": ARRIVAL_RATE,
    "prefill": "request.prompt_token_rate",
    "decode": "request.output_token_rate",
}
_SLOTS: Final = 40  # whose mean is how many tokens a request has
_SURE_SIGMAS: Final = 2.0
_P95_MISSES: Final = 0.05  # a 95th percentile above the limit says that at least so many missed


def demand_column(spec: WorkloadSpec, window: Window) -> int:
    """Column of what the workload is planned by; the arrival rate where the catalogue has no tokens."""
    return window.columns.get(DEMAND_OF[spec.role], 0)


def demand_steps(spec: WorkloadSpec, window: Window) -> int:
    """Steps of the context in which it was observed."""
    return int(window.observed[:, demand_column(spec, window)].sum())


def declared_capacity(spec: WorkloadSpec) -> float | None:
    """Of one replica in the unit of its role: requests/s, or tokens/s."""
    return spec.capacity_rps if spec.role == "both" else spec.capacity_tokens_per_s


def role_evidence(spec: WorkloadSpec, window: Window, slot: SlotEvidence) -> SlotEvidence:
    """What a slot says of a replica of this role."""
    if spec.role == "both":
        return slot
    tokens, rate = _tokens_per_request(spec, window), window.newest(ARRIVAL_RATE)
    return replace(
        slot,
        arrival_rate=window.newest(DEMAND_OF[spec.role]),
        waiting=None if slot.waiting is None or tokens is None else slot.waiting * tokens,
        finished=None if rate is None else rate * slot.step_s,
        ttft_s=_patience_s(spec, tokens),
        in_tokens=True,
    )


def role_miss_ratio(spec: WorkloadSpec, window: Window) -> float | None:
    """Share of the newest slot's requests that missed: counted, or else what a pool's own percentile proves."""
    counted = window.newest("slo.miss_ratio")
    if counted is not None or spec.role == "both":
        return counted
    name, limit_s = ("ttft", spec.slo.ttft_s) if spec.role == "prefill" else ("tpot", spec.slo.tpot_s)
    p95_s = window.newest(f"request.{name}_p95_s")
    if p95_s is None:
        return None
    if p95_s > limit_s:
        return _P95_MISSES
    return 0.0 if 1.0 - spec.slo.objective >= _P95_MISSES else None


def role_input(request: PlanInput, spec: WorkloadSpec, window: Window) -> PlanInput:
    """A request in the unit of its role. Of a slot's tokens only those of requests that are surely no chance count."""
    if spec.role == "both":
        return request
    tokens, rate, now = _tokens_per_request(spec, window), request.arrival_rate_now, window.newest(DEMAND_OF[spec.role])
    if now is not None and rate is not None and rate > 0:
        requests = rate * request.step_ms / 1000
        now *= max(0.0, 1.0 - _SURE_SIGMAS / math.sqrt(requests))
    slo = replace(spec.slo, ttft_s=_patience_s(spec, tokens))
    return replace(
        request,
        spec=replace(spec, slo=slo),
        arrival_rate_now=now,
        waiting_now=None if request.waiting_now is None else request.waiting_now * (tokens or 0.0),
        per_unit=1.0 / max(tokens, 1.0) if tokens is not None else 1.0,
    )


def role_demand(specs: Sequence[WorkloadSpec], windows: Sequence[Window], paths: Tensor, columns: list[int]) -> Tensor:
    """Paths [B, S, H] of what each workload is planned by, out of paths [B, S, H, C] of these columns."""
    demand = paths[..., columns.index(0)]
    if all(spec.role == "both" for spec in specs):
        return demand
    demand = demand.clone()
    for b, (spec, window) in enumerate(zip(specs, windows, strict=True)):
        column = demand_column(spec, window)
        if column in columns:
            demand[b] = paths[b, ..., columns.index(column)]
    return demand


def _patience_s(spec: WorkloadSpec, tokens: float | None) -> float:
    """The longest wait that is no miss: for decode no longer than its tokens may take in all."""
    if spec.role == "decode" and tokens is not None:
        return min(spec.slo.ttft_s, spec.slo.tpot_s * tokens)
    return spec.slo.ttft_s


def _tokens_per_request(spec: WorkloadSpec, window: Window) -> float | None:
    columns = [demand_column(spec, window), 0]
    recent, seen = window.values[-_SLOTS:, columns].astype(np.float64), window.observed[-_SLOTS:, columns].all(axis=1)
    tokens, requests = recent[seen].sum(axis=0)
    return float(tokens / requests) if tokens > 0 and requests > 0 else None
