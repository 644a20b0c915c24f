"""Puts an actuator together: settings, memory, controller, feed, and what it tells to whom."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal

import structlog

from agents.actuation.guard import ApplyGuard, RateCaps
from agents.policy import WorkloadSpec
from agents.records import Target
from infra.actuate.actuator import Actuator, Event, ReplicaChange
from infra.actuate.controller import CommandController
from infra.actuate.keda import Lookup
from infra.actuate.kubernetes import FactsReader, Kubernetes, PodLoads, other_harmonies, rivals
from infra.actuate.kubernetes_api import FIELD_MANAGER, Access, KubernetesApi
from infra.actuate.pull import LeaseGauges, LeaseRoutes
from infra.actuate.report import OutcomeWriter, line_printer
from infra.actuate.runner import CommandFeed, LogClock, Runner, wall_ms
from infra.actuate.store import OverridesFile, Store, overrides_path
from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.console.output import FittedTable, TableColumn, output
from infra.console.text import printable
from infra.kafka.admin import TopicAdmin
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
        overrides: file of the operator's overrides; None for the usual place.
        web_port: of metrics, probes and JSON; None = not served.
    """

    settings: Settings
    brokers: str
    name: str
    overrides: Path | None = None
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
def controller_of(
    chosen: Chosen,
    actuator: Actuator,
    *,
    dry_run: bool = False,
    clock: Callable[[], int] = wall_ms,
    report: Callable[[Event], None] = lambda _event: None,
) -> Iterator[CommandController]:
    """The controller of an actuator, with its memory held while the block runs. A dry run remembers nothing.

    Raises:
        HarmonyError: another process has the memory, or it is damaged.
    """
    ahead_ms = None if isinstance(clock, LogClock) else MAX_AHEAD_MS
    epoch, step_ms = chosen.settings.policy.epoch, chosen.settings.stream.step_ms
    with ExitStack() as stack:
        store = None
        guard = ApplyGuard(chosen.max_replicas, caps=chosen.caps, max_ahead_ms=ahead_ms, epoch=epoch, step_ms=step_ms)
        if not dry_run:
            store = stack.enter_context(Store(chosen.settings.state_dir / "actuate" / chosen.name))
            guard = store.guard(chosen.max_replicas, chosen.caps, ahead_ms, epoch, step_ms)
        controller = CommandController(
            actuator,
            guard,
            clock,
            store=store,
            overrides=OverridesFile(overrides_path(chosen.settings.state_dir, chosen.overrides)),
            declared=chosen.declared,
            dry_run=dry_run,
            report=report,
        )
        yield controller


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
    controller: CommandController,
    *,
    once: bool = False,
    health: Health | None = None,
    gauges: LeaseGauges | None = None,
) -> None:
    """Hand the commands topic to the controller until told to stop."""

    def caught_up() -> None:
        if gauges is not None:
            gauges.caught_up = True

    clock = controller.clock
    with CommandFeed(
        chosen.brokers, chosen.settings.topics.commands, security=chosen.settings.kafka_client_options()
    ) as feed:
        runner = Runner(
            controller,
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


# The lives of the actuators, from the first record read to the last one told.


log = structlog.get_logger()


class Pretend:
    """Changes nothing, and takes the fleet to be as each command says."""

    name = "dry-run"
    done: Literal["applied"] = "applied"

    async def observe(
        self,
        workload: str,  # noqa: ARG002
        target: Target,  # noqa: ARG002
        expected: int | None,
        in_force: int | None,  # noqa: ARG002
    ) -> int | None:
        return expected

    async def apply(self, change: ReplicaChange) -> str:  # noqa: ARG002
        return ""


async def run_dry(chosen: Chosen, *, once: bool, simulated: bool, as_json: bool) -> None:
    """Print what would be done; `once`: as a table, and end.

    Raises:
        HarmonyError: the topic cannot be read.
    """
    events: dict[str, Event] = {}
    table = once and not as_json
    show = (lambda e: events.update({e.workload: e})) if table else line_printer(as_json, dry=True)
    clock = LogClock() if simulated else wall_ms
    with controller_of(chosen, Pretend(), dry_run=True, clock=clock, report=show) as controller:
        await follow(chosen, controller, once=once)
    if table:
        output().print(events_table(events))


def events_table(events: Mapping[str, Event]) -> FittedTable:
    """One row per workload; a narrow terminal shows fewer columns."""
    columns = [
        TableColumn("workload"), TableColumn("now", 1, right=True), TableColumn("wanted", right=True),
        TableColumn("would", wraps=True), TableColumn("why", 2, wraps=True), TableColumn("target", 3),
    ]  # fmt: skip
    table = FittedTable(columns)
    for workload, e in sorted(events.items()):
        t = e.target
        would = f"set {e.after}" if e.after is not None else f"{e.status}: {e.reason}"
        risk = "" if e.p_miss is None else f", P(miss) {e.p_miss:.3g}"
        cells = (workload, _number(e.before), str(e.wanted), would, e.why + risk, f"{t.kind} {t.namespace}/{t.name}")
        table.rows.append([printable(cell, 120) for cell in cells])
    return table


async def act(
    chosen: Chosen,
    actuator: Actuator,
    *,
    as_json: bool,
    serve: Callable[[Lookup], Awaitable[None]] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> None:
    """Act on commands until told to stop.

    Args:
        serve: what else answers for the replicas in force; awaited before the first command is read.
        on_event: told what became of each command.

    Raises:
        HarmonyError: the topic cannot be read, or what must be remembered cannot be written.
    """
    tellers: list[Callable[[Event], None]] = [line_printer(as_json, dry=False)]
    async with AsyncExitStack() as stack:

        def report(event: Event) -> None:
            for tell in tellers:
                tell(event)

        controller = stack.enter_context(controller_of(chosen, actuator, report=report))
        outcomes = await stack.enter_async_context(outcomes_of(chosen, f"actuate/{actuator.name}"))
        gauges, health = LeaseGauges(controller), new_health()
        tellers += [outcomes.event, gauges.count] + ([on_event] if on_event is not None else [])
        lookup = Lookup(controller.answer, lambda: controller.targets)
        await stack.enter_async_context(served(chosen, gauges, health, LeaseRoutes(lookup, token_of(chosen.settings))))
        if serve is not None:
            await serve(lookup)
        await follow(chosen, controller, health=health, gauges=gauges)


def targets_of(settings: Settings) -> dict[str, Target]:
    """The declared targets, by workload."""
    return {
        spec.id: Target(spec.target.api_version, spec.target.kind, spec.target.namespace, spec.target.name)
        for spec in settings.policy.workloads
        if spec.target.name
    }


async def run_kubernetes(
    chosen: Chosen,
    access: Access,
    *,
    acting: bool,
    facts_every_s: float | None,
    loads: PodLoads | None,
    as_json: bool,
    take_over: bool = False,
) -> None:
    """Set replicas on an API server (or have it check that it would), and tell what the targets are.

    Args:
        take_over: also of targets that another HARMONY set last.

    Raises:
        HarmonyError: to act without declared workloads (exit code 2), or as of `act`.
    """
    declared = chosen.declared
    targets = targets_of(chosen.settings)
    if acting and not targets:
        raise HarmonyError(
            "To act, declare what may be scaled: `workloads` with a target in harmony.yaml (--config). A command is "
            "obeyed only for a declared workload, on its declared target, within its bounds.",
            2,
        )
    async with KubernetesApi(access, dry_run=not acting, manager=await asyncio.to_thread(manager_of, chosen)) as api:
        if acting and (hpas := await rivals(api, targets.values())):
            raise HarmonyError(
                f"An HPA scales the same target: {', '.join(hpas)}. Two controllers would undo each other: delete it "
                "(or KEDA's ScaledObject behind it), or let it follow us with `harmony actuate keda`."
            )
        if acting and not take_over and (others := await other_harmonies(api, targets.values())):
            raise HarmonyError(
                f"{'; '.join(others)}. Two would undo each other: stop the other one, then start this one with "
                "--take-over."
            )
        actuator = Kubernetes(api, loads=loads, take_over=take_over)
        async with AsyncExitStack() as stack:
            outcomes = await stack.enter_async_context(outcomes_of(chosen, "actuate/kubernetes"))
            gpus = {w: s.gpus_per_replica for w, s in (declared or {}).items()}
            reader = FactsReader(api, lambda: targets, wall_ms, outcomes.fleet, outcomes.outcome, gpus)
            if facts_every_s is not None and targets:
                task = asyncio.create_task(reader.run(facts_every_s))
                task.add_done_callback(_facts_ended)
                stack.callback(task.cancel)
            if acting:
                await act(chosen, actuator, as_json=as_json, on_event=lambda e: _watch(reader, e))
            else:
                show = line_printer(as_json, dry=True)
                with controller_of(chosen, actuator, dry_run=True, report=show) as controller:
                    await follow(chosen, controller)


def manager_of(chosen: Chosen) -> str:
    """The name under which writes are remembered: one for each commands topic of each Kafka cluster.

    Raises:
        HarmonyError: no broker answers.
    """
    with TopicAdmin(chosen.brokers, chosen.settings.kafka_client_options()) as admin:
        identity = f"{admin.cluster_id()}/{chosen.settings.topics.commands}"
    return f"{FIELD_MANAGER}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _facts_ended(task: asyncio.Task[None]) -> None:
    # Telling must never harm acting: that goes on, and the log says that facts do not.
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("facts_ended", reason=f"{type(error).__name__}: {error}")


def _watch(reader: FactsReader, event: Event) -> None:
    if event.after is None or event.before is None:
        return
    if event.after > event.before and event.command_id is not None:
        reader.launched(event.workload, event.command_id, event.after, event.ts_ms)
    else:
        reader.lowered(event.workload)


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)
