"""What the guards must know of the telemetry behind a plan, read off one workload's window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.records import InputFacts
from streams.pages.page import OutcomeFact, WorkloadFacts
from streams.windows.table import Window

_RESIDENCE_SLOTS = 24


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
    return ratio_of_sums(window.values, window.observed, above, below, slots)


def ratio_of_sums(
    values: NDArray[np.float32], observed: NDArray[np.bool_], above: int, below: int, rows: int
) -> float | None:
    """As `mean_ratio`, of [R, N] values and their mask."""
    from model.window_tallies import sums_of_two

    over, under = sums_of_two(values, observed, above, below, rows)
    return over / under if under > 0 else None


def outcomes_now(window: Window) -> list[OutcomeFact]:
    """Outcomes that arrived in the newest slot, in order of event time."""
    found = [o for facts in window.facts.now.values() for o in facts.outcomes]
    return sorted(found, key=lambda o: (o.ts_ms, o.command_id, o.status))


def _heard_ratio(facts: WorkloadFacts, missing: int) -> float:
    due = facts.sources_known + missing
    return facts.sources_seen / due if due else 0.0


def input_facts(
    window: Window,
    origin_ts_ms: int,
    step_ms: int,
    num_targets: int,
    limits: SignalLimits,
    offsets: dict[str, int],
    planned_steps: int,
    missing: int = 0,
) -> InputFacts:
    """Summarise one workload's inputs at the origin.

    Args:
        window: the workload's view; column 0 is the arrival rate, the first `num_targets` columns are level 1.
        offsets: per source, the offset at which the slot closed.
        planned_steps: of the context, in which what the workload is planned by was observed.
        missing: sources of requests that are silent though their replicas are there.
    """
    from model.window_tallies import signals

    values, seen, step_s = window.values, window.observed, step_ms / 1000
    now = window.facts.now
    requests = now.get("requests")
    heard = [h.ts_ms for h in window.facts.heard.values()]
    running = window.columns.get("engine.running", -1)
    flat, cliff, sudden = signals(values, seen, num_targets, running, step_s, limits.cliff_ratio)
    return InputFacts(
        arrival_rate=values.item(-1, 0) if seen.item(-1, 0) else None,
        observed_ratio=planned_steps / len(values),
        observed_steps=window.observed_steps[0],
        oldest_age_ms=origin_ts_ms - min(heard) if heard else None,
        coverage_ratio=min((_heard_ratio(f, missing * (name == "requests")) for name, f in now.items()), default=0.0),
        censored=requests.censored if requests is not None else False,
        flat=flat,
        cliff=cliff,
        zero_after_nonzero=sudden,
        offsets=offsets,
    )
