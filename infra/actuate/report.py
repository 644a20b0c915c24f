"""What became of commands, told: outcomes back into the telemetry, a line for people or programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import orjson
import structlog
import typer
from kafka import KafkaProducer
from kafka.errors import KafkaError
from rich.markup import escape

from infra.actuate.actuator import Event
from infra.console.errors import HarmonyError
from infra.console.text import printable
from infra.kafka.clients import close_producer
from infra.settings.brokers import bootstrap_servers
from streams.records.facts import FleetFacts, OutcomeFact
from streams.records.schema import encode_fleet, encode_outcome, record_key

_BLOCK_MS = 2_000
_CLOSE_S = 5.0
# Outcomes waiting for Kafka; beyond that the oldest are dropped, for acting must not wait for telling.
_MOST_WAITING = 10_000

log = structlog.get_logger()


class OutcomeWriter:
    """Writes outcomes and fleet facts to `telemetry.requests`, in the background; losing one harms no decision.

    Args:
        brokers: `host:port`, several with commas.
        topic: full name of the requests topic.
        source: who says so, such as `actuate/kubernetes`.
        security: keyword arguments of kafka-python's clients.

    Raises:
        HarmonyError: the brokers refuse.
    """

    def __init__(self, brokers: str, topic: str, source: str, security: Mapping[str, Any] | None = None) -> None:
        self._topic, self._source = topic, source
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_MOST_WAITING)
        servers = bootstrap_servers(brokers, security)
        try:
            self._producer = KafkaProducer(
                bootstrap_servers=servers,
                acks="all",
                client_id="harmony-actuate",
                allow_auto_create_topics=False,
                max_block_ms=_BLOCK_MS,
                **(security or {}),
            )
        except (KafkaError, ValueError, OSError) as error:
            raise HarmonyError(f"The brokers at {brokers} refuse: {str(error).rstrip('.')}.") from error

    def event(self, event: Event) -> None:
        """The outcome of a command; pins of this actuator alone have none."""
        if event.command_id is not None:
            self.outcome(event.workload, OutcomeFact(event.ts_ms, event.command_id, event.status))

    def outcome(self, workload: str, fact: OutcomeFact) -> None:
        """Any outcome."""
        self._put(workload, encode_outcome(workload, self._source, fact))

    def fleet(self, workload: str, facts: FleetFacts) -> None:
        """Replica counts of one workload."""
        self._put(workload, encode_fleet(workload, self._source, facts))

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            workload, value = await self._waiting.get()
            await asyncio.to_thread(self._send, workload, value)

    async def close(self) -> None:
        """Give what waits a moment to get through; each may block for as long as Kafka knows no such topic."""
        end_s = monotonic() + _CLOSE_S
        while not self._waiting.empty() and monotonic() < end_s:
            workload, value = self._waiting.get_nowait()
            await asyncio.to_thread(self._send, workload, value)
        if not self._waiting.empty():
            log.warning("outcomes_not_sent", records=self._waiting.qsize())
        await asyncio.to_thread(close_producer, self._producer, _CLOSE_S)

    def _put(self, workload: str, value: bytes) -> None:
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait((workload, value))

    def _send(self, workload: str, value: bytes) -> None:
        try:
            self._producer.send(self._topic, value=value, key=record_key(workload)).add_errback(_not_sent)
        except KafkaError as error:
            _not_sent(error)


def _not_sent(error: BaseException) -> None:
    log.warning("outcome_not_sent", reason=str(error))


_SIGNS = {"applied": "green", "accepted": "dim", "refused": "yellow", "expired": "yellow", "failed": "bold red"}


def line_printer(as_json: bool, dry: bool) -> Callable[[Event], None]:
    """Prints one event per line on stdout: JSON for programs, words for people.

    Args:
        dry: say "would" of what is done.
    """
    if as_json:
        return lambda event: typer.echo(orjson.dumps({"dry_run": dry, **event.as_dict()}).decode())
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)

    def show(event: Event) -> None:
        sign = _SIGNS[event.status]
        console.print(f"[{sign}]{event.status:<8}[/{sign}] {escape(event_text(event, dry))}")

    return show


def event_text(event: Event, dry: bool) -> str:
    """`prod/chat: 3 → 5 replicas of Deployment prod/chat (cheapest, P(miss) 0.004)`."""
    t = event.target
    before = "?" if event.before is None else str(event.before)
    change_text = f"{before} → {event.wanted}"
    if event.after is not None:
        change_text = f"{'would set ' if dry else ''}{before} → {event.after}"
        if event.after != event.wanted:
            change_text += f" of the {event.wanted} wanted"
    why = event.why + ("" if event.p_miss is None else f", P(miss) {event.p_miss:.4g}")
    text = f"{event.workload}: {change_text} replicas of {t.kind} {t.namespace}/{t.name} ({why}) [{event.reason}]"
    return printable(text + (f" {event.detail}" if event.detail else ""), 400)
