"""Base of every `harmony run`: broker, topics, worker processes and their addresses."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from types import FrameType
from typing import Any

import orjson
from pydantic import SecretStr
from pydantic_core import to_jsonable_python
from rich.console import Console

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.console.host import LOOPBACK, free_port
from infra.demo.options import RunOptions
from infra.demo.supervisor import Supervisor, worker_command
from infra.demo.workloads import write_settings
from infra.explain.dead_letters import UNUSED, read_letter
from infra.kafka.admin import TopicAdmin
from infra.kafka.discovery import RunState, read_run_state
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.tail import TopicTail
from infra.settings.errors import CONFIG_VARIABLE, ENV_PREFIX, variables
from infra.settings.load import Settings, settings_path
from infra.settings.schema import Section
from streams.config import StreamConfig
from streams.topics import Topics

# Which of the user's settings reach a `harmony run` and its workers.
#
# Workers for telemetry of the user's own read the user's file and environment themselves. A fleet that is simulated
# here, or a recording, brings workloads, policy, steps, topics and a page on this machine; of the user's settings its
# workers take what is said of the process, and nothing from the environment could contradict the fleet.


_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
_OF_THE_PAGE = {"metrics_token", "web_certfile", "web_keyfile", "web_client_cafile", "instance_id"}


def first_port(settings: Settings) -> int:
    """Of the first worker's page: the one that flag, environment or file names, else any free one."""
    named = settings.web_port if "web_port" in settings.model_fields_set else 0
    return named or free_port()


def page_url(settings: Settings, port: int) -> str:
    """Where a worker under these settings can be reached from this machine; no slash at the end."""
    host = _WILDCARDS.get(settings.web_host, settings.web_host)
    return f"{'https' if settings.worker.web_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def own_brokers(settings: Settings) -> str | None:
    """The Kafka that the settings name; None = start one here.

    Raises:
        HarmonyError: they say how to log in, but not where (exit code 2).
    """
    protocol = settings.advanced.kafka.security_protocol
    if not settings.brokers and protocol != "PLAINTEXT":
        raise HarmonyError(
            f"advanced.kafka says {protocol}, but no brokers are named, and a Kafka started here speaks plain text: "
            "set `brokers`, or take advanced.kafka out.",
            2,
        )
    return settings.brokers or None


def process_sections(settings: Settings, *, kafka: bool) -> dict[str, dict[str, Any]]:
    """What was set of `advanced` that is about a worker process and not about the fleet; secrets in clear.

    Args:
        kafka: with the login, for a broker that was named.
    """
    advanced = settings.advanced
    sections = {name: _set_keys(getattr(advanced, name)) for name in ("model", "plugins", "watchdogs")}
    sections["worker"] = {key: value for key, value in _set_keys(advanced.worker).items() if key not in _OF_THE_PAGE}
    if kafka:
        sections["kafka"] = {k: v for k, v in _set_keys(advanced.kafka).items() if k != "pages_retention_bytes"}
    return {name: keys for name, keys in sections.items() if keys}


