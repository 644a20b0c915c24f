"""What a workload's load is counted in: requests, prompt tokens or generated tokens.

Pools of one service that do one half of the work are counted in that half's tokens: prefill reads prompts, decode
generates. A whole service is counted in requests, until their answers change so much that tokens tell more of the
work (see `model.capacity.request_shape`). Longer prompts or answers are then more load and not less capacity. A queue
counts in tokens too, by how many a request has of late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from agents.policy import Role, WorkloadSpec
from agents.workload.signals import mean_ratio
from model.capacity.evidence import SlotEvidence
from model.capacity.request_shape import Lengths
from streams.catalogue import ARRIVAL_RATE
from streams.windows.table import Window

if TYPE_CHECKING:  # decisions are made where no model is
    pass

Unit = Literal["requests", "prompt_tokens", "output_tokens"]
INDICATOR_OF: Final[dict[Unit, str]] = {
    "requests": ARRIVAL_RATE,
    "prompt_tokens": "request.prompt_token_rate",
    "output_tokens": "request.output_token_rate",
}
UNIT_OF: Final[dict[Role, Unit]] = {"both": "requests", "prefill": "prompt_tokens", "decode": "output_tokens"}
_SLOTS: Final = 40  # whose mean is how many tokens a request has
SURE_SIGMAS: Final = 2.0
_P95_MISSES: Final = 0.05  # a 95th percentile above the limit says that at least so many missed
_ENOUGH: Final = 200  # requests whose lengths differ by tenfold have a mean within a fifth
_SETTLED: Final = 0.25  # of the requests that came: so many more or fewer than before are in the system
_FEW_SLOTS: Final = 24  # looked back; all of them where these hold too few requests
_WAITING: Final = "engine.waiting"
_LENGTHS: Final = (ARRIVAL_RATE, INDICATOR_OF["prompt_tokens"], INDICATOR_OF["output_tokens"], "engine.running")


def fixed_unit(spec: WorkloadSpec) -> Unit | None:
    """What the declaration says it is counted in; None where that follows the shape of requests.

    SLO classes are shares of requests.
    """
    return UNIT_OF[spec.role] if spec.role != "both" or spec.slo.classes else None


def demand_column(unit: Unit, window: Window) -> int:
    """Column of what the workload is planned by; the arrival rate where the catalogue has no tokens."""
    return window.columns.get(INDICATOR_OF[unit], 0)


def demand_columns(columns: Mapping[str, int]) -> list[int]:
    """Where requests and tokens stand, requests first; -1 for those that are not there."""
    return [columns.get(name, -1) for name in INDICATOR_OF.values()]


def demand_steps(unit: Unit, window: Window) -> int:
    """Steps of the context in which it was observed."""
    return window.observed_steps[demand_column(unit, window)]


def declared_capacity(spec: WorkloadSpec, per_request: float = 1.0) -> float | None:
    """Of one replica, per second, in the unit of its role, or in one of which a request has so many."""
    if spec.role != "both":
        return spec.capacity_tokens_per_s
    return None if spec.capacity_rps is None else spec.capacity_rps * per_request


def unit_evidence(
    spec: WorkloadSpec, unit: Unit, window: Window, slot: SlotEvidence, lengths: Lengths | None = None
) -> SlotEvidence:
    """What a slot says of a replica, counted in this unit, and in the other that it may come to be counted in.

    Args:
        lengths: of late, where there is another unit.
    """
    if unit == "requests":
        if fixed_unit(spec):
            return slot
        tokens = window.newest(INDICATOR_OF["output_tokens"])
        return replace(slot, other_rate=tokens, others_per_unit=None if lengths is None else lengths.output)
    tokens, rate = tokens_per_request(unit, window), window.newest(ARRIVAL_RATE)
    return replace(
        slot,
        arrival_rate=window.newest(INDICATOR_OF[unit]),
        waiting=None if slot.waiting is None or tokens is None else slot.waiting * tokens,
        finished=None if rate is None else rate * slot.step_s,
        ttft_s=patience_s(spec, tokens),
        in_tokens=True,
        other_rate=None if fixed_unit(spec) else rate,
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


def recent_lengths(window: Window, step_s: float) -> Lengths | None:
    """Tokens per request over the last slots that hold enough requests; None where there are none.

    Tokens of a stretch may be of requests in service when it began, and its own may not have had theirs yet.
    """
    from model.calibration.risk import recent_sums

    try:
        columns = _columns(*map(window.columns.__getitem__, _LENGTHS))
    except KeyError:
        return None
    waiting = window.columns.get(_WAITING, -1)
    told = recent_sums(window.values, window.observed, columns, waiting, _FEW_SLOTS, step_s, _ENOUGH)
    requests, prompt, output, before, now = told
    if requests <= 0:
        return None
    most = output / (requests - min(now, 0.5 * requests))
    settled = abs(now - before) <= _SETTLED * requests
    return Lengths(prompt / requests, output / requests, output / (requests + before), most, settled)


@lru_cache(8)
def _columns(*columns: int) -> NDArray[np.int64]:
    return np.array(columns)


def patience_s(spec: WorkloadSpec, tokens: float | None) -> float:
    """The longest wait that is no miss: for decode no longer than its tokens may take in all."""
    if spec.role == "decode" and tokens is not None:
        return min(spec.slo.ttft_s, spec.slo.tpot_s * tokens)
    return spec.slo.ttft_s


def tokens_per_request(unit: Unit, window: Window) -> float | None:
    return mean_ratio(window, demand_column(unit, window), 0, _SLOTS) or None
