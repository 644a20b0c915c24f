"""What a replica draws, as its devices say: the highest of what was seen, slowly forgotten."""

from __future__ import annotations

import math
from typing import Final

from streams.pages.page import FleetFacts
from streams.windows.table import Window

_POWER: Final = "gpu.power_w"
_HALF_LIFE_S: Final = 7 * 86_400.0  # a week, so that a quiet weekend is not taken for what the service draws


def measured_draw_w(before: float | None, window: Window, fleet: FleetFacts | None, step_s: float) -> float | None:
    """Watts of one replica after the newest slot; None until a slot has told.

    A slot tells where all known devices were heard and the fleet stood still: what starts or drains draws power, too,
    and is not among those that are ready.

    Args:
        before: the watts before it.
        step_s: length of the slot.
    """
    power, told = window.newest(_POWER), window.facts.now.get("gpu")
    if power is None or told is None or told.sources_seen < told.sources_known:
        return before
    if fleet is None or fleet.ready < 1 or fleet.pending or fleet.draining:
        return before
    seen = power / fleet.ready
    return seen if before is None else max(seen, before * math.exp2(-step_s / _HALF_LIFE_S))
