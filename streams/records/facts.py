"""extracted"""

from __future__ import annotations

import msgspec


class FleetFacts(msgspec.Struct, frozen=True, gc=False):
    """What the fleet says of itself: replica counts as last reported within the slot."""

    ts_ms: int
    ready: int
    pending: int
    draining: int
    desired: int | None = None


class OutcomeFact(msgspec.Struct, frozen=True):
    """What became of a command."""

    ts_ms: int
    command_id: str
    status: str
    replicas_ready: int | None = None
    lead_time_s: float | None = None


class BatchJob(msgspec.Struct, frozen=True, array_like=True):
    """Work that is queued, in tokens to be generated, and the instant by which it must be done."""

    due_ts_ms: int
    tokens: float


class BatchQueue(msgspec.Struct, frozen=True, array_like=True):
    """All that one source has queued at one instant; no jobs: nothing."""

    source: str
    ts_ms: int
    jobs: tuple[BatchJob, ...]


class ClassCounts(msgspec.Struct, frozen=True, array_like=True):
    """Requests of one SLO class since its source started: those within their SLO, and all."""

    name: str
    good: float
    total: float


class SloCounts(msgspec.Struct, frozen=True, array_like=True):
    """What one source has counted at one instant, by class, in order of their names."""

    source: str
    ts_ms: int
    classes: tuple[ClassCounts, ...]


class Control(msgspec.Struct, frozen=True):
    """An operator's word, written to every partition of `telemetry.requests`; applied once by its id.

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
