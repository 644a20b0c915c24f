"""`--lead-time` as it is written: constant, lognormal, or of warm and cold starts."""

from __future__ import annotations

import math
from typing import Final

from infra.console.errors import HarmonyError
from infra.replay.rates import MOST_SIGMA
from infra.simulator.lead_time import MixedStarts

_LONGEST_LEAD_S: Final = 86_400.0


def read_lead_time(text: str) -> tuple[float, float, MixedStarts | None]:
    """Mean in seconds, sigma of the logarithm, and starts of two kinds.

    Raises:
        HarmonyError: it says nothing of the kind.
    """
    quick, kinds, slow = text.partition("/")
    if kinds:
        slow_s, _, share = slow.partition(":")
        told = MixedStarts(_number(quick), _number(slow_s), _number(share))
        if 0 < told.quick_s <= told.slow_s <= _LONGEST_LEAD_S and 0 < told.slow_share < 1:
            return told.mean_s, 0.0, told
    else:
        mean, _, sigma = text.partition("~")
        mean_s, sigma_log = _number(mean), _number(sigma) if sigma else 0.0
        if 0 < mean_s <= _LONGEST_LEAD_S and 0 <= sigma_log <= MOST_SIGMA:
            return mean_s, sigma_log, None
    raise HarmonyError(
        "--lead-time must be seconds above 0 and at most a day, such as 100, 100~0.3 with a sigma of at most "
        f"{MOST_SIGMA:g}, or 40/300:0.25 of quick and slow starts and the share of the slow, got {text!r}.",
        2,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
