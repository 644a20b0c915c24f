"""Facts of workloads that records carry beside samples; pages hold them in this form."""

from __future__ import annotations

import msgspec


class FleetFacts(msgspec.Struct, frozen=True, gc=False):
    """Replica counts of a workload, as last reported within the slot."""

    ts_ms: int
    ready: int
    pending: int
    draining: int
    desired: int | None = None

    @property
    def wanted(self) -> int:
        """The desired count; where nobody reports it, the sum of ready and pending replicas.

        >>> FleetFacts(0, ready=2, pending=1, draining=0).wanted, FleetFacts(0, 2, 1, 0, desired=5).wanted
        (3, 5)
        """
        return self.ready + self.pending if self.desired is None else self.desired


class OutcomeFact(msgspec.Struct, frozen=True):
    """The outcome of a command."""

    ts_ms: int
    command_id: str
    status: str
    replicas_ready: int | None = None
    lead_time_s: float | None = None


class BatchJob(msgspec.Struct, frozen=True, array_like=True):
    """Queued work in tokens to be generated, and its deadline."""

    due_ts_ms: int
    tokens: float


class BatchQueue(msgspec.Struct, frozen=True, array_like=True):
    """All work that one source has queued at one instant; an empty queue has no jobs."""

    source: str
    ts_ms: int
    jobs: tuple[BatchJob, ...]


class ClassCounts(msgspec.Struct, frozen=True, array_like=True):
    """Requests of one SLO class since its source started: those within their SLO, and all."""

    name: str
    good: float
    total: float


class SloCounts(msgspec.Struct, frozen=True, array_like=True):
    """The request counts of one source at one instant, by class, in order of names."""

    source: str
    ts_ms: int
    classes: tuple[ClassCounts, ...]


class Control(msgspec.Struct, frozen=True):
    """A control of an operator, written to `controls`. Where the settings allow it in telemetry, its id applies once.

    `action`: mode | pin | unpin | pause | resume. `workload` None means the fleet (pause, resume).
    """

    control_id: str
    ts_ms: int
    action: str
    workload: str | None = None
    mode: str | None = None
    replicas: int | None = None
    until_ts_ms: int | None = None
    by: str = ""
    reason: str = ""


class HistogramState(msgspec.Struct, frozen=True, array_like=True):
    """Last cumulative histogram of one series: upper bounds, cumulative counts, total count, sum."""

    le: tuple[float, ...]
    cumulative: tuple[float, ...]
    count: float
    sum: float
