"""What the live view shows: plain values, so that any runner can fill them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One workload; None means not known (yet).

    Attributes:
        load_rps: arrival rate per slot, 1/s, oldest first; None where not observed.
        band_rps: low and high quantile of the peak demand over the lead time, 1/s.
        band_levels: the two quantile levels.
        capacity_rps: requests/s that one replica carries within the SLO.
        attainment: share of requests within the SLO so far.
        action: up, down, hold, retired; empty before the first decision.
    """

    workload: str
    load_rps: tuple[float | None, ...] = ()
    band_rps: tuple[float, float] | None = None
    band_levels: tuple[float, float] = (0.1, 0.9)
    replicas_ready: int | None = None
    replicas_pending: int | None = None
    replicas_wanted: int | None = None
    capacity_rps: float | None = None
    attainment: float | None = None
    objective: float = 0.99
    action: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """What one policy has cost and kept so far on the same load."""

    policy: str
    gpu_hours: float | None = None
    attainment: float | None = None


@dataclass(frozen=True, slots=True)
class LiveState:
    """Everything the view shows.

    Attributes:
        sim_ts_ms: simulated event time.
        speed: simulated seconds per second; 0 = as fast as possible.
        lag_records: records not read yet, all stages.
        harmony: this run's own cost and attainment.
        shadows: other policies on the same load.
        note: a sentence on what is being waited for; empty when all is well.
    """

    rows: tuple[LiveRow, ...] = ()
    sim_ts_ms: int | None = None
    speed: float | None = None
    slots: int = 0
    forecasts: int = 0
    forecasts_per_s: float | None = None
    lag_records: int | None = None
    harmony: PolicyLine = field(default_factory=lambda: PolicyLine("harmony"))
    shadows: tuple[PolicyLine, ...] = ()
    note: str = ""
