"""How many steps a row is forecast: padded to few shapes, by its own lead time alone."""

from __future__ import annotations

from typing import Final

from agents.planning.planner import horizon_steps
from model.network.packaged import REACH_S

_BUCKETS: Final = (8, 16, 24, 32, 48, 64)


def padded_horizon(lead_p95_s: float, commit_s: float, step_ms: int, limit: int) -> int:
    """Steps of the smallest bucket that covers lead time and commit window; `limit` where none does.

    One bucket ends where the shipped network's reach does: with long steps a need within it would else be padded
    beyond it, and the network never be asked.
    """
    steps = horizon_steps(lead_p95_s, commit_s, step_ms, limit)
    if steps is None:
        return limit
    edges = sorted({*_BUCKETS, round(1000 * REACH_S) // step_ms})
    return next((edge for edge in edges if steps <= edge <= limit), limit)
