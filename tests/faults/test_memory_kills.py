"""The laws of the kill tests on a cluster in memory: one process, and harsher."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from agents.decide.agent import DecideStage
from agents.decide.controls import ControlStage
from agents.decide.kernel import DecideKernel
from agents.forecast.agent import ForecastStage
from agents.forecast.batcher import MicroBatcher
from agents.forecast.engine import Engine
from agents.forecast.kernel import ForecastKernel
from agents.ingest import IngestStage
from agents.policy import BatchRule, CalendarRule, IdleRule, KnownEvent, NightlyBatch, Policy, Schedule, SloClass
from model.baselines.pool import FallbackForecaster
from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.inference import InferenceWorker
from streams.catalogue import DEFAULT_CATALOGUE
from streams.log import ContractBroken
from streams.meter import NullMeter
from streams.runtime.app import Stage
from streams.runtime.commits import Commit, encode_commit, newest_commit
from streams.runtime.lane import Lane
from streams.runtime.restore import LogReader
from tests.faults.exactness import ANSWERS, ROLES, Proof, check_pages, compare
from tests.faults.memory import Cluster, Killed, Life, MemoryPipeline, MemoryReader
from tests.faults.mutant import commit_first
from tests.integration.pipeline import PARTITIONS, START_TS_MS, STREAM, policy_for

FIRST_SEED = int(os.environ.get("HARMONY_TEST_SEED", "1"))
SEEDS = range(FIRST_SEED, FIRST_SEED + 8)
_FEWEST_KILLS = 10  # how far a life gets depends on the machine, and so how many of them die


def declared_in_full(policy: Policy) -> Policy:
    """Whatever looks back or keeps state is in force somewhere: event, calendar, batch work, zero, SLO classes."""
    event = KnownEvent("launch", START_TS_MS + 600_000, START_TS_MS + 1_500_000, load_factor=2.0)
    hours = CalendarRule("hours", tuple(range(7)), 22 * 60, 23 * 60, min_replicas=3, max_replicas=6)
    first, second, *others, last = policy.workloads
    nightly = NightlyBatch("nightly", 2e5, tuple(range(7)), 22 * 60, 23 * 60)
    first = replace(first, batch=BatchRule(50.0, (nightly,)), schedule=Schedule("Europe/Berlin", (hours,), (event,)))
    second = replace(second, min_replicas=0, zero=IdleRule(idle_s=60.0, risk=0.5))
    classes = (SloClass("chat", 1.0, 0.2, 0.99), SloClass("bulk", 9.0, 0.9, 0.9), SloClass("untold", 9.0, 0.9, 0.9))
    last = replace(last, slo=replace(last.slo, classes=classes))
    return replace(policy, workloads=(first, second, *others, last))


def stages_of(pipeline: MemoryPipeline, inference: InferenceWorker, roles: Sequence[str]) -> list[Stage]:
    stream, topics = pipeline.stream, pipeline.topics
    policy = declared_in_full(replace(policy_for(pipeline.declared), paths_screen=32))
    batcher = MicroBatcher(inference.forecast, deadline_s=0.0)
    engine = Engine(inference.forecaster, batcher, policy, DEFAULT_CATALOGUE, stream.step_ms, NullMeter())

    def forecast_kernel(partition: int) -> ForecastKernel:
        return ForecastKernel(partition, stream, DEFAULT_CATALOGUE, topics, policy, engine, NullMeter())

    def decide_kernel(commit: Commit | None, published: Sequence[bytes]) -> DecideKernel:
        return DecideKernel.restore(policy, stream, topics, commit=commit, published=published)

    made: dict[str, Stage] = {
        "ingest": IngestStage(stream, DEFAULT_CATALOGUE, topics, declared=pipeline.declared),
        "forecast": ForecastStage(topics, forecast_kernel),
        "decide": DecideStage(topics, decide_kernel),
    }
    controls = [ControlStage(topics, stream.step_ms, NullMeter())] if "decide" in roles else []
    return [*(made[role] for role in roles), *controls]


def partitions_of(pipeline: MemoryPipeline, topic: str) -> int:
    return 1 if topic in (pipeline.topics.plans, pipeline.topics.controls) else PARTITIONS


class Fate:
    """When a life ends or falls asleep: after so many records of whatever stage."""

    def __init__(self, records: int, sleeps: bool) -> None:
        self.left = records
        self._sleeps = sleeps
        self.awake = asyncio.Event()
        self.asleep = asyncio.Event()

    async def __call__(self, _stage: str) -> None:
        await asyncio.sleep(0)
        if self.left > 0:
            self.left -= 1
            return
        if not self._sleeps:
            raise Killed
        self.asleep.set()
        await self.awake.wait()


async def hunt(pipeline: MemoryPipeline, inference: InferenceWorker, rng: random.Random) -> tuple[int, int]:
    """Publish everything in stretches, between which workers die and zombies wake up; returns kills and zombies."""
    kills = zombies = 0
    sleeping: list[tuple[Life, Fate]] = []
    forever = Fate(10**9, sleeps=False)
    while True:
        done = pipeline.num_slots >= pipeline.full_course and not pipeline.stalled and kills > _FEWEST_KILLS
        for _ in range(0 if done else rng.randint(1, 5)):
            pipeline.publish_slot()
        for _ in range(rng.randint(0, 3)):
            sleeps = rng.random() < 0.3
            fate = Fate(rng.randint(0, 120), sleeps)
            life = await born(pipeline, inference, rng, fate)
            await until_first(life.work(), fate.asleep.wait())
            check_failures(life)
            if fate.asleep.is_set():
                sleeping.append((life, fate))
                zombies += 1
            else:
                kills += 1
                await life.end()
        life = await born(pipeline, inference, rng, forever)
        if sleeping and rng.random() < 0.7:
            # It wakes up while its successor works, and goes on until it hears that it has lost its partitions.
            old, fate = sleeping.pop(0)
            fate.left = 10**9
            fate.awake.set()
            working = asyncio.create_task(life.work())
            for _ in range(rng.randint(0, 300)):
                await asyncio.sleep(0)
            await old.end()
            check_failures(old)
            await working
        else:
            await life.work()
        check_failures(life)
        await life.end()
        if done:
            for old, _ in sleeping:
                await old.end()
            return kills, zombies


async def until_first(*waits: object) -> None:
    tasks = [asyncio.ensure_future(w) for w in waits]  # type: ignore[call-overload]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def check_failures(life: Life) -> None:
    for failure in life.failures:
        if not isinstance(failure, Killed):
            raise failure


async def born(pipeline: MemoryPipeline, inference: InferenceWorker, rng: random.Random, fate: Fate) -> Life:
    stages = stages_of(pipeline, inference, ("ingest", "forecast", "decide"))
    life = Life(pipeline.cluster, stages, partial(partitions_of, pipeline), rng, fate)
    await life.restore()
    return life


async def undisturbed(pipeline: MemoryPipeline, inference: InferenceWorker, role: str, home: Path) -> MemoryPipeline:
    calm = MemoryPipeline(home, 0, pipeline.stream)
    calm.declared = pipeline.declared
    topic = getattr(pipeline.topics, ROLES[role])
    for (t, p), log in list(pipeline.cluster.logs.items()):
        if t == topic:
            calm.cluster.logs[t, p] = list(log)
            calm.cluster.headers[t, p] = [()] * len(log)
    forever = Fate(10**9, sleeps=False)
    life = Life(
        calm.cluster, stages_of(calm, inference, (role,)), partial(partitions_of, calm), random.Random(0), forever
    )
    await life.restore()
    await life.work()
    check_failures(life)
    await life.end()
    return calm


def commits(sequences: Sequence[int]) -> Cluster:
    """A commits partition that holds one commit for each of these sequences, in this order."""
    cluster, digests = Cluster(), {0: ""}
    for n in range(1, max(sequences) + 1):
        digests[n], _ = encode_commit("commits", "decide", 0, n, None, b"%d" % n)
    for n in sequences:
        _, (record,) = encode_commit("commits", "decide", 0, n, digests[n - 1], b"%d" % n)
        cluster.append(record.topic, record.key, record.value, 0)
    return cluster


@pytest.mark.parametrize("length", range(84, 100))
def test_the_newest_commit_is_found_wherever_the_stale_ones_are(length: int) -> None:
    cluster = commits([*range(1, 31), 20, 21, *range(31, 31 + length - 32)])
    newest = asyncio.run(newest_commit(cast("LogReader", MemoryReader(cluster)), "commits", "decide", 0))
    assert newest is not None
    assert newest.body == b"%d" % (30 + length - 32)


def test_stale_commits_at_the_end_of_the_log_are_not_the_newest() -> None:
    cluster = commits([*range(1, 31), 20, 21, 22])
    newest = asyncio.run(newest_commit(cast("LogReader", MemoryReader(cluster)), "commits", "decide", 0))
    assert newest is not None
    assert newest.sequence == 30


@pytest.mark.parametrize("gone", range(2, 31))
def test_a_missing_commit_matters_among_the_newest_only(gone: int) -> None:
    """Each commit holds the whole state, so that the eight newest records are read where they hold a chain."""
    cluster = commits([n - (n == gone) for n in range(1, 31)])
    found = newest_commit(cast("LogReader", MemoryReader(cluster)), "commits", "decide", 0)
    if 30 - 8 < gone < 30:
        with pytest.raises(ContractBroken, match="torn"):
            asyncio.run(found)
    else:
        newest = asyncio.run(found)
        assert newest is not None
        assert newest.sequence == (29 if gone == 30 else 30)


def hunted(seed: int, home: Path) -> None:
    """Kill workers before any record of any publication, wake paused ones at any time, and compare what was written."""
    rng = random.Random(seed)
    stream = replace(STREAM, context_steps=20, step_ms=15_000, grace_ms=15_000)
    pipeline = MemoryPipeline(home / "hunted", seed, stream)
    inference = InferenceWorker(FallbackForecaster(RidgeForecaster(), SeasonalNaiveForecaster()))
    proof = Proof()
    try:
        kills, zombies = asyncio.run(hunt(pipeline, inference, rng))
        check_pages(pipeline, proof)
        for role, names in ANSWERS.items():
            calm = asyncio.run(undisturbed(pipeline, inference, role, home / role))
            for name in names:
                compare(pipeline, calm, name, role, proof)
    finally:
        inference.close()
    print(f"seed {seed}: {kills} kills, {zombies} zombies; {proof}")
    assert kills > _FEWEST_KILLS < proof.compared["plans"]


@pytest.mark.faults
@pytest.mark.parametrize("seed", SEEDS)
def test_deaths_and_zombies_anywhere_change_nothing(seed: int, tmp_path: Path) -> None:
    """Death before any record of any publication, and paused workers that wake up at any time."""
    hunted(seed, tmp_path)


@pytest.mark.faults
def test_a_commit_record_before_its_outputs_is_found_out_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison can fail: a lane that publishes its commit records first loses outputs when it dies in between."""
    monkeypatch.setattr(Lane, "_publish", commit_first)
    with pytest.raises(AssertionError):
        hunted(FIRST_SEED, tmp_path)
