"""Telemetry that stands still, comes again, or never rests: what real kernels make of it over minutes and hours."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from agents.policy import GuardLimits
from streams.catalogue import SOURCES
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample, encode_tick
from tests.faults.test_memory_incidents import WARM, commands, decisions
from tests.infra.observability.memory_loop import STREAM, MemoryLoop

STEP_S = STREAM.step_ms / 1_000
SETTLED = 20


class Reporter:
    """One exporter of one workload, whose fleet obeys every command at once."""

    def __init__(self, guards: GuardLimits) -> None:
        self.loop = MemoryLoop(("a",), guards)
        self.ready = 8
        self.told: dict[str, float] = {"requests_started_total": 0.0, "num_requests_waiting": 0.0}
        self._obeyed = 0

    async def slot(self, **values: float) -> None:
        """The exporter's numbers of now, those that are not given as they were; then the ticks."""
        loop, key = self.loop, b"a"
        self.told |= values
        at_ms = loop.slot * STREAM.step_ms + 2_000
        told = encode_sample("requests", "a", "r", at_ms, self.told)
        await loop.feed("requests", key, told, at_ms)
        await loop.feed("gpu", key, encode_sample("gpu", "a", "g", at_ms, {"power_w": 400.0}), at_ms)
        facts = FleetFacts(at_ms, ready=self.ready, pending=0, draining=0, desired=self.ready)
        await loop.feed("requests", key, encode_fleet("a", "k8s", facts), at_ms)
        loop.slot += 1
        end_ms = loop.slot * STREAM.step_ms + STREAM.grace_ms
        for source in SOURCES:
            await loop.feed(source, None, encode_tick(end_ms), end_ms)
        await loop.follow()

    async def load(self, rate: float) -> None:
        """So many requests/s during the slot."""
        total = self.told["requests_started_total"] + rate * STEP_S
        await self.slot(requests_started_total=total, num_requests_running=round(0.7 * rate))

    def obey(self) -> int:
        """The fleet does what the newest command says; returns its replicas."""
        new = commands(self.loop, self._obeyed)
        self._obeyed += len(new)
        if new:
            self.ready = new[-1].replicas
        return self.ready


async def busy(guards: GuardLimits = WARM) -> Reporter:
    made, noise = Reporter(guards), random.Random(1)
    for _ in range(SETTLED):
        await made.load(14.0 * noise.uniform(0.9, 1.1))
    return made


def least_held(reporter: Reporter, since: int) -> int:
    return min(d.replicas.final or 0 for d in decisions(reporter.loop, since))


# Telemetry that stands still.


async def test_an_exporter_that_froze_at_work_takes_nothing_away() -> None:
    """Its numbers stay, its time stamps go on: no request comes, and those that run never end."""
    frozen = await busy()
    since = len(decisions(frozen.loop))
    for _ in range(60):
        await frozen.slot()
    assert least_held(frozen, since) >= 8
    assert {d.reason for d in decisions(frozen.loop, since + 12)} <= {"flat", "zero_after_nonzero"}


async def test_a_fleet_that_went_idle_is_not_taken_for_a_frozen_one() -> None:
    idle = await busy()
    since = len(decisions(idle.loop))
    for _ in range(60):
        await idle.load(0.0)
    assert least_held(idle, since) < 8


async def test_a_reporter_that_repeats_one_rate_takes_nothing_away() -> None:
    """Equal to the last digit, slot after slot, as from a stand-in that somebody forgot."""
    forged = await busy()
    total = forged.told["requests_started_total"]
    for _ in range(14):
        total += 10.0
        await forged.slot(requests_started_total=total)
    since = len(decisions(forged.loop))
    for _ in range(40):
        total += 10.0
        await forged.slot(requests_started_total=total)
    assert least_held(forged, since) >= 8
    assert {d.reason for d in decisions(forged.loop, since)} == {"flat"}


async def test_a_segment_that_is_played_again_changes_nothing() -> None:
    """Yesterday's calm records, a second time: closed slots take them for late, and the fleet stays."""
    once, twice = await busy(), await busy()
    noise = random.Random(3)
    yesterday = list(twice.loop.logs[twice.loop.topics.telemetry_requests][:40])
    for number in range(12):
        rate = 14.0 * noise.uniform(0.9, 1.1)
        await once.load(rate)
        await twice.load(rate)
        for old in yesterday[3 * number : 3 * number + 3]:
            await twice.loop.feed("requests", old.key, old.value or b"", twice.loop.clock_ms)
    assert [d.replicas for d in decisions(once.loop)] == [d.replicas for d in decisions(twice.loop)]


# Load that never rests.


def steady(at_s: float, rng: np.random.Generator) -> float:
    return rng.poisson(9.0 * STEP_S) / STEP_S


def wave(at_s: float, rng: np.random.Generator) -> float:
    return rng.poisson((9.0 + 7.0 * math.sin(at_s / 600.0 * math.tau)) * STEP_S) / STEP_S


def square(at_s: float, rng: np.random.Generator) -> float:
    return rng.poisson((14.0 if at_s % 120.0 < 60.0 else 3.0) * STEP_S) / STEP_S


@pytest.mark.faults
@pytest.mark.parametrize(("shape", "most"), [(steady, 4), (wave, 14), (square, 24)])
async def test_an_hour_of_noise_turns_the_fleet_seldom(
    shape: Callable[[float, np.random.Generator], float], most: int
) -> None:
    """With the default limits; what goes up may come down after two minutes, but noise is no reason to."""
    reporter, rng = Reporter(GuardLimits(warm_up_steps=8, min_coverage_ratio=0.05)), np.random.default_rng(1)
    held = []
    for slot in range(720):
        await reporter.load(shape(slot * STEP_S, rng))
        held.append(reporter.obey())
    moves = [later - before for before, later in pairwise(held[SETTLED:]) if later != before]
    turns = sum((one > 0) != (other > 0) for one, other in pairwise(moves))
    print(f"{shape.__name__}: {min(held)} to {max(held)} replicas, {len(moves)} moves, {turns} turns")
    assert turns <= most
