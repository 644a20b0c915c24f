"""Telemetry that fails in a replay: what each kind hides, that all policies live through it, and how it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import Decision
from infra.console.errors import HarmonyError
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS, REPLAY_POLICY, harmony_controller
from infra.lab.replay.setting import (
    ScoredLoad,
    Setting,
    Telemetry,
    TelemetryFault,
    delay_at,
    fault_at,
    read_faults,
    shift_faults,
)
from infra.lab.replay.simulation import HarmonyController, View
from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster, ConstantLeadTime
from tests.infra.lab.replay.replay_setting import HALF, OBJECTIVE, poisson, setting

GAP = TelemetryFault("gap", 10.0, 20.0)
FROZEN = TelemetryFault("frozen", 10.0, 20.0)
LATE = TelemetryFault("delayed", 10.0, 20.0, 25.0)


def seen(fault: TelemetryFault, until_s: float = 60.0) -> list[list[tuple[float, int]]]:
    """At every fifth second, the readings a policy holds: when each was read, and how many had arrived by then."""
    cluster = Cluster(HALF, 1, ConstantLeadTime(0.0), OBJECTIVE)
    times = np.arange(0.5, until_s, 1.0)
    cluster.feed(Arrivals(times, np.full(len(times), 10), np.full(len(times), 2)))
    view = View(cluster, Telemetry(faults=(fault,)), 1_000.0, 0)
    held = []
    for now_s in np.arange(5.0, until_s + 1.0, 5.0):
        cluster.advance(float(now_s))
        view.scrape()
        view.advance()
        held.append([(reading.at_s, reading.arrived_total) for reading in view.within(1_000.0)])
    return held


def test_nothing_is_read_in_a_gap_and_nothing_is_lost_by_it() -> None:
    held = seen(GAP)
    assert [at_s for at_s, _ in held[-1]] == [5.0, *np.arange(20.0, 61.0, 5.0)]
    assert all(arrived == at_s for at_s, arrived in held[-1])
    assert held[2] == held[0]


def test_stuck_engines_tell_what_they_told_before_at_later_times() -> None:
    held = seen(FROZEN)
    assert held[2] == [(5.0, 5), (10.0, 5), (15.0, 5)]
    assert held[3][-1] == (20.0, 20)


def test_late_readings_come_in_order_and_none_before_its_time() -> None:
    held = seen(LATE)
    for k, readings in enumerate(held):
        now_s = 5.0 * (k + 1)
        assert all(at_s + delay_at((LATE,), at_s) <= now_s for at_s, _ in readings)
        assert [at_s for at_s, _ in readings] == sorted(at_s for at_s, _ in readings)
    assert [at_s for at_s, _ in held[5]] == [5.0]  # at 30 s: that of 10 s comes at 35, and those after it behind it
    assert [at_s for at_s, _ in held[-1]] == list(np.arange(5.0, 61.0, 5.0))


@given(st.integers(1, 200), st.sampled_from((0.1, 0.25, 0.5, 0.75, 1.0)))
def test_silent_is_that_share_of_any_replicas_in_a_row(first: int, share: float) -> None:
    silent = TelemetryFault("silent", 10.0, 20.0, share=share)
    unheard = sum(not silent.reads(replica_id) for replica_id in range(first, first + 40))
    assert unheard == 40 * share
    assert all(fault.reads(first) for fault in (GAP, FROZEN, LATE))


def test_of_the_silent_nothing_is_read_and_of_the_others_all() -> None:
    cluster = Cluster(HALF, 4, ConstantLeadTime(0.0), OBJECTIVE)
    cluster.feed(Arrivals(np.arange(0.5, 60.0, 0.25), np.full(238, 10), np.full(238, 6)))
    view = View(cluster, Telemetry(faults=(TelemetryFault("silent", 10.0, 20.0, share=0.25),)), 1_000.0, 0)
    for now_s in np.arange(5.0, 31.0, 5.0):
        cluster.advance(float(now_s))
        view.scrape()
        view.advance()
    told = {reading.at_s: reading for reading in view.within(1_000.0)}
    assert [len(reading.running) for reading in told.values()] == [4, 3, 3, 4, 4, 4]
    assert [reading.draining_outstanding for reading in told.values()] == [0] * 6
    whole, part = (len(told[at_s].ttfts_s) for at_s in (25.0, 15.0))
    assert part == pytest.approx(0.75 * whole, abs=2)


def controlled(cell: Setting) -> HarmonyController:
    variant = replace(HARMONY_VARIANTS["harmony-baselines"], policy={"paths_screen": 64})
    make = harmony_controller(variant, 1.5)
    cluster = Cluster(cell.profile, cell.initial_replicas, cell.lead_time(0), cell.objective)
    cluster.feed(cell.load.arrivals)
    controller = make(cell, cluster, 0)
    assert isinstance(controller, HarmonyController)
    while controller.next_s < cell.load.end_s:
        cluster.advance(controller.next_s)
        controller.act()
    return controller


@pytest.mark.parametrize("kind", ["gap", "frozen", "delayed"])
def test_harmony_is_told_as_little_as_the_rules_and_gives_nothing_up(kind: str) -> None:
    """From 640 s on the load is a fifth of what it was; telemetry fails from 600 to 720 s."""
    (fault,) = read_faults(f"{kind}@540+120" + (":60" if kind == "delayed" else ""))
    cell = setting(step_s=5.0, initial_replicas=4, max_replicas=40).with_faults((fault,))
    assert cell.telemetry.faults[0].start_s == 600.0
    told = controlled(cell).decisions
    blind = [d for d in told if 615.0 < (d.origin_ts_ms - told[0].origin_ts_ms) / 1000 + 5.0 <= 720.0]
    assert blind
    assert all(d.action != "down" for d in blind)
    # A replica that was idle when its exporter froze looks idle: that is not taken for the load of all.
    assert all(
        d.inputs.arrival_rate is None or d.inputs.coverage_ratio < REPLAY_POLICY.guards.min_coverage_ratio
        for d in blind
    )
    # Counters that are read again make up for all the time at once: that is no load of twenty times as many requests.
    most = max(d.replicas.final or 0 for d in told if d.origin_ts_ms < blind[0].origin_ts_ms)
    assert max(d.replicas.final or 0 for d in told) == most < cell.max_replicas
    after = [d for d in told if (d.origin_ts_ms - told[0].origin_ts_ms) / 1000 > 800.0]
    assert after[-1].inputs.arrival_rate == pytest.approx(1.0, abs=0.8)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_harmony_takes_the_load_of_silent_engines_from_the_others(share: float) -> None:
    """A steady load, six replicas, more than it needs; some of them are not read for a quarter of an hour."""
    (fault,) = read_faults(f"silent@600+900:{share}")
    cell = setting(step_s=5.0, initial_replicas=6, min_replicas=6, max_replicas=40)
    cell = replace(cell, load=ScoredLoad("level", poisson(4.0, 2_400.0, 5), (60.0, 2_400.0))).with_faults((fault,))
    told = controlled(cell).decisions
    begin = told[0].origin_ts_ms - 5_000
    by_phase: dict[bool, list[Decision]] = {False: [], True: []}
    for d in told:
        at_s = (d.origin_ts_ms - begin) / 1000
        if 400.0 < at_s <= 660.0 or at_s > 1_600.0:
            by_phase[False].append(d)
        elif 700.0 < at_s <= 1_560.0:
            by_phase[True].append(d)
    heard, deaf = (fmean(d.inputs.arrival_rate or 0.0 for d in by_phase[phase]) for phase in (False, True))
    assert heard == pytest.approx(4.0, rel=0.1)
    assert deaf == pytest.approx(4.0, rel=0.15)
    assert max(d.inputs.coverage_ratio for d in by_phase[True]) < 1.0
    work = told[-1].work
    assert work is not None
    arrivals = cell.load.arrivals
    assert work.output_tokens == pytest.approx(arrivals.output_tokens.mean(), rel=0.15)
    assert work.prompt_tokens == pytest.approx(arrivals.prompt_tokens.mean(), rel=0.15)
    # Requests stay as they are.
    assert (work.heavier_ratio or 1.0) == pytest.approx(1.0, abs=0.15)
    most = {max(d.replicas.final or 0 for d in phase) for phase in by_phase.values()}
    assert max(most) <= min(most) + 1


def test_faults_are_read_as_they_are_written() -> None:
    assert read_faults(None) == read_faults("") == ()
    assert read_faults("gap@600+300, silent@5+5:0.5, delayed@1.5+10:2") == (
        TelemetryFault("gap", 600.0, 900.0),
        TelemetryFault("silent", 5.0, 10.0, share=0.5),
        TelemetryFault("delayed", 1.5, 11.5, 2.0),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("gap", "gap@600", "gap@-1+5", "gap@5+0", "gap@5+5:3", "gap@1e9+5", "gap@..+1"),
        *("delayed@5+5", "silent@5+5", "silent@5+5:1.1", "stuck@5+5"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(text: str) -> None:
    with pytest.raises(
        HarmonyError, match=r"--faults must be of gap, silent, frozen, delayed, .* gap@600\+300"
    ) as raised:
        read_faults(text)
    assert raised.value.exit_code == 2


faults = st.lists(st.builds(TelemetryFault, st.just("gap"), st.floats(0, 99), st.floats(0, 99)), max_size=4)


@given(faults, st.floats(0, 99), st.floats(0, 99))
def test_a_fault_holds_from_start_to_before_end(told: Sequence[TelemetryFault], now_s: float, by_s: float) -> None:
    found = fault_at(told, now_s)
    assert (found is not None) == any(fault.start_s <= now_s < fault.end_s for fault in told)
    assert [(fault.start_s - by_s, fault.kind) for fault in shift_faults(told, by_s)] == [
        (pytest.approx(fault.start_s), fault.kind) for fault in told
    ]
