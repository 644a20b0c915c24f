"""Puts an actuator together: settings, memory, desk, feed, and what it tells to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from agents.actuation.guard import ApplyGuard, RateCaps
from agents.policy import WorkloadSpec
from infra.actuate.actuator import Actuator, Event
from infra.actuate.clocks import LogClock, wall_ms
from infra.actuate.controller import Desk
from infra.actuate.feed import CommandFeed
from infra.actuate.gauges import LeaseGauges
from infra.actuate.lease_routes import LeaseRoutes
from infra.actuate.report import OutcomeWriter
from infra.actuate.runner import Runner
from infra.actuate.store import Store, WordsFile, words_path
from infra.console.options import say
from infra.observability.health import Health
from infra.observability.probes import ProbeServer
from infra.settings.load import Settings
from streams.records.limits import MAX_REPLICAS

# How far a command may be issued ahead of this machine's clock before it may only scale up.
MAX_AHEAD_MS = 60_000
DEFAULT_WEB_PORT = 9465


@dataclass(frozen=True, slots=True)
class Chosen:
    """What every actuator is told on the command line.

    Attributes:
        name: of this actuator's directory; two on one host need two.
        words: the operator's words, or None for the usual place.
        web_port: of metrics, probes and JSON; None = not served.
    """

    settings: Settings
    brokers: str
    name: str
    words: Path | None = None
    caps: RateCaps = field(default_factory=RateCaps)
    max_replicas: int = MAX_REPLICAS
    web_host: str = "127.0.0.1"
    web_port: int | None = DEFAULT_WEB_PORT

    @property
    def declared(self) -> dict[str, WorkloadSpec] | None:
        """Workloads of the settings; None where they declare none."""
        specs = {spec.id: spec for spec in self.settings.policy.workloads}
        return specs or None


@contextmanager
def desk_of(
    chosen: Chosen,
    actuator: Actuator,
    *,
    dry_run: bool = False,
    clock: Callable[[], int] = wall_ms,
    report: Callable[[Event], None] = lambda _event: None,
) -> Iterator[Desk]:
    """The desk of an actuator, with its memory held while the block runs. A dry run remembers nothing.

    Raises:
        HarmonyError: another process has the memory, or it is damaged.
    """
    ahead_ms = None if isinstance(clock, LogClock) else MAX_AHEAD_MS
    with ExitStack() as stack:
        store, guard = None, ApplyGuard(chosen.max_replicas, caps=chosen.caps, max_ahead_ms=ahead_ms)
        if not dry_run:
            store = stack.enter_context(Store(chosen.settings.state_dir / "actuate" / chosen.name))
            guard = store.guard(chosen.max_replicas, chosen.caps, ahead_ms)
        desk = Desk(
            actuator,
            guard,
            clock,
            store=store,
            words=WordsFile(words_path(chosen.settings.state_dir, chosen.words)),
            declared=chosen.declared,
            dry_run=dry_run,
            report=report,
        )
        yield desk


@asynccontextmanager
async def outcomes_of(chosen: Chosen, source: str) -> AsyncIterator[OutcomeWriter]:
    """A writer of outcomes, running while the block does."""
    settings = chosen.settings
    writer = OutcomeWriter(chosen.brokers, settings.topics.telemetry_requests, source, settings.kafka_client_options())
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await writer.close()


@asynccontextmanager
async def served(chosen: Chosen, gauges: LeaseGauges, health: Health, routes: LeaseRoutes) -> AsyncIterator[None]:
    """Metrics, probes and the JSON answer, while the block runs."""
    if chosen.web_port is None:
        yield
        return
    server = ProbeServer(
        health,
        gauges,
        host=chosen.web_host,
        port=chosen.web_port,
        token=token_of(chosen.settings),
        parts=(routes.add_to,),
    )
    await server.start()
    say(f"harmony: metrics, probes and /v1/replicas on {server.url}")
    try:
        yield
    finally:
        await server.stop()


async def follow(
    chosen: Chosen,
    desk: Desk,
    *,
    once: bool = False,
    health: Health | None = None,
    gauges: LeaseGauges | None = None,
) -> None:
    """Hand the commands topic to the desk until told to stop."""

    def caught_up() -> None:
        if gauges is not None:
            gauges.caught_up = True

    clock = desk.clock
    with CommandFeed(
        chosen.brokers, chosen.settings.topics.commands, security=chosen.settings.kafka_client_options()
    ) as feed:
        runner = Runner(
            desk,
            feed.batches(),
            once=once,
            health=health,
            on_commands=clock.take if isinstance(clock, LogClock) else None,
            on_caught_up=caught_up,
        )
        runner.stop_on_signals()
        await runner.run()


def new_health() -> Health:
    """Ready once the topic has been read; not alive when its reading stands still."""
    return Health(monotonic(), expected=("caught_up",), max_heartbeat_age_s=60.0)


def token_of(settings: Settings) -> str | None:
    """What readers beyond loopback must send; the workers' token."""
    token = settings.worker.metrics_token
    return token.get_secret_value() if token else None
