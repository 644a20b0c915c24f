"""`harmony run`: a broker, workers and a fleet that closes the loop, watched live and summed up at the end."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from types import FrameType
from typing import Any

import orjson
from rich.console import Console

from agents.policy import Policy
from infra.demo import DEMO_STREAM, FleetSpec, demo_fleet, demo_policy
from infra.demo_settings import write_settings
from infra.errors import HarmonyError
from infra.fleet import FleetRunner, Snapshot
from infra.kafka_embedded import EmbeddedKafka
from infra.kafka_tail import TopicTail
from infra.live import LiveView
from infra.loopback_port import free_port
from infra.paths import state_home
from infra.run_options import RunOptions
from infra.runstate import RunState
from infra.simulator.arrivals import TraceError
from infra.summary import PolicyResult, RunSummary, render_summary
from infra.supervisor import Supervisor, worker_command
from infra.topic_admin import TopicAdmin
from streams.config import StreamConfig
from streams.topics import Topics

_PARTITIONS = 4
_METRIC = re.compile(r'^harmony_samples_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)


def run_demo(options: RunOptions) -> None:
    """Run the demo to its end and print its summary: JSON on stdout with `--json`, else a table.

    Raises:
        HarmonyError: a trace, broker, port or worker that cannot be used; one sentence with the remedy.
    """
    started_s = monotonic()
    console = Console(stderr=True, quiet=options.quiet)
    stream = replace(DEMO_STREAM, step_ms=round(options.step_s * 1000)) if options.step_s is not None else DEMO_STREAM
    try:
        fleet = demo_fleet(options.trace, with_generated=options.trace is None, seed=options.seed, step_ms=stream.step_ms)
    except TraceError as error:
        raise HarmonyError(str(error), exit_code=2) from error
    policy = demo_policy(fleet, stream)
    with ExitStack() as stack:
        home = stack.enter_context(_run_home())
        brokers, topics = _broker(options, home, stack, console)
        _create_topics(brokers, topics)
        config = home / "harmony.yaml"
        write_settings(config, policy, stream, topics)
        supervisor, metrics_urls = _start_workers(options, brokers, config, home, console)
        stack.callback(supervisor.stop)
        stack.enter_context(RunState.written(brokers=brokers, config=str(config), web=metrics_urls[0]))
        _say(console, options, brokers, topics, metrics_urls, started_s)
        summary = _run_fleet(options, brokers, topics, stream, policy, fleet, supervisor, metrics_urls, stack)
    _print_summary(summary, policy, options)


@contextmanager
def _run_home() -> Iterator[Path]:
    """A directory of this run: simulated time begins anew, so what an earlier run left would only confuse it."""
    home = state_home() / "run"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    yield home


def _broker(options: RunOptions, home: Path, stack: ExitStack, console: Console) -> tuple[str, Topics]:
    if options.brokers is not None:
        # On a cluster that is not ours every run has topics of its own; an old run's log is an old fleet's past.
        return options.brokers, Topics(f"harmony-run-{int(time())}.", _PARTITIONS)
    with console.status("starting Kafka"):
        kafka = EmbeddedKafka(home / "kafka", offline=options.offline, quiet=options.quiet)
        kafka.start()
    stack.callback(kafka.stop)
    return kafka.bootstrap, Topics(partitions=_PARTITIONS, pages_retention_bytes=64 << 20)


def _create_topics(brokers: str, topics: Topics) -> None:
    with TopicAdmin(brokers) as admin:
        admin.create_missing(topics.specs())


def _start_workers(
    options: RunOptions, brokers: str, config: Path, home: Path, console: Console
) -> tuple[Supervisor, list[str]]:
    commands, urls = {}, []
    for n in range(options.workers):
        port = free_port()
        urls.append(f"http://127.0.0.1:{port}")
        arguments = ("--brokers", brokers, "--instance-id", f"run-{n}", "--web-port", str(port))
        commands[f"worker-{n}"] = worker_command(config, *arguments, "--no-ticks", "--accelerated", "--end-with-parent")
    supervisor = Supervisor(
        commands,
        home / "logs",
        on_restart=lambda name, code: console.print(f"{name} ended with exit code {code}; it is started again"),
    )
    supervisor.start()
    return supervisor, urls


def _say(
    console: Console, options: RunOptions, brokers: str, topics: Topics, urls: list[str], started_s: float
) -> None:
    console.print(f"Kafka      {brokers}   topics {topics.prefix}*   (ready after {monotonic() - started_s:.1f} s)")
    console.print(f"metrics    {urls[0]}/metrics   probes {urls[0]}/readyz")
    console.print("look in    harmony status · harmony explain WORKLOAD · harmony decisions --follow")
    pace = f"{options.speed:g} x real time" if options.speed else "as fast as possible"
    console.print(f"running    at {pace} after the context has filled; Ctrl-C ends the run with its summary")


def _run_fleet(
    options: RunOptions,
    brokers: str,
    topics: Topics,
    stream: StreamConfig,
    policy: Policy,
    fleet: FleetSpec,
    supervisor: Supervisor,
    urls: list[str],
    stack: ExitStack,
) -> RunSummary:
    view = stack.enter_context(LiveView(Console(stderr=True, quiet=options.quiet)))
    forecasts = 0
    began_s = monotonic()

    def show(snapshot: Snapshot) -> None:
        nonlocal forecasts
        forecasts += sum(1 for d in snapshot.decisions.values() if d.forecast.source is not None)
        rate = forecasts / max(1e-9, monotonic() - began_s)
        view.update(replace(snapshot.live, forecasts=forecasts, forecasts_per_s=rate))

    runner = FleetRunner(
        brokers,
        topics,
        stream,
        policy,
        fleet,
        speed=options.speed,
        now_ms=int(time() * 1000),
        duration_s=options.duration_s,
        on_update=show,
        check_alive=supervisor.check,
    )

    def stop(_signal: int, _frame: FrameType | None) -> None:
        runner.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    results = runner.run()
    return _summary(results, brokers, topics, urls)


def _summary(results: dict[str, Any], brokers: str, topics: Topics, urls: list[str]) -> RunSummary:
    counts = {name: _count(brokers, name) for name in (topics.pages, topics.forecasts, topics.dead_letters)}
    return RunSummary(
        trace=results["trace"] or "generated",
        speed=results["speed"],
        samples=results["samples"],
        slots=results["slots"],
        pages=counts[topics.pages],
        forecasts=counts[topics.forecasts],
        decisions=results["decisions"],
        commands=results["commands"],
        dead_letters=counts[topics.dead_letters],
        late=sum(_outcome(url, "late") for url in urls),
        forecasts_by_source=results["forecasts_by_source"],
        decisions_by_action=results["decisions_by_action"],
        hold_reasons=results["hold_reasons"],
        attainment=results["attainment"],
        gpu_hours=results["gpu_hours"],
        shadows={p: PolicyResult(r["attainment"], r["gpu_hours"]) for p, r in results["shadows"].items()},
    )


def _count(brokers: str, topic: str) -> int:
    with TopicTail(brokers, topic) as tail:
        return sum(end - begin for begin, end in tail.bounds().values())


def _outcome(url: str, outcome: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:  # noqa: S310 - our own loopback page
            text = response.read().decode()
    except (urllib.error.URLError, OSError):
        return 0
    return sum(int(float(value)) for name, value in _METRIC.findall(text) if name == outcome)


def _print_summary(summary: RunSummary, policy: Policy, options: RunOptions) -> None:
    if options.as_json:
        sys.stdout.buffer.write(orjson.dumps(summary.to_dict(), option=orjson.OPT_INDENT_2) + b"\n")
        sys.stdout.flush()
        return
    objective = min(spec.slo.objective for spec in policy.workloads)
    Console().print(render_summary(summary, objective=objective))
