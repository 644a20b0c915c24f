"""What the page says of adoption, dead letters and settings: numbers against plain arithmetic, and no secrets."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from agents.decide.records import encode_decision
from agents.records import ReplicaView
from infra.kafka.tail import TailRecord
from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from infra.page.memory import FleetMemory
from infra.page.server import health_view, settings_view
from infra.page.skill import adoption, largest_within
from infra.page.tail import LetterMemory, PageTail
from infra.page.views import fleet_row, workload_view
from infra.settings.load import Settings, load_settings
from tests.infra.page.fleet_records import STEP_MS, TOPICS, decision

counts = st.lists(st.one_of(st.just(math.nan), st.integers(0, 50).map(float)), min_size=1, max_size=40)


@given(counts, st.integers(1, 12))
def test_the_largest_of_a_window_is_that_of_a_loop(values: list[float], window: int) -> None:
    found = largest_within(np.array(values), window)
    for t, got in enumerate(found.tolist()):
        known = [v for v in values[max(0, t - window + 1) : t + 1] if not math.isnan(v)]
        assert got == max(known) if known else math.isnan(got)


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_adoption_agrees_with_a_loop_over_the_steps(steps: int, rng: Any) -> None:
    rows = [[rng.choice([math.nan, *map(float, range(9))]) for _ in range(3)] for _ in range(steps)]
    risks = [[rng.choice([math.nan, rng.random()]) for _ in range(2)] for _ in range(steps)]
    found = adoption(*np.array(rows).T, *np.array(risks).T, STEP_MS)
    known = [(r, p) for r, p in zip(rows, risks, strict=True) if not any(map(math.isnan, r))]
    if not known:
        assert found is None
        return
    assert found is not None
    assert found.steps == len(known)
    assert math.isclose(found.held, sum(r[0] for r, _ in known) / len(known))
    assert math.isclose(found.ours, sum(r[1] for r, _ in known) / len(known))
    hours = STEP_MS / 3_600_000
    assert math.isclose(found.above_h - found.below_h, sum(r[0] - r[2] for r, _ in known) * hours, abs_tol=1e-9)
    assert min(found.above_h, found.below_h) >= 0
    stated = [p[0] for _, p in known if not math.isnan(p[0])]
    assert found.p_held == (pytest.approx(sum(stated) / len(stated)) if stated else None)


def told(mode: str, proposals: list[int], current: int = 10) -> dict[str, Any]:
    memory = FleetMemory(TOPICS, STEP_MS, hold_ms=2 * STEP_MS)
    for step, proposed in enumerate(proposals):
        replicas = ReplicaView(current, 0, current, proposed, current - 1)
        made = decision("w", step, mode=mode, replicas=replicas, shadow={"reactive": 4})
        memory.fold(TOPICS.decisions, encode_decision(made))
    history = memory.get("w")
    assert history is not None
    view = workload_view("w", history)["adoption"]
    row = fleet_row("w", history)
    assert (row["held"], row["ours"]) == (view["held"], view["ours"])
    return dict(view)


def test_in_observe_the_largest_recent_proposal_is_what_would_have_been_held() -> None:
    view = told("observe", [6, 8, 5, 5, 5])
    assert view["held"] == 10
    assert view["ours"] == pytest.approx((6 + 8 + 8 + 5 + 5) / 5)
    assert view["above_h"] == pytest.approx(6 * 5 * STEP_MS / 3_600_000, rel=1e-3)
    assert view["below_h"] == 0


def test_in_act_it_is_what_was_decided() -> None:
    assert told("act", [6, 8, 5])["ours"] == 9


def test_a_row_tells_the_risk_and_the_expected_misses_of_the_decided_count() -> None:
    made = decision("w", 0)
    count = str(made.replicas.final)
    memory = FleetMemory(TOPICS, STEP_MS)
    memory.fold(TOPICS.decisions, encode_decision(made))
    history = memory.get("w")
    assert history is not None
    row = fleet_row("w", history)
    assert row["p_miss"] == pytest.approx(made.risk.p_miss[count], rel=1e-3)
    assert row["miss_share"] == pytest.approx(made.risk.miss_share[count], rel=1e-3)


def letter(n: int, reason: str = "schema", **headers: bytes) -> TailRecord:
    said = {"topic": b"harmony.telemetry.gpu", "partition": b"1", "offset": b"%d" % n, "reason": reason.encode()}
    return TailRecord(1, n, 1000 + n, b"w", b"secret bytes", tuple((said | headers).items()))


def test_letters_are_bounded_newest_first_and_never_tell_their_bytes() -> None:
    memory = LetterMemory(most=5)
    for n in range(20):
        memory.take(letter(n, "schema" if n % 2 else "json"))
    view = memory.to_dict()
    assert [x["offset"] for x in view["letters"]] == [19, 18, 17, 16, 15]
    assert view["reasons"] == {"schema": 3, "json": 2}
    assert "secret bytes" not in json.dumps(view)
    assert view["letters"][0]["bytes"] == len(b"secret bytes")


@given(st.dictionaries(st.sampled_from(["topic", "partition", "offset", "reason", "detail"]), st.binary(max_size=400)))
def test_no_headers_stop_the_page(headers: dict[str, bytes]) -> None:
    memory = LetterMemory()
    memory.take(TailRecord(0, 0, 0, b"\xff" * 400, None, tuple(headers.items())))
    (shown,) = json.loads(json.dumps(memory.to_dict()))["letters"]
    assert all(len(str(value)) <= 300 for value in shown.values())


@pytest.mark.parametrize("load", [2.0**53, 1e19, 3e38])
def test_no_load_is_too_large_for_the_page(load: float) -> None:
    """Thousands of sources may each report what a counter can hold."""
    memory = FleetMemory(TOPICS, STEP_MS)
    for step in range(3):
        made = decision("a", step)
        inputs = msgspec.structs.replace(made.inputs, arrival_rate=load)
        memory.fold(TOPICS.decisions, encode_decision(msgspec.structs.replace(made, inputs=inputs)))
    history = memory.get("a")
    assert history is not None
    row = json.loads(orjson.dumps(fleet_row("a", history)))
    assert row["load_rps"] == pytest.approx(load, rel=1e-3)
    assert orjson.dumps(workload_view("a", history))


@pytest.mark.parametrize(
    "headers", [[("reason", None)], [("partition", "²".encode())], [("offset", b"9" * 5_000)], [("offset", b"9" * 19)]]
)
async def test_no_dead_letter_ends_the_reader_of_the_page(headers: list[tuple[str, bytes | None]]) -> None:
    letters = LetterMemory()
    tail = PageTail(FleetMemory(TOPICS, STEP_MS), TOPICS, {}, letters)
    place = TopicPartition(TOPICS.dead_letters, 0)
    record = SimpleNamespace(partition=0, offset=3, timestamp=1_000, key=b"w", value=b"{", headers=headers)
    await tail._fold(place, [record])
    assert len(json.loads(orjson.dumps(letters.to_dict()))["letters"]) == 1


def notice_record(workload: str, detail: str, stamp_ms: int) -> TailRecord:
    headers = (("reason", b"unused"), ("detail", detail.encode()), ("topic", b"t.telemetry.requests"))
    return TailRecord(0, 3, stamp_ms, workload.encode(), None, headers)


def test_unusable_telemetry_is_shown_with_its_workload_and_is_no_refused_record() -> None:
    memory, letters = FleetMemory(TOPICS, STEP_MS), LetterMemory()
    for step in range(3):
        memory.fold(TOPICS.decisions, encode_decision(decision("a", step)))
    tail = PageTail(memory, TOPICS, {}, letters)
    now_ms = round(time() * 1000)
    letters.take(notice_record("a", "requests: pod-1 sends `x` (did you mean `y`?), not known", now_ms))
    letters.take(notice_record("a", "gpu: g0 sends none of z", now_ms))
    letters.take(notice_record("unseen", "gpu: g1 sends none of z", now_ms))
    view = letters.to_dict()
    assert (view["letters"], view["reasons"], len(letters)) == ([], {}, 0)
    before = memory.version
    tail._look_at_notices()
    assert list(memory.changed_since(before)) == ["a"]
    history, note = memory.get("a"), memory.note_of("a")
    assert history is not None
    assert note == "gpu: g0 sends none of z; requests: pod-1 sends `x` (did you mean `y`?), not known"
    for shown in (fleet_row("a", history, note), workload_view("a", history, note)):
        assert shown["because"].endswith(f"; telemetry: {note}")
    # It is over: the row is sent once more, without the note.
    before = memory.version
    memory.note({})
    assert list(memory.changed_since(before)) == ["a"]
    assert memory.note_of("a") == ""
    memory.note({})
    assert list(memory.changed_since(before + 1)) == []


async def test_the_reader_gives_way_however_few_records_it_was_given() -> None:
    """A reader that always finds records waiting would else keep the event loop for itself."""
    tail = PageTail(FleetMemory(TOPICS, STEP_MS), TOPICS, {}, None)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    for offset in range(5):
        before = turns
        await tail._fold(TopicPartition(TOPICS.decisions, 0), [SimpleNamespace(value=None, offset=offset)])
        assert turns > before
    beside.cancel()


def test_settings_in_force_show_what_differs_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "harmony.yaml"
    file.write_text(
        "epsilon: 0.02\n"
        "workloads: [{id: prod/x, slo: {ttft_s: 1.0}}]\n"
        "advanced:\n"
        "  kafka: {security_protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_username: u, sasl_password: hunter2}\n"
        "  worker: {metrics_token: hunter2}\n"
        "  plugins: {options: {forecaster: {api_key: hunter2}}}\n"
    )
    settings = load_settings(file, None, {})
    view = settings_view(settings)
    assert "hunter2" not in json.dumps(view)
    rows = {row["key"]: row for row in view["settings"]}
    assert (rows["epsilon"]["value"], rows["epsilon"]["changed"]) == ("0.02", True)
    assert rows["workloads[prod/x].slo.ttft_s"]["value"] == "1.0"
    assert rows["workloads[prod/x].slo.ttft_s"]["changed"]
    assert not rows["workloads[prod/x].slo.objective"]["changed"]
    assert not rows["advanced.guards.lease_steps"]["changed"]
    assert rows["advanced.plugins.options.forecaster.api_key"]["value"] == "(set)"
    assert view["policy"] == settings.policy.fingerprint()


def test_settings_that_nobody_changed_are_all_defaults() -> None:
    changed = {row["key"] for row in settings_view(Settings())["settings"] if row["changed"]}
    assert changed <= {"state_dir"}


def test_health_tells_checks_lags_and_what_is_not_zero() -> None:
    health, meter = Health(0.0, expected=("restored",)), PrometheusMeter(strict=True)
    health.set_check("sources", ok=False, detail="gpu is silent", required=False)
    meter.count("samples_total", 7, outcome="accepted")
    meter.observe("plan_seconds", 0.25)
    meter.observe("plan_seconds", 0.75)
    view = health_view(health.snapshot(1.0), meter.registry)
    assert not view["ready"]
    assert {c["name"]: c["ok"] for c in view["checks"]} == {"restored": False, "sources": False}
    figures = {(f["name"], f["of"]): f["value"] for f in view["figures"]}
    assert figures["samples_total", "accepted"] == 7
    assert figures["plan_seconds", ""] == 0.5
    assert ("samples_total", "late") not in figures
    meter.gauge("lag_records", 0, stage="decide")
    assert {f["name"] for f in health_view(health.snapshot(1.0), meter.registry)["figures"]} >= {"lag_records"}
