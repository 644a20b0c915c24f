"""What was learned on other GPUs than a workload runs on now, kept for when they are declared again.

Only the operator knows on what replicas run. A type that is declared for the first time is taken to be what there was;
another in its place puts aside what was learned of a replica, and takes up what was left there, if anything was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agents.workload.units import Unit

_MOST: Final = 4  # types that are remembered beside the present one


class OnOneGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of one replica on one type of GPU, as they stand in a commit record.

    Attributes:
        capacity, lead: snapshots.
        classes: snapshots of the capacity of each SLO class.
    """

    gpu_type: str
    capacity: dict[str, Any]
    lead: dict[str, Any]
    unit: Unit = "requests"
    per_request: float | None = None
    power_w: float | None = None
    classes: dict[str, dict[str, Any]] = {}


def put_aside(others: Sequence[OnOneGpu], left: OnOneGpu) -> tuple[OnOneGpu, ...]:
    """With the GPU that was left now; of those left before, the last ones that there is room for."""
    return (*others, left)[-_MOST:]
