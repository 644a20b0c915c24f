"""What `harmony.yaml` may say of one workload: its target, bounds, promises and pace."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from agents.policy import IdleRule, Slo, TargetRef, WorkloadSpec
from infra.settings_schedule import BatchSection, ScheduleSection
from infra.settings_section import Section, check_unique
from infra.settings_section import key as _key
from streams.records.limits import MAX_REPLICAS

Mode = Literal["observe", "act"]
ClassName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,60}$")]
GpuType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{0,60}$")]
WorkloadId = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f]{1,200}$")]

_WORKLOAD = WorkloadSpec("")
_SLO = Slo()
_TARGET = TargetRef()
_ZERO = IdleRule()


class TargetSection(Section):
    api_version: str = _key(_TARGET.api_version, "API group and version of the object.", alias="apiVersion")
    kind: str = _key(_TARGET.kind, "Kind of the object whose replicas a command sets.")
    namespace: str = _key(_TARGET.namespace, "Its namespace.")
    name: str = _key(_TARGET.name, "Its name.")


class ReplicasSection(Section):
    min: int = _key(_WORKLOAD.min_replicas, "Never fewer.", ge=0, le=MAX_REPLICAS)
    max: int = _key(_WORKLOAD.max_replicas, "Never more.", ge=1, le=MAX_REPLICAS)

    @model_validator(mode="after")
    def _ordered(self) -> ReplicasSection:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


class SloClassSection(Section):
    name: ClassName = Field(description="Name in records of kind slo.")
    ttft_s: float = _key(_SLO.ttft_s, "A good request of it has its first token within this time.", gt=0)
    tpot_s: float = _key(_SLO.tpot_s, "... and each further token within this time on average.", gt=0)
    objective: float = _key(_SLO.objective, "Wanted share of good requests.", gt=0, lt=1)
    epsilon: float | None = _key(None, "Accepted probability of missing it; empty = as for all.", gt=0, lt=1)


class SloSection(Section):
    ttft_s: float = _key(_SLO.ttft_s, "A good request has its first token within this time.", gt=0)
    tpot_s: float = _key(_SLO.tpot_s, "... and each further token within this time on average.", gt=0)
    objective: float = _key(_SLO.objective, "Wanted share of good requests.", gt=0, lt=1)
    epsilon: float | None = _key(None, "Accepted probability of missing it; empty = the fleet's.", gt=0, lt=1)
    classes: tuple[SloClassSection, ...] = _key((), "In place of these: several promises.", max_length=16)

    @model_validator(mode="after")
    def _one_or_several(self) -> SloSection:
        names = [slo_class.name for slo_class in self.classes]
        check_unique(names, "class ")
        own = self.model_fields_set & {"ttft_s", "tpot_s", "objective", "epsilon"}
        if names and own:
            raise ValueError(f"give {' and '.join(sorted(own))} to each of the classes, not beside them")
        return self


class WorkloadGuardsSection(Section):
    stabilization_up_s: float | None = _key(None, "Lowest proposal of this window goes up.", ge=0)
    stabilization_down_s: float | None = _key(None, "Highest proposal of it goes down.", ge=0)
    up_ratio: float | None = _key(None, "Most growth per period, as a share.", ge=0)
    up_replicas: int | None = _key(None, "... or as replicas, whichever is more.", ge=0)
    up_period_s: float | None = _key(None, "That period.", gt=0)
    down_ratio: float | None = _key(None, "Most shrinkage per period, as a share.", ge=0, le=1)
    down_replicas: int | None = _key(None, "... or as replicas, whichever is more.", ge=0)
    down_period_s: float | None = _key(None, "That period.", gt=0)
    release_ratio: float | None = _key(None, "Give up at this share of the risk allowed.", gt=0, le=1)
    tolerance_ratio: float | None = _key(None, "Ignore relative changes up to this.", ge=0, lt=1)


class ZeroSection(Section):
    idle_s: float = _key(_ZERO.idle_s, "The last replica goes after so long without any request.", ge=0)
    risk: float = _key(_ZERO.risk, "... and when it is needed before it could come back at most so likely.", ge=0, lt=1)


class WorkloadSection(Section):
    id: WorkloadId = Field(description="Name in the telemetry and Kafka key; 1 to 200 characters, no spaces.")
    target: TargetSection | None = _key(None, "What a command scales.")
    replicas: ReplicasSection | None = _key(None, "Bounds.")
    gpus_per_replica: int = _key(_WORKLOAD.gpus_per_replica, "GPUs that one replica holds.", ge=1)
    gpu_type: GpuType = _key(_WORKLOAD.gpu_type, "Name of the GPU they are; what a replica does is learned for each.")
    price_per_gpu_hour: float = _key(_WORKLOAD.price_per_gpu_hour, "In any currency; only ratios matter.", ge=0)
    slo: SloSection | None = _key(None, "What its users are promised.")
    mode: Mode = _key(_WORKLOAD.mode, "observe = decide and record only; act = publish commands.")
    match: dict[str, str] = Field(default_factory=dict, description="Labels that name it in third-party telemetry.")
    capacity_rps: float | None = _key(None, "Requests/s one replica carries within the SLO, if known.", gt=0)
    role: Literal["both", "prefill", "decode"] = _key(_WORKLOAD.role, "Half of the work that its replicas do.")
    capacity_tokens_per_s: float | None = _key(None, "In place of capacity_rps for prefill and decode.", gt=0)
    capacity_off_by: float | None = _key(
        None, "Factor that it may be off by, two times of three; empty: as a load test is, 1.28.", ge=1.01, le=2.5
    )
    lead_time_s: float = _key(_WORKLOAD.lead_time_s, "From command to serving replica, first guess.", gt=0)
    priority: int = _key(_WORKLOAD.priority, "Larger is served first when the fleet's GPUs run short.")
    power_w_per_replica: float | None = _key(None, "Drawn by one replica; counts unless more is measured.", gt=0)
    schedule: ScheduleSection | None = _key(None, "Narrower bounds by the calendar and for known events.")
    batch: BatchSection = Field(default_factory=BatchSection, description="Work with deadlines.")
    zero: ZeroSection = Field(default_factory=ZeroSection, description="Where replicas.min is 0: how it gets there.")
    guards: WorkloadGuardsSection = Field(
        default_factory=WorkloadGuardsSection, description="Its own pace; empty = as advanced.guards says of all."
    )

    @model_validator(mode="after")
    def _act_is_declared(self) -> WorkloadSection:
        if self.mode == "act":
            bounds = {"min", "max"} - (self.replicas.model_fields_set if self.replicas else set())
            missing = [f"replicas.{name}" for name in ("min", "max") if name in bounds]
            missing += ["slo"] if self.slo is None else []
            missing += ["target.name"] if self.target is None or not self.target.name else []
            if missing:
                raise ValueError(f"mode act needs {', '.join(missing)}; without, only observe is safe")
        return self

    @model_validator(mode="after")
    def _fits_its_role(self) -> WorkloadSection:
        whole = self.role == "both"
        wrong = "capacity_tokens_per_s" if whole else "capacity_rps"
        if getattr(self, wrong) is not None:
            right = "capacity_rps" if whole else "capacity_tokens_per_s"
            raise ValueError(f"role {self.role} is measured by {right}, not by {wrong}")
        if self.capacity_off_by is not None and self.capacity_rps is None and self.capacity_tokens_per_s is None:
            raise ValueError("capacity_off_by says how far a capacity may be off, and none is declared")
        if not whole and self.slo is not None and self.slo.classes:
            raise ValueError(f"role {self.role} takes no slo.classes: only role both does")
        if self.role == "prefill" and self.batch.jobs:
            raise ValueError("role prefill generates nothing: declare batch.jobs at its decode pool")
        return self

    @model_validator(mode="after")
    def _schedule_within_bounds(self) -> WorkloadSection:
        if self.schedule is not None:
            own = self.replicas or ReplicasSection()
            self.schedule.check_within(own.min, own.max)
        return self
