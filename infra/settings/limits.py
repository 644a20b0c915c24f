"""What the settings say of plug-ins: their kinds, how long one call may take, when calls are skipped for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PluginKind = Literal["forecaster", "policy", "actuator", "decoder"]


@dataclass(frozen=True, slots=True)
class PluginLimits:
    """Of each plug-in by itself; `infra.plugins.breaker` says what the counts mean."""

    time_limit_s: float = 1.0
    failures: int = 3
    pause_calls: int = 50


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """How long each kind of standstill may last, in seconds.

    Attributes:
        loop_s: the event loop does not turn.
        stall_s: records wait and nothing moves; Kafka does not answer; commits do not advance; restoring reads nothing.
        join_s: from start or rebalance until partitions are assigned.
        restore_s: of a whole restore, even if it moves.
        forecast_s: of the work on one batch (a first fit, a compilation, thousands of plans), which may take longer.
    """

    loop_s: float = 5.0
    stall_s: float = 25.0
    join_s: float = 120.0
    restore_s: float = 600.0
    forecast_s: float = 120.0


ROLES = ("ingest", "forecast", "decide")
