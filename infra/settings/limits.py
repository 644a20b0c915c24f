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
