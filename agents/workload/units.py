"""The unit of a workload's load: requests, prompt tokens or generated tokens.

A prefill pool is measured in prompt tokens, a decode pool in generated tokens, a whole service in requests. What a
request is in work follows its tokens: the law of the engine says what a replica carries of the present mix
(`model.capacity.law`). In a pool a queue is converted by the recent tokens per request.

A prefix cache holds part of the prompt tokens, and a prefill computes the others. Where engines report these, the load
of a prefill pool is counted in computed tokens: prompt tokens times `uncached_share`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from agents.policy import INDICATOR_OF, Unit, WorkloadSpec
from agents.workload.signals import mean_ratio
from model.capacity.evidence import SlotEvidence
from streams.catalogue import ARRIVAL_RATE, UNCACHED_PROMPT_RATE
from streams.windows.table import Window

# Slots whose mean is the number of tokens per request.
_TOKENS_PER_REQUEST_SLOTS: Final = 40
# Standard deviations of a Poisson count below which arrivals are significant.
SIGNIFICANT_SIGMAS: Final = 2.0
# Share of requests that miss at least where the 95th percentile is above the limit.
_P95_MISSES: Final = 0.05
# Slots whose mean is the share of the prompt tokens that is computed.
_SHARE_SLOTS: Final = 3


def demand_column(unit: Unit, window: Window) -> int:
    """Column of what the workload is planned by; the arrival rate where the catalogue has no tokens."""
    return window.columns.get(INDICATOR_OF[unit], 0)


def demand_columns(columns: Mapping[str, int]) -> list[int]:
    """Where requests and tokens stand, requests first; -1 for those that are not there."""
    return [columns.get(name, -1) for name in INDICATOR_OF.values()]


def uncached_share(window: Window) -> float | None:
    """Share of the prompt tokens that prefills compute, in the last three slots that tell it; None where fewer do.

    A prefill computes at least the last token of a prompt, so slots without any computed token tell nothing.
    """
    try:
        computed, prompt = window.columns[UNCACHED_PROMPT_RATE], window.columns[INDICATOR_OF["prompt_tokens"]]
    except KeyError:
        return None
    values, observed = window.values, window.observed
    rows = np.flatnonzero(observed[:, computed] & observed[:, prompt] & (values[:, prompt] > 0))[-_SHARE_SLOTS:]
    if len(rows) < _SHARE_SLOTS:
        return None
    tokens = float(values[rows, computed].sum(dtype=np.float64))
    return min(tokens / float(values[rows, prompt].sum(dtype=np.float64)), 1.0) if tokens > 0 else None


def load_factor(unit: Unit, window: Window) -> float:
    """Load in this unit for one of the demand column: the uncached share of prompt tokens where it is known, else 1."""
    return (uncached_share(window) or 1.0) if unit == "prompt_tokens" else 1.0


def reports_uncached(window: Window) -> bool:
    """Whether some slot of the window tells how many prompt tokens were computed."""
    column = window.columns.get(UNCACHED_PROMPT_RATE)
    return column is not None and window.observed_steps[column] > 0


def demand_steps(unit: Unit, window: Window) -> int:
    """Steps of the context in which it was observed."""
    return window.observed_steps[demand_column(unit, window)]


def declared_capacity(spec: WorkloadSpec) -> float | None:
    """Of one replica, per second, in the unit of its role."""
    return spec.capacity_rps if spec.role == "both" else spec.capacity_tokens_per_s


def unit_evidence(spec: WorkloadSpec, unit: Unit, window: Window, slot: SlotEvidence) -> SlotEvidence:
    """What a slot says of a replica, counted in this unit."""
    if unit == "requests":
        return slot
    tokens, rate, load = tokens_per_request(unit, window), window.newest(ARRIVAL_RATE), newest_load(unit, window)
    return replace(
        slot,
        arrival_rate=load,
        waiting=None if slot.waiting is None or tokens is None else slot.waiting * tokens,
        finished=None if rate is None else rate * slot.step_s,
        ttft_s=patience_s(spec, tokens),
        in_tokens=True,
    )


def role_miss_ratio(spec: WorkloadSpec, window: Window) -> float | None:
    """Share of the newest slot's requests that missed: counted, or else what a pool's own percentile proves."""
    miss_ratio = window.newest("slo.miss_ratio")
    if miss_ratio is not None or spec.role == "both":
        return miss_ratio
    name, limit_s = ("ttft", spec.slo.ttft_s) if spec.role == "prefill" else ("tpot", spec.slo.tpot_s)
    p95_s = window.newest(f"request.{name}_p95_s")
    if p95_s is None:
        return None
    if p95_s > limit_s:
        return _P95_MISSES
    return 0.0 if 1.0 - spec.slo.objective >= _P95_MISSES else None


def patience_s(spec: WorkloadSpec, tokens: float | None) -> float:
    """The longest wait that is no miss: for decode no longer than its tokens may take in all."""
    if spec.role == "decode" and tokens is not None:
        return min(spec.slo.ttft_s, spec.slo.tpot_s * tokens)
    return spec.slo.ttft_s


def tokens_per_request(unit: Unit, window: Window) -> float | None:
    """Load of one request, over the last forty slots; None where it is not known."""
    tokens = mean_ratio(window, demand_column(unit, window), 0, _TOKENS_PER_REQUEST_SLOTS)
    return tokens * load_factor(unit, window) if tokens else None


def newest_load(unit: Unit, window: Window) -> float | None:
    """Load of the newest slot, per second; None where it is not observed."""
    rate = window.newest(INDICATOR_OF[unit])
    return None if rate is None else rate * load_factor(unit, window)
