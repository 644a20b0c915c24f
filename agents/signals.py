"""What the guards must know of the telemetry behind a plan, read off one workload's window."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.records import InputFacts
from streams.pages import OutcomeFact
from streams.window_table import Window

_LOOK_BACK = 4
_FLAT_STEPS = 12
_ZERO_STEPS = 12
_RESIDENCE_SLOTS = 24
_SIGNIFICANT_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class SignalLimits:
    """`cliff_ratio`: the share by which demand must fall within one step to count as a cliff."""

    cliff_ratio: float
    silence_steps: int


def residence_s(window: Window) -> float | None:
    """Mean time a request is being served, by Little's law over the last slots; None without requests."""
    running, rate = window.columns.get("engine.running"), window.columns.get("request.arrival_rate")
    return None if running is None or rate is None else mean_ratio(window, running, rate, _RESIDENCE_SLOTS)


def mean_ratio(window: Window, above: int, below: int, slots: int) -> float | None:
    """One column's mean over another's, of the last slots in which both were observed; None where that is over zero."""
    columns = [above, below]
    recent, seen = window.values[-slots:, columns].astype(np.float64), window.observed[-slots:, columns].all(axis=1)
    over, under = recent[seen].sum(axis=0)
    return float(over / under) if under > 0 else None


def outcomes_now(window: Window) -> list[OutcomeFact]:
    """Outcomes that arrived in the newest slot, in order of event time."""
    found = [o for facts in window.facts.now.values() for o in facts.outcomes]
    return sorted(found, key=lambda o: (o.ts_ms, o.command_id, o.status))


def input_facts(
    window: Window,
    origin_ts_ms: int,
    step_ms: int,
    num_targets: int,
    limits: SignalLimits,
    offsets: dict[str, int],
) -> InputFacts:
    """Summarise one workload's inputs at the origin.

    Args:
        window: the workload's view; column 0 is the arrival rate, the first `num_targets` columns are level 1.
        offsets: per source, the offset at which the slot closed.
    """
    rate = window.values[:, 0].astype(np.float64)
    seen = window.observed[:, 0]
    now = window.facts.now
    requests = now.get("requests")
    heard = [h.ts_ms for h in window.facts.heard.values()]
    known = sum(f.sources_known for f in now.values())
    return InputFacts(
        arrival_rate=float(rate[-1]) if seen[-1] else None,
        observed_ratio=float(window.observed[:, :num_targets].mean()),
        observed_steps=int(seen.sum()),
        oldest_age_ms=origin_ts_ms - min(heard) if heard else None,
        coverage_ratio=sum(f.sources_seen for f in now.values()) / known if known else 0.0,
        censored=requests.censored if requests is not None else False,
        flat=_is_flat(window, num_targets),
        cliff=_is_cliff(rate, seen, step_ms / 1000, limits.cliff_ratio),
        zero_after_nonzero=_is_sudden_zero(rate, seen, step_ms / 1000),
        offsets=offsets,
    )


def _is_flat(window: Window, num_targets: int) -> bool:
    """Real demand is noisy: many equal steps in a row, with something going on, are a frozen reporter.

    One that froze altogether repeats its counters, so that nothing seems to arrive, and what it said was running.
    """
    if not window.observed[-_FLAT_STEPS:, 0].all() or len(window.observed) < _FLAT_STEPS:
        return False
    columns = list(range(num_targets))
    running = window.columns.get("engine.running")
    if running is not None and window.observed[-_FLAT_STEPS:, running].all():
        columns.append(running)
    recent = window.values[-_FLAT_STEPS:, columns]
    still = (recent == recent[-1]).all(axis=0)
    return bool(still[:num_targets].all() and (recent[-1, 0] != 0 or (still & (recent[-1] != 0))[num_targets:].any()))


def _recent_mean(rate: NDArray[np.float64], seen: NDArray[np.bool_], steps: int) -> float | None:
    before, mask = rate[-1 - steps : -1], seen[-1 - steps : -1]
    return float(before[mask].mean()) if mask.any() else None


def _is_cliff(rate: NDArray[np.float64], seen: NDArray[np.bool_], step_s: float, cliff_ratio: float) -> bool:
    """A fall by more than the ratio within one step that Poisson noise does not explain."""
    mean = _recent_mean(rate, seen, _LOOK_BACK)
    if mean is None or not seen[-1] or mean <= 0:
        return False
    expected = mean * step_s
    fall = expected - rate[-1] * step_s
    return bool(rate[-1] < (1 - cliff_ratio) * mean and fall > _SIGNIFICANT_SIGMAS * math.sqrt(expected))


def _is_sudden_zero(rate: NDArray[np.float64], seen: NDArray[np.bool_], step_s: float) -> bool:
    """Exactly zero now, and clearly not zero within the last minute's worth of steps."""
    if not seen[-1] or rate[-1] != 0:
        return False
    before, mask = rate[-1 - _ZERO_STEPS : -1], seen[-1 - _ZERO_STEPS : -1]
    return bool((before[mask] * step_s > _SIGNIFICANT_SIGMAS).any())
