"""What begins in a load without a word before it: told by second, or found where a rate file rises so many times.

A surprise is the load's, not a policy's: what a scaler could have known of it is nobody's to say. So it is named by who
asks, by a rule that is written down, or, for the loads that are made of one, with the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from infra.console.errors import HarmonyError
from infra.lab.replay.setting import Load
from infra.replay.rates import RateProfile
from infra.simulator.arrivals import Arrivals

_BUILT_IN: Final = {"flash-crowd": "1800", "regime-shift": "2400", "longer-answers": "7200"}
_CALM_S: Final = 1_800.0  # whose highest rate a rise is measured from
_MOST: Final = 1_000  # surprises


@dataclass(frozen=True, slots=True)
class Asked:
    """Which surprises are meant: at these seconds of what is scored, or where a rate rises by this factor."""

    at_s: tuple[float, ...] = ()
    factor: float | None = None


def asked_for(text: str | None, rate: str | None) -> Asked:
    """`SECONDS,...` or `xFACTOR`; without a word those that a built-in load is made of."""
    text = _BUILT_IN.get(rate or "", "") if text is None else text
    if text.startswith("x"):
        factor = _number(text[1:], text)
        if not 1.0 < factor <= 1_000.0:
            raise HarmonyError(f"--surprise: a rate must rise by a factor above 1, such as x1.33, got {text!r}.", 2)
        return Asked(factor=factor)
    at_s = tuple(_number(part, text) for part in text.split(",") if part.strip())
    if any(not 0.0 <= second < math.inf for second in at_s) or list(at_s) != sorted(set(at_s)):
        raise HarmonyError(f"--surprise: seconds must ascend from 0 or more, got {text!r}.", 2)
    return Asked(at_s)


def _number(part: str, text: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise HarmonyError(
            "--surprise must be seconds from the beginning of what is scored, such as 1800 or 36000,51300, or x1.33 "
            f"for wherever a rate file rises so many times within the lead time, got {text!r}.",
            2,
        ) from None


def surprise_times(asked: Asked, rates: RateProfile | None, scored_s: float, lead_s: float) -> tuple[float, ...]:
    """Seconds of what is scored at which a surprise begins; at least a lead time lies between two.

    Args:
        rates: of what is scored; None where requests were recorded.
        scored_s: how long it lasts.
    """
    if asked.factor is not None:
        if rates is None:
            raise HarmonyError(
                "--surprise x1.33 looks at the rates of a rate file: of recorded requests name seconds.", 2
            )
        return tuple(rises(rates, asked.factor, lead_s))
    late = [second for second in asked.at_s if second >= scored_s]
    if late:
        raise HarmonyError(f"--surprise: what is scored ends after {scored_s:.0f} s, before {late[0]:g}.", 2)
    if len(asked.at_s) > 1 and min(np.diff(asked.at_s)) < lead_s:
        raise HarmonyError(f"--surprise: two within a lead time of {lead_s:g} s are one; name the first of them.", 2)
    return asked.at_s


def rises(rates: RateProfile, factor: float, within_s: float) -> list[float]:
    """Where a rate leaves what it was at most in the half hour before, and is `factor` times that `within_s` later."""
    found: list[float] = []
    edges, values = rates.edges_s, rates.rates_rps
    for k in range(1, len(values)):
        begin_s = float(edges[k])
        if begin_s < _CALM_S or (found and begin_s < found[-1] + within_s):
            continue
        first = int(np.searchsorted(edges, begin_s - _CALM_S, side="right")) - 1
        most = float(values[first:k].max())
        end = max(int(np.searchsorted(edges, begin_s + within_s, side="left")), k + 1)
        if values[k] > most > 0.0 and float(values[k:end].max()) >= factor * most:
            found.append(begin_s)
    if len(found) > _MOST:
        raise HarmonyError(f"--surprise x{factor:g}: {len(found):,} surprises are none; use a larger factor.", 2)
    return found


def without(load: Load, surprises_s: Sequence[float], lead_s: float) -> Load:
    """The load as it seems before each surprise: for a lead time what came in the one before comes again.

    Args:
        surprises_s: seconds of the load, ascending, at least a lead time apart.
    """
    parts, upto_s = [], 0.0
    for begin_s in surprises_s:
        before = load.arrivals.between(max(begin_s - lead_s, 0.0), begin_s)
        again = Arrivals(before.arrival_s + lead_s, before.prompt_tokens, before.output_tokens)
        parts += [load.arrivals.between(upto_s, begin_s), again]
        upto_s = begin_s + lead_s
    return Load(load.name, Arrivals.joined([*parts, load.arrivals.between(upto_s, math.inf)]), load.score)
