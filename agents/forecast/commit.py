"""Stage 2's commit: the numbers of each workload as they are stored, and read back under other policies."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from agents.policy import Policy, WorkloadSpec, check_fleet
from agents.workload.signals import SilentSources
from agents.workload.slo_classes import NO_CLASSES, Classes, ClassesSnapshot
from agents.workload.state import OnOneGpu, WorkloadState, new_capacity, put_aside, spec_of
from agents.workload.units import Unit, declared_capacity, fixed_unit
from model.bursts.jumps import Jumps
from model.bursts.recurring import RecurringSurges
from model.calibration.budget import ErrorBudget
from model.calibration.risk import RiskCalibration
from model.calibration.trust import ForecastTrust
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from model.capacity.request_shape import RequestShape
from streams.config import StreamConfig
from streams.log import UNREADABLE, ContractBroken, OtherSettings
from streams.windows.coarse import COARSE_STEP_MS, RunningCoarse

S = TypeVar("S")

# Releases that know no units must not take tokens for requests: they refuse this version of a capacity.
_CONVERTED: Final = {"v": 3}


class StateSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `WorkloadState` as it stands in a commit record; what was never declared takes no bytes."""

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
    per_request: float | None = None
    shape: list[float | int | None] = []
    power_w: float | None = None
    tried: bool = False
    surges: list[list[float]] = []
    jumps: list[list[float]] = []
    silent: list[list[int | None]] = []
    gpu_type: str = ""
    elsewhere: tuple[OnOneGpu, ...] = ()


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


def _is_converted(spec: WorkloadSpec, unit: Unit) -> bool:
    return fixed_unit(spec) is None and unit != "requests"


def snapshot_state(state: WorkloadState) -> StateSnapshot:
    return StateSnapshot(
        since_slot=state.since_slot,
        capacity=state.capacity.snapshot() | (_CONVERTED if _is_converted(state.spec, state.unit) else {}),
        lead=state.lead.snapshot(),
        last_proposed=state.last_proposed,
        budget=state.budget.snapshot(),
        trust=state.trust.snapshot(),
        calibration=state.calibration.snapshot(),
        event_loads=dict(state.event_loads),
        idle_since_ms=state.idle_since_ms,
        classes=state.classes.snapshot(),
        unit=state.unit,
        per_request=state.per_request,
        shape=state.shape.snapshot(),
        power_w=state.power_w,
        tried=state.tried,
        surges=state.surges.snapshot(),
        jumps=state.jumps.snapshot(),
        silent=state.silent.snapshot(),
        gpu_type=state.gpu_type,
        elsewhere=state.elsewhere,
    )


def restore_state(workload: str, snapshot: StateSnapshot, policy: Policy) -> WorkloadState:
    """The state that a snapshot was taken of, under the policy of now.

    Raises:
        OtherSettings: another release wrote it, with other numbers; names the remedy.
    """
    try:
        return _restored(workload, snapshot, policy)
    except (ValueError, TypeError, KeyError) as error:
        raise OtherSettings(
            f"the committed numbers of workload {workload!r} are of another release ({error}): run the release that "
            "wrote them, or accept a new start with `harmony state reset`"
        ) from error


def _restored(workload: str, snapshot: StateSnapshot, policy: Policy) -> WorkloadState:
    spec, declared = spec_of(workload, policy)
    snapshot = _on_its_gpu(snapshot, spec)
    stored, unit, tokens = snapshot.capacity, snapshot.unit, snapshot.per_request
    if stored.get("v") == _CONVERTED["v"]:
        stored = stored | {"v": 2}
    known = declared_capacity(spec, tokens if tokens is not None and unit != "requests" else 1.0)
    capacity = CapacityPosterior.restore(stored, known, off_by=spec.capacity_off_by, objective=spec.slo.objective)
    loads, fixed = snapshot.event_loads, fixed_unit(spec)
    # A service as a whole is counted in tokens only with how many a request has; a pool never says that.
    wanted: Unit = fixed or (unit if tokens is not None else "requests")
    if unit != wanted:
        if tokens is not None and wanted == "requests":
            capacity = capacity.converted(1.0 / tokens, declared_capacity(spec))
            loads = {name: load / tokens for name, load in loads.items()}
        else:  # another role was declared: what was learned in the old unit says nothing in this one
            capacity, loads = new_capacity(spec), {}
    if fixed is not None or unit != wanted:
        unit, tokens = wanted, None
    return WorkloadState(
        spec=spec,
        declared=declared,
        since_slot=snapshot.since_slot,
        capacity=capacity,
        lead=LeadTimePosterior.restore(snapshot.lead, spec.lead_time_s),
        last_proposed=snapshot.last_proposed,
        budget=ErrorBudget.restore(snapshot.budget),
        trust=ForecastTrust.restore(snapshot.trust),
        calibration=RiskCalibration.restore(snapshot.calibration),
        event_loads=loads,
        idle_since_ms=snapshot.idle_since_ms,
        classes=Classes.restore(snapshot.classes, spec) if spec.slo.classes else NO_CLASSES,
        unit=unit,
        per_request=tokens,
        shape=RequestShape.restore(snapshot.shape),
        power_w=snapshot.power_w,
        tried=snapshot.tried,
        surges=RecurringSurges.restore(snapshot.surges),
        jumps=Jumps.restore(snapshot.jumps),
        silent=SilentSources.restore(snapshot.silent),
        gpu_type=snapshot.gpu_type,
        elsewhere=snapshot.elsewhere,
    )


def _on_its_gpu(snapshot: StateSnapshot, spec: WorkloadSpec) -> StateSnapshot:
    """What was learned of a replica on the GPU declared now, and the rest as it was."""
    before, now = snapshot.gpu_type, spec.gpu_type
    if not now or now == before:
        return snapshot
    if not before:
        return msgspec.structs.replace(snapshot, gpu_type=now)
    nothing = CapacityPosterior().snapshot()
    lead = LeadTimePosterior(spec.lead_time_s).snapshot()
    new = OnOneGpu(now, nothing, lead, snapshot.unit, snapshot.per_request)
    its, classes = next((gpu for gpu in snapshot.elsewhere if gpu.gpu_type == now), new), snapshot.classes
    others = [gpu for gpu in snapshot.elsewhere if gpu is not its]
    if classes is not None:
        capacity = {name: its.classes.get(name, nothing) for name in classes.capacity}
        classes = msgspec.structs.replace(classes, capacity=capacity)
    return msgspec.structs.replace(
        snapshot,
        gpu_type=now,
        elsewhere=put_aside(others, _one_gpu(snapshot)),
        capacity=its.capacity,
        lead=its.lead,
        unit=its.unit,
        per_request=its.per_request,
        power_w=its.power_w,
        classes=classes,
        event_loads=snapshot.event_loads if its.unit == snapshot.unit else {},  # else they are in another unit
        tried=False,
    )


def _one_gpu(snapshot: StateSnapshot) -> OnOneGpu:
    return OnOneGpu(
        snapshot.gpu_type,
        snapshot.capacity,
        snapshot.lead,
        snapshot.unit,
        snapshot.per_request,
        snapshot.power_w,
        {} if snapshot.classes is None else snapshot.classes.capacity,
    )
