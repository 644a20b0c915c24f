"""What went wrong elsewhere, and must not here: each test is named after what happened, and plays it to our stages.

Real kernels and lanes behind dictionaries for topics; the last word on each command has the apply-time guard.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from agents.actuation.guard import ApplyGuard, Overrides, RateCaps
from agents.decide.records import decode_command, decode_decision
from agents.policy import GuardLimits
from agents.records import Command, Decision
from infra.console.errors import HarmonyError
from infra.settings.load import load_settings
from streams.records.facts import Control, FleetFacts
from streams.records.schema import encode_control, encode_fleet
from streams.topics import Topics
from tests.agents.actuation.test_apply_guard import command
from tests.faults.conftest import HERE
from tests.infra.observability.memory_loop import STREAM, MemoryLoop

# The loop tells a few indicators of many, and nothing may hide behind a limit on speed.
WARM = GuardLimits(
    warm_up_steps=8, min_coverage_ratio=0.05, stabilization_down_s=0.0, down_ratio=1.0, down_replicas=100
)
BUSY = 14.0
CALM = 1.5


async def warmed(loads: float = BUSY, slots: int = 20, guards: GuardLimits = WARM) -> MemoryLoop:
    """A fleet that has been busy for a while."""
    loop = MemoryLoop(("a",), guards)
    noise = random.Random(1)
    for _ in range(slots):
        await loop.publish_slot(loads * noise.uniform(0.9, 1.1), ready=8)
    return loop


def decisions(loop: MemoryLoop, since: int = 0) -> list[Decision]:
    return [decode_decision(r.value or b"") for r in loop.logs.get(loop.topics.decisions, [])[since:]]


def commands(loop: MemoryLoop, since: int = 0) -> list[Command]:
    return [decode_command(r.value or b"") for r in loop.logs.get(loop.topics.commands, [])[since:]]


async def test_a_fleet_that_is_calm_for_good_is_scaled_down() -> None:
    """So that the tests below can fail: less load, plainly told, does take replicas away."""
    loop = await warmed()
    noise = random.Random(2)
    for load in (10.0, 7.0, 5.0, 3.5, 2.5, *[CALM] * 12):
        await loop.publish_slot(load * noise.uniform(0.9, 1.1), ready=8)
    assert min(c.replicas for c in commands(loop)) < 8


# Google, 2020-12-14: usage came as 0 from a half-retired reporter, and a quota was cut after a while.


async def test_usage_reported_as_zero_by_a_half_retired_reporter_takes_nothing_away() -> None:
    loop = await warmed()
    before = len(loop.logs[loop.topics.decisions])
    for _ in range(12):
        await loop.publish_slot(0.0, ready=8)
    told = decisions(loop, before)
    assert all(d.replicas.final is not None and d.replicas.final >= 8 for d in told)
    assert {d.reason for d in told} == {"zero_after_nonzero"}


# Netflix Scryer, 2013: an outage upstream takes the traffic away; who scales down meets the retry storm small.


async def test_traffic_that_an_outage_upstream_took_away_takes_no_replicas_away_before_it_returns() -> None:
    loop = await warmed()
    before = len(loop.logs[loop.topics.decisions])
    await loop.publish_slot(0.4, ready=8)
    await loop.publish_slot(0.4, ready=8)
    assert all((d.replicas.final or 0) >= 8 for d in decisions(loop, before))


# Kubernetes HPA and KEDA #6659: what is missing must not scale down, nor to a fixed number.


async def test_a_metrics_outage_scales_down_neither_to_a_fallback_number_nor_to_zero() -> None:
    loop = await warmed()
    before, leases = len(loop.logs[loop.topics.decisions]), len(loop.logs[loop.topics.commands])
    for _ in range(8):
        await loop.publish_slot(None, ready=8)
    assert all((d.replicas.final or 0) >= 8 for d in decisions(loop, before))
    assert all(c.replicas >= 8 for c in commands(loop, leases))
    guard, last = ApplyGuard(), commands(loop)[-1]
    guard.check(last, last.issued_ts_ms, last.expected_current)
    # After the lease there is no value at all: an adapter answers with an error, never with the last one or 0.
    assert guard.replicas("a", last.valid_until_ts_ms) is None


# Reddit, 2016-08-11: switched off by hand, switched on again by a package manager, it read half-migrated data and
# ended application and cache servers within 16 s.


async def test_an_autoscaler_that_was_switched_off_by_hand_stays_off_when_something_restarts_it() -> None:
    loop = await warmed()
    pause = encode_control(Control("stop", loop.slot * STREAM.step_ms, "pause", by="op", reason="migration"))
    await loop.feed("requests", None, pause, loop.slot * STREAM.step_ms)
    await loop.publish_slot(BUSY, ready=8)
    since = len(loop.logs[loop.topics.commands])
    for load in (BUSY, CALM, CALM, CALM):
        await loop.publish_slot(load, ready=8)
    assert commands(loop, since) == []
    assert decisions(loop)[-1].reason == "kill_switch"
    # The actuator's own switch is in its memory, not in its process.
    guard = ApplyGuard()
    guard.set_overrides(Overrides(stopped="op: migration"), 0)
    again = ApplyGuard.restore(guard.snapshot_bytes())
    assert again.check(command(1), 0, 3).reason == "stopped"


def test_servers_are_not_ended_faster_than_the_caps_allow() -> None:
    guard = ApplyGuard(caps=RateCaps(max_removed=2, max_removed_fleet=3))
    current = 40
    for second in range(16):
        verdict = guard.check(command(second + 1, replicas=1, expected=current), 1_000 + second * 1_000, current)
        if verdict.apply and verdict.replicas is not None:
            current = verdict.replicas
    assert current >= 38


async def test_half_migrated_data_removes_nothing() -> None:
    """Most sources are gone: what is left would say that there is little to do."""
    loop = await warmed()
    before = len(loop.logs[loop.topics.decisions])
    facts = encode_fleet("a", "half", FleetFacts(loop.slot * STREAM.step_ms + 100, ready=2, pending=0, draining=0))
    await loop.feed("requests", b"a", facts, loop.slot * STREAM.step_ms + 200)
    for _ in range(3):
        await loop.publish_slot(None, ready=8)
    assert all((d.replicas.final or 0) >= 8 for d in decisions(loop, before) if d.replicas.current == 8)


# AWS, 2025-10-19: a delayed enactor put an old plan over a newer one after its freshness check had gone stale; then the
# plan in force was deleted; then capacity was removed too fast.


def test_a_delayed_enactor_does_not_put_an_old_plan_over_a_newer_one() -> None:
    guard = ApplyGuard()
    old = command(1, replicas=2, valid_until_ts_ms=10**9)
    checked_before = old.valid_until_ts_ms > 1_000
    assert guard.check(command(2, replicas=6), 1_000, 3).apply
    verdict = guard.check(old, 1_000, 6)
    assert checked_before
    assert (verdict.accepted, verdict.reason) == (False, "superseded")
    assert guard.replicas("w", 2_000) == 6


# Google, 2025-06-12: blank fields in a policy ended every server that read it.


@pytest.mark.parametrize("blank", [None, "", [], {}, " "])
@pytest.mark.parametrize("name", ["id", "target", "replicas", "slo", "mode", "match"])
def test_blank_fields_in_a_policy_are_a_sentence_and_no_crash(tmp_path: Path, name: str, blank: object) -> None:
    whole: dict[str, object] = {
        "id": "w",
        "target": {"kind": "Deployment", "name": "w"},
        "replicas": {"min": 1, "max": 3},
        "slo": {"ttft_s": 1.0},
        "mode": "act",
        "match": {"app": "w"},
    }
    path = tmp_path / "harmony.yaml"
    path.write_bytes(msgspec.json.encode({"workloads": [whole | {name: blank}]}))
    told = ""
    try:
        load_settings(path, environ={})
    except HarmonyError as error:
        told = f"{error.exit_code} {error.message}"
    # What may be left out may be blank; everything else is named, with its place.
    assert not told or (told.startswith("2 ") and "workloads" in told)


# Azure Front Door, 2025-10-29: a bad configuration got past the validator.


@pytest.mark.parametrize(
    "text",
    ["workloads: [{id: w, replicas: {min: 9, max: 1}}]", "epsilon: 1.5", "wrokloads: []", "step_s: -1", "a: [", "7"],
)
def test_a_bad_configuration_gets_past_no_border(tmp_path: Path, text: str) -> None:
    path = tmp_path / "harmony.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HarmonyError) as refused:
        load_settings(path, environ={})
    assert refused.value.exit_code == 2


# Jepsen on Redpanda and NATS: clients were unsafe by default.


def test_no_client_of_ours_is_left_to_unsafe_defaults() -> None:
    root = HERE.parents[1]
    measured = root / "infra" / "lab" / "bench"
    assert measured.is_dir()
    for path in [*(root / "infra").rglob("*.py"), *(root / "streams").rglob("*.py")]:
        if measured in path.parents:
            continue
        text = path.read_text(encoding="utf-8")
        for number, call in enumerate(text.split("KafkaProducer(")[1:]):
            assert 'acks="all"' in call[:400], f"{path}: producer {number}"
        for call in text.split("KafkaConsumer(")[1:]:
            assert "enable_auto_commit=False" in call[:400] or "group_id=None" in call[:400], path
            assert 'isolation_level="read_committed"' in call[:600], path
    transport = (root / "streams/runtime/transport.py").read_text(encoding="utf-8")
    assert "fetcher._isolation_level = READ_COMMITTED" in transport
    assert "producer_acks=-1" in (root / "streams/runtime/app.py").read_text(encoding="utf-8")
    assert Topics().specs()[0].config["message.timestamp.type"] == "LogAppendTime"