def environment_without_settings(settings: Settings, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for workers whose file says everything already."""
    environ = os.environ if environ is None else environ
    ours = {*variables(Settings), CONFIG_VARIABLE}
    others = {name: value for name, value in environ.items() if name.upper() not in ours}
    return others | {f"{ENV_PREFIX}STATE_DIR": str(settings.state_dir)}


def _set_keys(section: Section) -> dict[str, Any]:
    values = {name: getattr(section, name) for name in section.model_fields_set}
    clear = {name: v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in values.items()}
    return dict(to_jsonable_python(clear))


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
        fresh = options.brokers is None and options.data_dir is None
        prefix = "harmony." if fresh else f"harmony-run-{int(time())}."
        topics = Topics(prefix, _PARTITIONS, _PAGES_RETENTION_BYTES)
        named = options.brokers is not None
        if options.settings.brokers and not named:
            console.print(
                "note      `brokers` of the settings is for telemetry of your own; --brokers sends a fleet there"
            )
        brokers = options.brokers or _embedded(options, options.data_dir or home / "kafka", stack, console)
        config = home / "harmony.yaml"
        write_settings(config, policy, stream, topics, process_sections(options.settings, kafka=named))
        workers = _Workers(
            config,
            ("--no-ticks", "--accelerated"),
            tuple((p, f"http://{LOOPBACK}:{p}") for p in _ports(first_port(options.settings), options.workers)),
            options.settings.kafka_client_options() if named else {},
            environment_without_settings(options.settings),
        )
        yield _start(options, brokers, topics, workers, stack, console)


@contextmanager
def live_session(options: RunOptions, console: Console) -> Iterator[Session]:
    """Broker and workers for telemetry that others publish, in real time, under the user's own settings.

    Raises:
        HarmonyError: as `accelerated_session`.
    """
    settings = options.settings
    _refuse_second_run(settings.state_dir)
    named = own_brokers(settings)
    with ExitStack() as stack:
        brokers = named or _embedded(options, options.data_dir or settings.data_dir, stack, console)
        config = settings_path(options.config)
        if config is None:
            config = settings.state_dir / "run" / "harmony.yaml"
            write_settings(config, settings.policy, settings.stream, settings.topics)
        pages = tuple((p, page_url(settings, p)) for p in _ports(first_port(settings), options.workers))
        workers = _Workers(config.absolute(), (), pages, settings.kafka_client_options() if named else {})
        yield _start(options, brokers, settings.topics, workers, stack, console)


def _refuse_second_run(state_dir: Path) -> None:
    running = read_run_state(state_dir)
    if running is not None:
        raise HarmonyError(
            f"Another `harmony run` is in progress (process {running.pid}, Kafka at {running.brokers}): end it first, "
            "or give this one a state directory of its own with HARMONY_STATE_DIR."
        )


@dataclass(frozen=True, slots=True)
class _Workers:
    """What every worker of a run is started with.

    Attributes:
        pages: port and root address of each worker's page.
        security: as in `Session`.
        environment: None = ours.
    """

    config: Path
    flags: tuple[str, ...]
    pages: tuple[tuple[int, str], ...]
    security: dict[str, Any]
    environment: dict[str, str] | None = None


def _ports(first: int, number: int) -> list[int]:
    ports = [first]
    while len(ports) < number:
        ports.append(free_port(ports))
    return ports


def _embedded(options: RunOptions, data_dir: Path, stack: ExitStack, console: Console) -> str:
    kafka = EmbeddedKafka(data_dir, port=options.kafka_port, offline=options.offline, quiet=options.quiet)
    with console.status("starting Kafka"):
        kafka.start()
    stack.callback(kafka.stop)
    return kafka.bootstrap


def _start(
    options: RunOptions, brokers: str, topics: Topics, workers: _Workers, stack: ExitStack, console: Console
) -> Session:
    started_s = monotonic()
    with TopicAdmin(brokers, workers.security) as admin:
        admin.create_missing(topics.specs())
    commands = {
        f"worker-{n}": worker_command(
            workers.config,
            "--brokers",
            brokers,
            "--instance-id",
            f"run-{n}",
            "--web-port",
            str(port),
            "--end-with-parent",
            *workers.flags,
        )
        for n, (port, _) in enumerate(workers.pages)
    }
    supervisor = Supervisor(
        commands,
        options.settings.state_dir / "run" / "logs",
        on_restart=lambda name, code: console.print(f"{name} ended with exit code {code}; it is started again"),
        environment=workers.environment,
    )
    supervisor.start()
    stack.callback(supervisor.stop)
    urls = tuple(url for _, url in workers.pages)
    state_dir = options.settings.state_dir
    stack.enter_context(RunState.written(brokers=brokers, config=str(workers.config), web=urls[0], state_dir=state_dir))
    console.print(f"Kafka     {brokers}   topics {topics.prefix}*   ready after {monotonic() - started_s:.1f} s")
    console.print(f"page      {urls[0]}/")
    console.print(f"metrics   {urls[0]}/metrics   probes {urls[0]}/readyz")
    return Session(brokers, topics, supervisor, urls, workers.security)


def on_stop(stop: Callable[[], None]) -> None:
    """Call this on SIGINT and SIGTERM."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def count_records(session: Session, topic: str) -> int:
    """Records that a topic of this run holds."""
    with TopicTail(session.brokers, topic, security=session.security) as tail:
        return sum(end - begin for begin, end in tail.bounds().values())


def count_refused(session: Session) -> int:
    """Dead letters of this run; notices refuse nothing."""
    with TopicTail(session.brokers, session.topics.dead_letters, security=session.security) as tail:
        return sum(read_letter(record).reason != UNUSED for record in tail.read(tail.bounds()))


def print_as_json(summary: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.buffer.write(orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.flush()
