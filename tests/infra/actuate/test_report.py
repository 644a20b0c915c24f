"""What becomes of commands, told: outcomes that Kafka does not take hold up nobody."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from infra.actuate import report
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
