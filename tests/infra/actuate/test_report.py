"""What becomes of commands, told: outcomes that Kafka does not take hold up nobody."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from rich.console import Console

from agents.records import Target
from infra.actuate import report
from infra.actuate.actuator import Event
from infra.actuate.assembly import events_table
from infra.actuate.report import OutcomeWriter
from streams.records.facts import OutcomeFact


class Blocking:
    """A producer that waits for a topic that there is not, by a clock of the test's."""

    config = {"client_id": "x"}  # noqa: RUF012

    def __init__(self, **_: Any) -> None:
        self.now_s, self.sent, self.closed = 0.0, 0, False

    def send(self, *_: object, **__: object) -> Any:
        self.now_s += 2.0
        self.sent += 1
        raise KafkaTimeoutError("Failed to update metadata after 2.0 secs")

    def close(self, **_: object) -> None:
        self.closed = True


async def test_the_end_waits_a_moment_for_outcomes_and_not_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Blocking()
    monkeypatch.setattr(report, "KafkaProducer", lambda **_: producer)
    monkeypatch.setattr(report, "bootstrap_servers", lambda *_: ["h:1"])
    monkeypatch.setattr(report, "monotonic", lambda: producer.now_s, raising=False)
    writer = OutcomeWriter("h:1", "t.telemetry.requests", "actuate/x")
    for n in range(1_000):
        writer.outcome(f"w{n}", OutcomeFact(n, f"c{n}", "applied"))
    await writer.close()
    assert producer.sent == 3
    assert producer.closed


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_the_table_of_a_dry_run_fits_the_terminal(width: int) -> None:
    target = Target("apps/v1", "Deployment", "production-inference", "chat-70b-instruct")
    event = Event(
        0, "dry-run", "prod/llm/chat-70b", target, "applied", "", "c1", 3, 5, 5, 1, 0.0123, "cheapest of the counts", ""
    )
    refused = event._replace(workload="prod/x", status="refused", reason="undeclared", before=None, after=None)
    out = StringIO()
    Console(file=out, width=width).print(events_table({e.workload: e for e in (event, refused)}))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    text = " ".join(out.getvalue().split())
    assert "prod/llm/chat-70b" in text
    assert "set 5" in text
    assert ("Deployment" in text) is (width >= 160)
