"""The commit record of the forecast stage: the learned state of each workload, stored and restored.

A snapshot is restored under the policy of the present, which may declare other capacities, roles, classes or GPUs.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from agents.policy import UNIT_OF, Policy, Unit, WorkloadSpec, check_fleet
from agents.workload.signals import SilentSources
from agents.workload.slo_classes import NO_CLASSES, Classes, ClassesSnapshot
from agents.workload.state import (
    GpuTypeState,
    LearnedState,
    new_capacity,
    new_law,
    prior_capacity,
    scaled_capacity,
    spec_of,
    store_gpu_type,
)
from model.bursts.jumps import Jumps
from model.bursts.recurring import RecurringSurges
from model.calibration.budget import ErrorBudget
from model.calibration.risk import RiskCalibration
from model.calibration.trust import ForecastTrust
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from model.capacity.replica_starts import ReplicaStarts
from streams.config import StreamConfig
from streams.log import UNREADABLE, ContractBroken, OtherSettings
from streams.windows.coarse import COARSE_STEP_MS, RunningCoarse

S = TypeVar("S")

# Parts of the state with `snapshot` and `restore` of their own, which no declaration changes.
_RESTORABLE: Final[dict[str, Any]] = {
    "budget": ErrorBudget,
    "trust": ForecastTrust,
    "calibration": RiskCalibration,
    "surges": RecurringSurges,
    "jumps": Jumps,
    "silent": SilentSources,
    "starts": ReplicaStarts,
}
# Plain fields of the state, which are stored as they are.
_COPIED: Final = (
    "since_slot",
    "last_proposed",
    "last_ready",
    "idle_since_ms",
    "power_w",
    "gpu_type",
    "scaled_rps",
    "elsewhere",
)


class StateSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `LearnedState` in a commit record; fields at their defaults take no bytes."""

    since_slot: int
    capacity: dict[str, Any]
    lead: dict[str, Any]
    last_proposed: int | None
    budget: dict[str, Any] = {}
    trust: dict[str, Any] = {}
    calibration: dict[str, Any] = {}
    event_loads: dict[str, float] = {}
    idle_since_ms: int | None = None
    classes: ClassesSnapshot | None = None
    unit: Unit = "requests"
    law: list[float] = []
    last_ready: int = 0
    power_w: float | None = None
    surges: list[list[float]] = []
    jumps: list[list[float]] = []
    silent: list[list[int | None]] = []
    starts: list[list[float]] = []
    gpu_type: str = ""
    scaled_rps: float | None = None
    elsewhere: tuple[GpuTypeState, ...] = ()
    uncached_share: float | None = None


class CommitOf(msgspec.Struct, Generic[S], frozen=True):
    """Stage 2's commit: every number the next output reads that is not in the last L pages, its snapshots as S.

    `pages_from` is the offset of the oldest page that restoring `context_steps` slots needs, `resume_offset` that of
    the next one to read.
    """

    slot: int
    resume_offset: int
    pages_from: int
    step_ms: int
    grace_ms: int
    policy: str
    model: str
    states: dict[str, S]
    running_coarse: RunningCoarse
    context_steps: int
    fleet: str = ""  # in records of releases that did not tell

    @property
    def newest_coarse(self) -> int:
        """Index of the last ten minutes that were complete by then."""
        return (self.slot + 1) * self.step_ms // COARSE_STEP_MS - 1


CommitBody = CommitOf[StateSnapshot]


def decode_commit(body: bytes, config: StreamConfig, partition: int, fleet: str) -> CommitBody:
    """Decode and check against the configuration.

    Raises:
        ContractBroken: another fleet, step or grace, or foreign bytes.
    """
    try:
        commit = msgspec.msgpack.decode(body, type=CommitBody)
    except UNREADABLE as error:
        raise ContractBroken(
            f"commits/{partition}: not a commit of the forecast stage of this release ({error}); run the release "
            "that wrote it, or `harmony state reset`"
        ) from error
    if (commit.step_ms, commit.grace_ms) != (config.step_ms, config.grace_ms):
        raise OtherSettings(
            f"commits/{partition}: the state was built with step {commit.step_ms} ms and grace "
            f"{commit.grace_ms} ms, the configuration says {config.step_ms} and {config.grace_ms}; go back, or run "
            "`harmony state reset`"
        )
    check_fleet(commit.fleet or fleet, fleet, f"commits/{partition}")
    return commit


def snapshot_state(state: LearnedState) -> StateSnapshot:
    """The whole learned state, as a commit record holds it."""
    return StateSnapshot(
        capacity=state.capacity.snapshot(),
        law=state.law.snapshot(),
        lead=state.lead.snapshot(),
        event_loads=dict(state.event_loads),
        classes=state.classes.snapshot(),
        unit=state.unit,
        uncached_share=state.uncached_share,
        **{name: getattr(state, name).snapshot() for name in _RESTORABLE},
        **{name: getattr(state, name) for name in _COPIED},
    )


