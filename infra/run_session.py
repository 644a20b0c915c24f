"""What every kind of `harmony run` needs under it: a broker, topics, worker processes, and a way to find them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any

from rich.console import Console

from agents.policy import Policy
from infra.demo_settings import write_settings
from infra.errors import HarmonyError
from infra.kafka_embedded import EmbeddedKafka
from infra.loopback_port import free_port
from infra.run_options import RunOptions
from infra.runstate import RunState, read_run_state
from infra.supervisor import Supervisor, worker_command
from infra.topic_admin import TopicAdmin
from streams.config import StreamConfig
from streams.topics import Topics

_PARTITIONS = 4
_PAGES_RETENTION_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Session:
    """A run in progress.

    Attributes:
        urls: root address of each worker's metrics and probes.
        security: keyword arguments of kafka-python's clients.
    """

    brokers: str
    topics: Topics
    supervisor: Supervisor
    urls: tuple[str, ...]
    security: dict[str, Any]


@contextmanager
def accelerated_session(
    options: RunOptions, policy: Policy, stream: StreamConfig, console: Console
) -> Iterator[Session]:
    """Broker and workers for a publisher that keeps its own time: it ticks, and the workers do not.

    Its time begins anew at every run, so the run has topics that no earlier run has written to.

    Raises:
        HarmonyError: another run is in progress, or broker, topics or port cannot be had.
    """
    state_dir = options.settings.state_dir
    _refuse_second_run(state_dir)
    home = state_dir / "run"
    with ExitStack() as stack:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        fresh = options.brokers is None and options.data_dir is None
        prefix = "harmony." if fresh else f"harmony-run-{int(time())}."
        topics = Topics(prefix, _PARTITIONS, _PAGES_RETENTION_BYTES)
        brokers = _broker(options, options.data_dir or home / "kafka", stack, console)
        config = home / "harmony.yaml"
        write_settings(config, policy, stream, topics)
        yield _start(options, brokers, topics, config, ("--no-ticks", "--accelerated"), stack, console)


@contextmanager
def live_session(options: RunOptions, console: Console) -> Iterator[Session]:
    """Broker and workers for telemetry that others publish, in real time, under the user's own settings.

    Raises:
        HarmonyError: as `accelerated_session`.
    """
    state_dir = options.settings.state_dir
    _refuse_second_run(state_dir)
    with ExitStack() as stack:
        brokers = _broker(options, options.data_dir or options.settings.data_dir, stack, console)
        config = options.config
        if config is None:
            config = state_dir / "run" / "harmony.yaml"
            write_settings(config, options.settings.policy, options.settings.stream, options.settings.topics)
        yield _start(options, brokers, options.settings.topics, config, (), stack, console)


def _refuse_second_run(state_dir: Path) -> None:
    running = read_run_state(state_dir)
    if running is not None:
        raise HarmonyError(
            f"Another `harmony run` is in progress (process {running.pid}, Kafka at {running.brokers}): end it first, "
            "or give this one a state directory of its own with HARMONY_STATE_DIR."
        )


def _broker(options: RunOptions, data_dir: Path, stack: ExitStack, console: Console) -> str:
    if options.brokers is not None:
        return options.brokers
    kafka = EmbeddedKafka(data_dir, port=options.kafka_port, offline=options.offline, quiet=options.quiet)
    with console.status("starting Kafka"):
        kafka.start()
    stack.callback(kafka.stop)
    return kafka.bootstrap


def _start(
    options: RunOptions,
    brokers: str,
    topics: Topics,
    config: Path,
    flags: tuple[str, ...],
    stack: ExitStack,
    console: Console,
) -> Session:
    started_s = monotonic()
    security = options.settings.kafka_client_options()
    with TopicAdmin(brokers, security) as admin:
        admin.create_missing(topics.specs())
    commands, urls = {}, []
    for n in range(options.workers):
        port = options.settings.web_port if n == 0 and options.web_port_given else free_port()
        urls.append(f"http://127.0.0.1:{port}")
        commands[f"worker-{n}"] = worker_command(
            config,
            "--brokers",
            brokers,
            "--instance-id",
            f"run-{n}",
            "--web-port",
            str(port),
            "--end-with-parent",
            *flags,
        )
    supervisor = Supervisor(
        commands,
        options.settings.state_dir / "run" / "logs",
        on_restart=lambda name, code: console.print(f"{name} ended with exit code {code}; it is started again"),
    )
    supervisor.start()
    stack.callback(supervisor.stop)
    state_dir = options.settings.state_dir
    stack.enter_context(RunState.written(brokers=brokers, config=str(config), web=urls[0], state_dir=state_dir))
    console.print(f"Kafka     {brokers}   topics {topics.prefix}*   ready after {monotonic() - started_s:.1f} s")
    console.print(f"page      {urls[0]}/")
    console.print(f"metrics   {urls[0]}/metrics   probes {urls[0]}/readyz")
    return Session(brokers, topics, supervisor, tuple(urls), security)
