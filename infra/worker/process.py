"""One worker process: the stages of its roles on one Faust app, with probes, metrics and watch tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Final

import faust
import structlog
import uvloop

from agents.decide.agent import DecideStage, register_decide_agent
from agents.decide.controls import ControlStage, register_control_agent
from agents.decide.kernel import DecideKernel
from agents.priority import PriorityGate
from infra.console.errors import HarmonyError
from infra.kafka.rights import rights_of, rights_text, workers_group
from infra.observability.health import Health
from infra.observability.logs import KafkaComplaints, configure_logging
from infra.observability.metrics import PrometheusMeter
from infra.observability.probes import ProbeServer, web_tls
from infra.observability.stage_metrics import DecideMetrics
from infra.page.server import Page
from infra.settings.load import Settings, require_chosen
from infra.worker.fail_points import fail_points
from infra.worker.options import WorkerOptions
from infra.worker.watch import WorkerWatch
from infra.worker.watchdog import Watchdog
from streams.log import OutRecord
from streams.runtime.app import ConnectionConfig, Stage, StageHost, crash, tune_garbage_collector
from streams.runtime.commits import Commit
from streams.runtime.restore import LogReader
from streams.runtime.ticker import PastFilter, Progress, Ticker, TimedKernel

# Faust's worker with tasks that must not wait for the state to be restored.


# An orderly end takes less than five seconds in all.
_PATIENCE_S: Final = 3.0
_TASKS_END_S: Final = 2.0
_GOODBYE_S: Final = 0.05

early_worker_log = structlog.get_logger(__name__)


class EarlyWorker(faust.Worker):
    """Faust's worker with tasks that run from the first moment on; those of the app wait until state is restored.

    Asked to end while it joins its group, Faust may wait for ever for what was never begun. A worker without partitions
    has nothing in hand: it is given some seconds to take its leave, then the process ends, with success.

    Args:
        early: run from the first moment on.
        begun: whether it has partitions, with their state.
    """

    def __init__(
        self, app: faust.App, early: Sequence[Callable[[], Awaitable[None]]], begun: Callable[[], bool]
    ) -> None:
        # Its own logging would take the place of ours: no structure, no escapes, no limit.
        super().__init__(app, loglevel="warning", redirect_stdouts=False, quiet=True, override_logging=False)
        self.spinner = None  # it writes to logs as well
        self._early = early
        self._begun = begun
        self._running: list[asyncio.Task[None]] = []

    async def on_first_start(self) -> None:
        await super().on_first_start()
        self._running = [asyncio.create_task(self._guarded(task)) for task in self._early]

    async def _stop_on_signal(self, signal: signal.Signals) -> None:
        if not self._begun():
            # Of a thread, not of the loop, which may be closed by then and the process still not at its end.
            timer = Timer(_PATIENCE_S, _leave)
            timer.daemon = True
            timer.start()
        await super()._stop_on_signal(signal)

    def _gather_all(self) -> None:
        # Page and watchdog run until they are cancelled. The library would wait a second for them to end first.
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_TASKS_END_S))

    async def _sentinel_task(self) -> None:
        # Connections that were closed a moment ago say goodbye; the library gives them a second.
        await asyncio.sleep(_GOODBYE_S)

    @staticmethod
    async def _guarded(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:  # noqa: BLE001 - without its probes and watchdog a worker must not go on
            crash("worker", error)


def _leave() -> None:
    early_worker_log.info("worker_left", note="asked to end before it had partitions")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if TYPE_CHECKING:
    from infra.worker.forecast_role import ForecastRole
    from infra.worker.ingest_role import IngestRole

log = structlog.get_logger()


class WorkerProcess:
    """Builds the stages of the chosen roles and runs them until told to stop."""

    def __init__(self, settings: Settings, options: WorkerOptions) -> None:
        self._settings = settings
        self._options = options
        self._roles = options.roles()
        self.meter = PrometheusMeter(max_workload_series=settings.worker.metrics_max_workloads)
        KafkaComplaints(self.meter).listen()
        if set(self._roles) & {"forecast", "decide"}:
            self.meter.gauge("policy_info", 1, fingerprint=settings.policy.fingerprint())
        self.health = Health(monotonic(), expected=("assigned", "restored"))
        self._ingest: IngestRole | None = None
        self._forecast: ForecastRole | None = None
        self._fresh = False  # whether the fleet has had no telemetry yet
        self._decide_metrics: DecideMetrics | None = None
        # From a page to the decision nothing that can wait stands in the way, as far as this worker makes both.
        self._precedence = PriorityGate(lambda: (settings.topics.plans, 0) in self.host.status.lanes)
        stages = [self._new_stage(role) for role in self._roles]
        if "decide" in self._roles:
            stages.append(ControlStage(settings.topics, settings.stream.step_ms, self.meter))
        self.host = StageHost(
            ConnectionConfig(
                brokers=options.brokers,
                group=workers_group(settings.topics),
                instance_id=options.member_name(),
                security=settings.kafka_client_options(),
                session_timeout_s=settings.worker.session_timeout_s,
                heartbeat_s=min(3.0, settings.worker.session_timeout_s / 4),
            ),
            stages,
            self.meter,
            fail_point=fail_points(os.environ),
            withhold=self._withheld,
        )
        self.health.look = self._look
        self._watchdog = Watchdog(self.host, self.health, self._roles, settings.watchdog_limits)
        self._watch = WorkerWatch(
            settings,
            self.host,
            [stage.name for stage in stages],
            self.health,
            self.meter,
            self._decide_metrics,
            ends=lambda: self._watchdog.ends,
            brokers=options.brokers,
        )
        self._register(stages)

    def _new_stage(self, role: str) -> Stage:
        settings = self._settings
        if role == "ingest":
            from infra.worker.ingest_role import IngestRole  # compiled loops, which the decide role does without

            self._ingest = IngestRole(settings, self.meter)
            return self._ingest.stage
        if role == "forecast":
            # Workers of the other roles do not load torch: most of a start, and some 700 MiB.
            from infra.worker.forecast_role import ForecastRole

            self._forecast = ForecastRole(settings, self.meter, self._precedence)
            return self._forecast.stage
        self._decide_metrics = DecideMetrics(
            self.meter,
            settings.topics,
            fleet=settings.policy.fleet,
            epoch=settings.policy.epoch,
            step_s=settings.step_s,
            hold_s=settings.policy.guards.stabilization_down_s,
        )

        def restore(commit: Commit | None, published: Sequence[bytes]) -> DecideKernel:
            return DecideKernel.restore(
                settings.policy,
                settings.stream,
                settings.topics,
                commit=commit,
                published=published,
                expire_by_stamp=not self._options.accelerated,
            )

        return DecideStage(settings.topics, restore, self._decide_metrics, self._precedence)

    def _register(self, stages: list[Stage]) -> None:
        for stage in stages:
            if isinstance(stage, DecideStage):
                register_decide_agent(self.host, stage)
            elif isinstance(stage, ControlStage):
                register_control_agent(self.host, stage)
        for role in (self._ingest, self._forecast):
            if role is not None:
                role.register(self.host)
        tasks: list[Callable[[], Awaitable[None]]] = [self._watch.run]
        if self._options.ticks and "ingest" in self._roles:
            tasks.append(self._tick)
        for task in tasks:
            self.host.app.task(task)

    def _withheld(self, record: OutRecord) -> bool:
        """While the kill file exists, commands are decided and recorded, but none leaves this worker."""
        kill_file = self._settings.worker.kill_file
        if kill_file is None or record.topic != self._settings.topics.commands:
            return False
        withheld = Path(kill_file).exists()
        self.health.set_check("kill_file", not withheld, f"{kill_file} exists" if withheld else "", required=False)
        if withheld:
            log.warning("command_withheld", kill_file=kill_file)
        return withheld

    async def _serve_probes(self) -> None:
        options, settings = self._options, self._settings
        page = Page(
            settings,
            self.health,
            role=options.role,
            instance=options.instance_id or "worker",
            client_options={"bootstrap_servers": options.brokers, **settings.kafka_client_options()},
            token=options.metrics_token,
            registry=self.meter.registry,
            busy=self._deciding,
        )
        if self._decide_metrics is not None:
            self._decide_metrics.attainment = page.attainment
        try:
            server = ProbeServer(
                self.health,
                self.meter,
                host=options.metrics_host,
                port=options.metrics_port,
                token=options.metrics_token,
                tls=web_tls(settings.worker),
                parts=(page.add_to,),
                on_drop=lambda reason: self.meter.count("web_connections_dropped_total", reason=reason),
            )
            await server.start()
        except HarmonyError as error:
            sys.stderr.write(f"harmony worker: {error.message}\n")
            self._stop_now(error.exit_code)
        log.info("worker_started", role=self._options.role, page=f"{server.url}/", metrics=f"{server.url}/metrics")
        try:
            async with page.reading(server.url):
                await asyncio.Event().wait()
        finally:
            await server.stop()

    def _deciding(self) -> bool:
        """Whether a plan or a decision is being made, or state read back for it."""
        status = self.host.status
        return not status.restored or any(lane.waits_for and lane.stage != "ingest" for lane in status.lanes.values())

    @staticmethod
    def _stop_now(exit_code: int) -> None:
        sys.stderr.flush()
        os._exit(exit_code)

    def _look(self) -> None:
        """Readiness, as it is when somebody asks."""
        status = self.host.status
        self.health.set_check(
            "assigned",
            status.restored,
            f"{len(status.assigned)} partitions" if status.restored else "no assignment yet",
        )
        self.health.set_check("restored", status.restored, f"in {status.restore_s:.2f} s")
        has_records = status.last_record_s is not None
        # A fleet without any telemetry so far lacks nothing: its workers are ready for the first.
        self.health.set_check("telemetry", has_records or self._fresh, "" if has_records else "waiting for telemetry")

    async def _tick(self) -> None:
        topics = self._settings.topics
        telemetry = {topics.telemetry_gpu, topics.telemetry_requests}

        stream = self._settings.stream
        past = PastFilter(stream)

        def assigned() -> list[tuple[str, int]]:
            status = self.host.status
            if not status.restored:
                return []
            return past.ticked(
                {
                    key: Progress(lane.next_offset, lane.kernel.behind_ms)
                    for key, lane in status.lanes.items()
                    if key[0] in telemetry and isinstance(lane.kernel, TimedKernel)
                }
            )

        # Nothing is ticked before the first telemetry of the fleet, which may be its past.
        async with self.host.reader() as reader:
            while not await self._any_telemetry(reader):
                self._fresh = True
                await asyncio.sleep(stream.step_ms / 2000)
        await Ticker(self.host.send, assigned, stream).run()

    async def _any_telemetry(self, reader: LogReader) -> bool:
        """Whether there is telemetry, or was as far as the partitions of this worker tell."""
        topics = self._settings.topics
        kernels = [lane.kernel for lane in self.host.status.lanes.values()]
        if any(isinstance(kernel, TimedKernel) and kernel.closed_slot()[1] is not None for kernel in kernels):
            return True
        for topic in (topics.telemetry_requests, topics.telemetry_gpu):
            for partition in range(topics.partitions):
                begin, end = await reader.bounds(topic, partition)
                if end > begin:
                    return True
        return False

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then drain and leave; a crash ends the process with exit code 1."""
        app = self.host.app
        # What was imported lives as long as the process does: no collection need look at it, not even one of now, a
        # third of a second for a megabyte of garbage.
        tune_garbage_collector()
        worker = EarlyWorker(app, [self._watchdog.show, self._serve_probes], lambda: self.host.status.restored)
        self._watchdog.start()
        code: int | str | None = 0
        try:
            worker.execute_from_commandline()
        except SystemExit as end:
            code = end.code
        self._watchdog.stop()
        reason = app.crash_reason or worker.crash_reason
        if code or reason is not None:
            crash("crash", reason or RuntimeError(f"Faust ended with code {code}"))
        if self._forecast is not None:
            self._forecast.close()


