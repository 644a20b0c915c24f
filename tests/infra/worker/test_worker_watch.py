"""A worker tells of what it does itself, and of nothing that went to another worker or that it no longer knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from structlog.testing import capture_logs

from agents.decide.decision import command_id
from agents.decide.records import encode_decision
from agents.records import Decision, ReplicaView
from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from infra.observability.stage_metrics import DecideMetrics
from infra.settings.load import Settings
from infra.worker.watch import WorkerWatch
from streams.log import Emission, OutRecord
from streams.runtime.transactions import LogEnd
from tests.infra.observability.memory_loop import MemoryLoop
from tests.infra.page.fleet_records import TOPICS, decision

LONG_S = 1e6
EPOCH = 3


def emission(*decisions: Decision) -> Emission:
    return Emission([[OutRecord(TOPICS.decisions, d.workload.encode(), encode_decision(d)) for d in decisions]], [], 0)


def told(meter: PrometheusMeter, *names: str) -> dict[str, float]:
    """Every series of these gauges, by name and last label."""
    return {
        f"{s.name.removeprefix('harmony_')} {list(s.labels.values())[-1]}": s.value
        for family in meter.registry.collect()
        for s in family.samples
        if s.name.removeprefix("harmony_") in names
    }


def test_a_lease_that_is_renewed_is_no_new_command_to_a_worker_that_has_just_started() -> None:
    def ordered(step: int, since: int) -> Decision:
        made = decision("a", step, mode="act")
        first, final = decision("a", since), made.replicas.final
        assert final is not None
        return replace(made, command_id=command_id("test", "a", first.origin_ts_ms, final, EPOCH))

    def counted(*decisions: Decision) -> float | None:
        meter = PrometheusMeter(strict=True)
        metrics = DecideMetrics(meter, TOPICS, fleet="test", epoch=EPOCH)
        for made in decisions:
            metrics(emission(made))
        return meter.registry.get_sample_value("harmony_commands_total")

    life = [ordered(1, since=1), ordered(2, since=1), ordered(3, since=3), ordered(4, since=3)]
    assert counted(*life) == 2
    assert counted(*life[3:]) == 0  # a restart between the two
    assert counted(*life[1:]) == 1
    assert counted(decision("a", 1, command_id=None)) == 0


def test_a_number_that_is_no_longer_known_has_no_series() -> None:
    meter = PrometheusMeter(strict=True)
    metrics = DecideMetrics(meter, TOPICS, fleet="test", epoch=EPOCH)
    metrics(emission(decision("a", 1)))
    gauges = ("p_miss", "miss_share", "miss_share_allowed", "replicas_ready", "replicas_wanted")
    assert told(meter, *gauges).keys() == {f"{name} a" for name in gauges}
    assert told(meter, "telemetry_coverage_ratio") == {
        "telemetry_coverage_ratio a": decision("a", 1).inputs.coverage_ratio
    }
    # Telemetry falls silent: the count is held, and nobody states a risk.
    last = decision("a", 2)
    held = ReplicaView(None, None, 4, None, 4)
    unplanned: dict[str, Any] = {"p_miss": {}, "p_miss_stderr": None}
    risk = type(last.risk)(last.risk.epsilon, last.risk.objective, **unplanned)
    metrics(emission(decision("a", 2, reason="silent", replicas=held, risk=risk)))
    assert told(meter, *gauges) == {"replicas_wanted a": 4.0}


def test_what_is_allowed_and_commanded_follows_the_decisions() -> None:
    meter = PrometheusMeter(strict=True)
    metrics = DecideMetrics(meter, TOPICS, fleet="test", epoch=EPOCH)
    for step, mode in enumerate(("act", "observe", "act")):
        made = decision("a", step, mode=mode)
        metrics(emission(made))
        assert told(meter, "miss_share", "miss_share_allowed", "acting") == {
            "miss_share a": made.risk.miss_share[str(made.replicas.final)],
            "miss_share_allowed a": 1.0 - made.risk.objective,
            "acting a": float(mode == "act"),
        }


async def test_what_went_to_another_worker_is_told_by_that_one_alone() -> None:
    loop = MemoryLoop()
    meter = loop.meter
    metrics = DecideMetrics(meter, TOPICS, fleet="test", epoch=EPOCH)
    for n in range(24):
        await loop.publish_slot(rate=10.0 + n % 3)
    metrics(emission(decision("a", 1), decision("b", 1)))
    lanes = {
        ("plans", 0): SimpleNamespace(stage="decide", kernel=object()),
        ("pages", 0): SimpleNamespace(stage="forecast", kernel=loop.forecast),
        ("gpu", 0): SimpleNamespace(stage="ingest", kernel=loop.ingest["gpu"]),
    }
    status = SimpleNamespace(restored=True, lanes=lanes)
    host: Any = SimpleNamespace(status=status, lag=lambda: {("pages", 0): 7})
    health = Health(0.0)
    watch = WorkerWatch(Settings(), host, ("ingest", "forecast", "decide"), health, meter, metrics)
    watch.look(0.0)
    watch.look(LONG_S)
    gauges = (
        "replicas",
        "replicas_ready",
        "p_miss",
        "acting",
        "forecast_coverage_ratio",
        "forecast_pinball",
        "source_silent",
    )
    before = told(meter, *gauges)
    assert before["source_silent gpu"] == before["source_silent requests"] == 1.0
    assert {key.split()[0] for key in before} == set(gauges)
    assert [c.ok for c in health.snapshot(0.0).checks] == [False]
    lanes.clear()
    status.restored = False
    watch.look(LONG_S)
    assert told(meter, *gauges) == before  # a rebalance goes on, and nobody knows yet who has what
    status.restored = True
    watch.look(LONG_S)
    assert told(meter, *gauges) == {}
    assert health.snapshot(0.0).checks == ()
    assert told(meter, "lag_records") == {
        "lag_records ingest": 0.0,
        "lag_records forecast": 0.0,
        "lag_records decide": 0.0,
    }
    # It comes back, without those that were retired meanwhile.
    metrics(emission(decision("b", 9)))
    assert told(meter, "replicas", "replicas_ready").keys() == {
        "replicas ready", "replicas pending", "replicas wanted", "replicas_ready b"
    }  # fmt: skip
    assert meter.registry.get_sample_value("harmony_replicas", {"state": "ready"}) == decision("b", 9).replicas.ready


def test_a_transaction_that_stays_open_is_reported_with_its_remedy_until_it_ends() -> None:
    meter, health = PrometheusMeter(strict=True), Health(0.0)
    lanes = {
        ("t.requests", 0): SimpleNamespace(stage="ingest", kernel=object()),
        ("t.plans", 0): SimpleNamespace(stage="decide", kernel=object()),
    }
    host: Any = SimpleNamespace(status=SimpleNamespace(restored=False, lanes=lanes), lag=dict)
    ends = {("t.requests", 0): LogEnd(5, 9), ("t.plans", 0): LogEnd(7, 7), ("t.gone", 0): LogEnd(0, 3)}
    watch = WorkerWatch(Settings(), host, ("ingest", "decide"), health, meter, None, ends=lambda: ends, brokers="k:1")

    def gauges() -> dict[str, float]:
        return told(meter, "unstable_records", "open_transaction_seconds")

    with capture_logs() as logs:
        for now_s in (0.0, 30.0, 31.0, 40.0):
            watch.look(now_s)
    assert gauges() == {
        "unstable_records ingest": 4.0, "open_transaction_seconds ingest": 40.0,
        "unstable_records decide": 0.0, "open_transaction_seconds decide": 0.0,
    }  # fmt: skip
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("open_transaction", "warning")
    (check,) = health.snapshot(0.0).checks
    assert (check.name, check.ok, check.required) == ("transactions", False, False)
    assert check.detail == line["detail"].replace("31 s", "40 s")
    assert "t.requests/0: 4 records from offset 5 on" in check.detail
    assert "--bootstrap-server k:1 abort --topic t.requests --partition 0 --start-offset 5" in check.detail
    ends["t.requests", 0] = LogEnd(9, 9)
    watch.look(41.0)
    assert [c.ok for c in health.snapshot(0.0).checks] == [True]
    assert set(gauges().values()) == {0.0}
