"""Values that settings give to plug-ins and the watchdog, and the names of the roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

PluginKind = Literal["forecaster", "policy", "actuator", "decoder"]


@dataclass(frozen=True, slots=True)
class PluginLimits:
    """Limits of each plug-in; `infra.plugins.breaker` applies them."""

    time_limit_s: Annotated[float, Meta(description="One call may take this long.", gt=0, le=60)] = 1.0
    failures: Annotated[int, Meta(description="After so many failed calls in a row ...", ge=1)] = 3
    pause_calls: Annotated[int, Meta(description="... the next ones are answered without it.", ge=1)] = 50


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

    loop_s: Annotated[float, Meta(description="End when the event loop has not turned for this time.", ge=1)] = 5.0
    stall_s: Annotated[float, Meta(description="... when work or Kafka has stood still for this time.", ge=1)] = 25.0
    join_s: Annotated[float, Meta(description="... when Kafka has assigned no partitions for this time.", ge=1)] = 120.0
    restore_s: Annotated[float, Meta(description="... when restoring the state takes longer.", ge=1)] = 600.0
    forecast_s: Annotated[float, Meta(description="... when fitting and planning one batch takes longer.", ge=1)] = (
        120.0
    )


ROLES = ("ingest", "forecast", "decide")
