"""A declared maximum below what is ready: shown by explain, page and doctor, and never called a saving."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from agents.decide.records import encode_decision
from agents.decide.state import DecideCommit, DecideState
from agents.records import Decision, GuardStep, ReplicaView
from infra.explain.views import explanation, low_maximum
from infra.operate.doctor import _judged, examine_maxima
from infra.page.memory import FleetMemory
from infra.page.views import because, fleet_row, workload_view
from infra.settings.load import load_settings
from tests.infra.page import fleet_records as records

BOUNDS = GuardStep("bounds", 9, 4, "allowed are 1 to 4")
LIMIT = GuardStep("step_limit", 3, 9, "at most 3 fewer per 60 s")


def decision(ready: int = 12, proposed: int = 3, final: int = 4, *guards: GuardStep, **changes: Any) -> Decision:
    replicas = ReplicaView(ready=ready, pending=0, current=ready, proposed=proposed, final=final)
    changes = {"replicas": replicas, "guards": guards, "action": "down", "reason": "bounds"} | changes
    return records.decision("w", 0, **changes)


@pytest.mark.parametrize(
    ("made", "most"),
    [
        (decision(12, 3, 4, LIMIT, BOUNDS), 4),
        (decision(5, 4, 4, proposer="maximum", reason="maximum"), 4),
        # The load needs no more.
        (decision(5, 4, 4, reason="cheapest"), None),
        # The bound raised the count, or cut growth.
        (decision(5, 1, 2, GuardStep("bounds", 1, 2, "allowed are 2 to 9")), None),
        (decision(4, 9, 6, GuardStep("bounds", 9, 6, "allowed are 1 to 6"), action="up"), None),
        # A later guard held more.
        (decision(12, 3, 12, LIMIT, BOUNDS, GuardStep("coverage", 4, 12, "3 of 9 sources speak")), None),
    ],
)
def test_only_a_maximum_that_takes_replicas_away_is_low(made: Decision, most: int | None) -> None:
    assert low_maximum(made) == most
    out = StringIO()
    Console(file=out, width=500).print(explanation(made))
    assert ("warning: the declared maximum of 4 is below the" in out.getvalue()) is (most is not None)
    assert ("check replicas.max" in because(made)) is (most is not None)


def test_what_the_bound_takes_away_is_no_saving_on_the_page() -> None:
    memory = FleetMemory(records.TOPICS, records.STEP_MS)
    for step in range(4):
        origin_ts_ms = records.START_TS_MS + step * records.STEP_MS
        made = decision(12, 3, 4, LIMIT, BOUNDS, mode="observe", origin_ts_ms=origin_ts_ms)
        memory.fold(records.TOPICS.decisions, encode_decision(made))
    history = memory.get("w")
    assert history is not None
    row, view = fleet_row("w", history), workload_view("w", history)
    assert (row["held"], row["ours"]) == (None, None)
    assert view["low_maximum"] == 4
    assert "the declared maximum of 4 is below the 12 replicas" in view["because"]


def test_doctor_finds_it_in_the_newest_decisions(tmp_path: Path) -> None:
    config = tmp_path / "harmony.yaml"
    config.write_text("workloads: [{id: w, replicas: {min: 1, max: 4}}, {id: v, replicas: {min: 1, max: 4}}]\n")
    settings = load_settings(config, environ={})
    found = examine_maxima(settings, [decision(12), records.decision("v", 0)])
    assert (found.status, found.detail) == ("note", "w: at most 4 declared, 12 ready")
    assert "raise replicas.max" in found.remedy
    assert examine_maxima(settings, [decision(4), records.decision("other", 0)]).status == "ok"
    assert examine_maxima(settings, [decision(12, action="retired")]).status == "ok"


def test_doctor_offers_nothing_that_deletes_to_whom_has_the_wrong_settings(tmp_path: Path) -> None:
    config = tmp_path / "harmony.yaml"
    config.write_text("fleet: mine\n")
    settings = load_settings(config, environ={})
    other = msgspec.msgpack.encode(DecideCommit(0, "p", "theirs", 3, 5_000, DecideState()))
    for body, says in ((other, "fleet is mine, the state has theirs"), (b"\x00", "written by another release")):
        found = _judged(settings, body, 0)
        assert found.status == "fail"
        assert says in found.detail
        assert "reset" not in found.remedy
        assert found.remedy
