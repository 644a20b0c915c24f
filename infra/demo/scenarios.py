"""What `harmony run --scenario` plays: a load, how long it lasts, and what breaks.

    day          three services from night to night, in six hours
    surge        one service; its load triples within a minute, twice
    ramp         one service; its load grows eightfold within forty minutes, and goes back
    cold-start   one service whose replicas take four minutes to serve; its load swings
    gpu-failure  one service; a third of its replicas fail, twice
    endless      three services whose day has an hour, until Ctrl-C

All but the last end by themselves. Each begins while the context of HARMONY fills, which is not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from agents.policy import Slo
from infra.demo.workloads import DEMO_STREAM, FleetSpec, declared_workload, demo_workloads
from infra.simulator.arrivals import RateProfile, Tokens, Trace
from infra.simulator.closed_loop import Failure, SimulatedWorkload

_HOUR_S: Final = 3_600.0
_MINUTE_S: Final = 60.0
_SEGMENT_S: Final = 10.0
_WARM_UP_S: Final = DEMO_STREAM.context_steps * DEMO_STREAM.step_ms / 1000
_PROMPT, _OUTPUT = Tokens(850, 0.8), Tokens(210, 0.7)
DEFAULT_SCENARIO: Final = "day"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        about: what happens, one sentence.
        length_s: simulated seconds after the warm-up; None: endless.
        speed: simulated seconds per second.
        step_s: length of a step.
        workloads: of a seed.
    """

    name: str
    about: str
    length_s: float | None
    speed: float
    step_s: float
    workloads: Callable[[int], tuple[SimulatedWorkload, ...]]

    def fleet(self, seed: int, step_s: float | None = None) -> FleetSpec:
        """The fleet; its load ends `length_s` after the context is full.

        Args:
            step_s: in place of the scenario's.
        """
        warm_up_s = DEMO_STREAM.context_steps * (step_s or self.step_s)
        length_s = None if self.length_s is None else warm_up_s + self.length_s
        workloads = tuple(_later(w, warm_up_s - _WARM_UP_S) for w in self.workloads(seed))
        return FleetSpec(workloads, seed, length_s=length_s)


def _later(workload: SimulatedWorkload, by_s: float) -> SimulatedWorkload:
    """Events of a workload count from the end of the warm-up; its load is what it is."""
    failures = tuple(replace(failure, at_s=failure.at_s + by_s) for failure in workload.failures)
    return replace(workload, failures=failures)


def rate_profile(name: str, points: Sequence[tuple[float, float]]) -> RateProfile:
    """A rate that goes straight from point to point, (minutes after the warm-up, requests/s).

    Before the first point its rate holds.
    """
    minutes, rates = np.asarray(points, dtype=np.float64).T
    end_s = _WARM_UP_S + minutes[-1] * _MINUTE_S
    edges = np.arange(0.0, end_s + _SEGMENT_S, _SEGMENT_S)
    middles = (edges[:-1] + edges[1:]) / 2
    values = np.interp((middles - _WARM_UP_S) / _MINUTE_S, minutes, rates)
    n = len(values)
    return RateProfile(name, edges, values, (_PROMPT,) * n, (_OUTPUT,) * n)


def _chat(
    name: str, seed: int, points: Sequence[tuple[float, float]], *, lead_s: float = 55.0, most: int = 24,
    failures: tuple[Failure, ...] = (),
) -> tuple[SimulatedWorkload, ...]:  # fmt: skip
    arrivals = rate_profile(name, points).arrivals(seed)
    workload = declared_workload(
        "demo/chat-70b", "dense-70b", Trace(name, arrivals), Slo(2.0, 0.2, 0.99), most=most, lead_s=lead_s, price=3.0,
        rps=1.66,
    )  # fmt: skip
    return (replace(workload, failures=failures),)


def _surge(seed: int) -> tuple[SimulatedWorkload, ...]:
    points = [(0, 6), (25, 6), (26, 18), (34, 18), (36, 6), (65, 6), (66, 18), (74, 18), (76, 6), (100, 6)]
    return _chat("surge", seed, points)


def _ramp(seed: int) -> tuple[SimulatedWorkload, ...]:
    return _chat("ramp", seed, [(0, 3), (10, 3), (50, 24), (60, 24), (80, 3), (85, 3)])


def _cold_start(seed: int) -> tuple[SimulatedWorkload, ...]:
    waves = [(m, 11 - 7 * np.cos(2 * np.pi * m / 45)) for m in range(136)]
    return _chat("cold-start", seed, waves, lead_s=240.0)


def _gpu_failure(seed: int) -> tuple[SimulatedWorkload, ...]:
    failures = tuple(Failure(_WARM_UP_S + m * _MINUTE_S, share=1 / 3) for m in (25, 55))
    waves = [(m, 12 - 3 * np.cos(2 * np.pi * m / 40)) for m in range(81)]
    return _chat("gpu-failure", seed, waves, failures=failures)


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "day", "three services live through a day, from night to night, pressed into six hours", 6 * _HOUR_S,
            120.0, 10.0, lambda seed: demo_workloads(seed, day_s=6 * _HOUR_S, from_night=True),
        ),
        Scenario("surge", "the load of a service triples within a minute, twice", 100 * _MINUTE_S, 40.0, 5.0, _surge),
        Scenario("ramp", "the load of a service grows eightfold within 40 minutes", 85 * _MINUTE_S, 40.0, 5.0, _ramp),
        Scenario(
            "cold-start", "replicas take four minutes to serve, and the load swings", 135 * _MINUTE_S, 60.0, 5.0,
            _cold_start,
        ),
        Scenario(
            "gpu-failure", "a third of the replicas of a service fail, twice", 80 * _MINUTE_S, 40.0, 5.0, _gpu_failure
        ),
        Scenario("endless", "three services whose day has an hour, until Ctrl-C", None, 20.0, 5.0, demo_workloads),
    )
}  # fmt: skip