def run_worker(settings: Settings, options: WorkerOptions) -> None:
    """Entry of `harmony worker`.

    Raises:
        HarmonyError: brokers that do not answer, missing topics, or an unknown role.
    """
    from infra.kafka.admin import TopicAdmin, compare
    from infra.settings.brokers import bootstrap_servers

    require_chosen(settings)
    rights = rights_of(settings.topics, options.roles())
    security = settings.kafka_client_options()
    # Of the others its clients hear from those that answer.
    options = replace(options, brokers=",".join(bootstrap_servers(options.brokers, security)))
    with TopicAdmin(options.brokers, security) as admin:
        missing_rights = admin.missing_rights(rights)
        if missing_rights:
            raise HarmonyError(
                f"the Kafka user of this worker lacks {rights_text(missing_rights)}. Grant it, then start again: "
                f"`harmony topics rights --for {options.role}` prints the commands"
            )
        used = {right.name for right in rights}
        specs = [spec for spec in settings.topics.specs() if spec.name in used]
        actual = admin.describe([spec.name for spec in specs], configs=False)
        differences = [d for d in compare(specs, actual) if d.kind != "config"]
    missing = [d for d in differences if d.kind == "missing"]
    if missing:
        listed = "; ".join(map(str, missing))
        raise HarmonyError(f"topics are not as they must be: {listed}. `harmony topics create` makes what is missing")
    resized = [d for d in differences if d.kind == "partitions"]
    if resized:
        listed = "; ".join(map(str, resized))
        raise HarmonyError(
            f"topics are not as they must be: {listed}. Set `partitions` back; or give the public topics the new count "
            "and run `harmony state reset`, which makes the internal ones anew",
            exit_code=2,
        )
    configure_logging(settings.worker.log_level, output=settings.worker.log_format)
    uvloop.install()
    WorkerProcess(settings, options).run()