def restore_state(workload: str, snapshot: StateSnapshot, policy: Policy) -> LearnedState:
    """The state that a snapshot was taken of, under the policy of now.

    Raises:
        OtherSettings: another release wrote it, with other numbers; names the remedy.
    """
    try:
        return _restore_under_policy(workload, snapshot, policy)
    except (ValueError, TypeError, KeyError) as error:
        raise OtherSettings(
            f"the committed numbers of workload {workload!r} are of another release ({error}): run the release that "
            "wrote them, or accept a new start with `harmony state reset`"
        ) from error


def _restore_under_policy(workload: str, snapshot: StateSnapshot, policy: Policy) -> LearnedState:
    spec, declared = spec_of(workload, policy)
    snapshot = _switch_gpu_type(snapshot, spec)
    loads, unit = snapshot.event_loads, UNIT_OF[spec.role]
    if snapshot.unit == unit:
        declared_rps, off_by = prior_capacity(spec, snapshot.scaled_rps)
        capacity = CapacityPosterior.restore(
            snapshot.capacity, declared_rps, off_by=off_by, objective=spec.slo.objective
        )
    else:  # another role was declared: numbers in the old unit do not apply
        capacity, loads = new_capacity(spec), {}
    return LearnedState(
        spec=spec,
        declared=declared,
        capacity=capacity,
        lead=LeadTimePosterior.restore(snapshot.lead, spec.lead_time_s),
        event_loads=loads,
        classes=Classes.restore(snapshot.classes, spec) if spec.slo.classes else NO_CLASSES,
        law=new_law(spec, snapshot.law, snapshot.scaled_rps),
        unit=unit,
        uncached_share=snapshot.uncached_share if snapshot.unit == unit else None,
        **{name: kind.restore(getattr(snapshot, name)) for name, kind in _RESTORABLE.items()},
        **{name: getattr(snapshot, name) for name in _COPIED},
    )


def _switch_gpu_type(snapshot: StateSnapshot, spec: WorkloadSpec) -> StateSnapshot:
    """The snapshot with the numbers of a replica on the GPU type that is declared now."""
    before, now = snapshot.gpu_type, spec.gpu_type
    if not now or now == before:
        return snapshot
    if not before:
        return msgspec.structs.replace(snapshot, gpu_type=now)
    unknown = CapacityPosterior().snapshot()
    lead = LeadTimePosterior(spec.lead_time_s).snapshot()
    share = snapshot.uncached_share
    scaled_rps = _scaled_rps(snapshot, spec) if spec.role == "both" else None
    new = GpuTypeState(now, unknown, lead, snapshot.unit, uncached_share=share, scaled_rps=scaled_rps)
    restored, classes = next((gpu for gpu in snapshot.elsewhere if gpu.gpu_type == now), new), snapshot.classes
    others = [gpu for gpu in snapshot.elsewhere if gpu is not restored]
    if classes is not None:
        capacity = {name: restored.classes.get(name, unknown) for name in classes.capacity}
        classes = msgspec.structs.replace(classes, capacity=capacity)
    return msgspec.structs.replace(
        snapshot,
        gpu_type=now,
        elsewhere=store_gpu_type(others, _gpu_type_state(snapshot)),
        capacity=restored.capacity,
        lead=restored.lead,
        unit=restored.unit,
        law=restored.law,
        uncached_share=restored.uncached_share,
        power_w=restored.power_w,
        scaled_rps=restored.scaled_rps,
        classes=classes,
        event_loads=snapshot.event_loads if _same_unit(restored, snapshot) else {},
    )


def _gpu_type_state(snapshot: StateSnapshot) -> GpuTypeState:
    return GpuTypeState(
        snapshot.gpu_type,
        snapshot.capacity,
        snapshot.lead,
        snapshot.unit,
        snapshot.power_w,
        snapshot.law,
        {} if snapshot.classes is None else snapshot.classes.capacity,
        uncached_share=snapshot.uncached_share,
        scaled_rps=snapshot.scaled_rps,
    )


def _scaled_rps(snapshot: StateSnapshot, spec: WorkloadSpec) -> float | None:
    """What a replica would carry on the GPU type that is declared now, by what it carried on the former one."""
    former = CapacityPosterior.restore(snapshot.capacity, snapshot.scaled_rps, objective=spec.slo.objective)
    law = new_law(spec, snapshot.law, snapshot.scaled_rps)
    return scaled_capacity(former, law, snapshot.gpu_type, spec.gpu_type)


def _same_unit(gpu: GpuTypeState, snapshot: StateSnapshot) -> bool:
    return gpu.unit == snapshot.unit and (gpu.uncached_share is None) == (snapshot.uncached_share is None)
