"""What a guard may look at: everything known of one workload at one origin, already reduced to plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from agents.policy import GuardLimits, Mode, WorkloadSpec
from agents.records import WorkloadPlan
from streams.records.limits import MAX_REPLICAS


class Pin(msgspec.Struct, frozen=True):
    """Break glass: an operator holds a workload at `replicas` until `until_ts_ms` (None = until unpinned)."""

    replicas: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLICAS)]
    until_ts_ms: int | None = None
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """One workload at one origin.

    Attributes:
        plan: what the forecast stage says.
        spec: the declaration; None = not declared.
        limits: of the guards.
        current: replicas that count as being in force; what "hold" keeps.
        mode: in force; `observe` never has a command.
        mode_reason: why it is `observe`.
        paused: "fleet" or "workload" when the kill switch is on.
        pin: in force at this origin.
        overdue_ms: how long past its lease the plan was read; None = in time, or not checked.
        seen_steps: steps with an observed arrival rate so far, up to the warm-up.
        window_max: largest proposal within the down window, this one included.
        window_min: smallest proposal within the up window, this one included.
        added: replicas added within the up period; removed: those removed within the down period.
        removals_left: replicas the whole fleet may still lose within the minute; None = no limit.
        gpus_left: GPUs left for this workload, its own included, those kept for higher priorities not; None = no limit.
        kept_gpus: GPUs kept for higher priorities.
        owed_gpus: GPUs that it is to give up for workloads of higher priority; owed_to: the first of them.
        power_left_w: power left for this workload, its own included; None = no limit.
        power_w_per_replica: declared, or measured where that is more; 0 = not known.
        fleet_need: replicas this workload must keep so that the fleet stays above its floor.
        newest_ts_ms: origin of the newest decision of this workload; a plan that is not newer is fenced off.
        origin_ts_ms: of this plan.
    """

    plan: WorkloadPlan
    spec: WorkloadSpec | None
    limits: GuardLimits
    current: int
    mode: Mode = "observe"
    mode_reason: str = ""
    paused: str | None = None
    pin: Pin | None = None
    overdue_ms: int | None = None
    seen_steps: int = 0
    window_max: int | None = None
    window_min: int | None = None
    added: int = 0
    removed: int = 0
    removals_left: int | None = None
    gpus_left: int | None = None
    kept_gpus: int = 0
    owed_gpus: int = 0
    owed_to: str = ""
    power_left_w: float | None = None
    power_w_per_replica: float = 0.0
    fleet_need: int = 0
    newest_ts_ms: int | None = None
    origin_ts_ms: int = 0
