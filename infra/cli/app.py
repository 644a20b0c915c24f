"""The command line. Heavy packages are imported by the commands that need them, so that `--help` answers at once."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from infra.actuate import cli as actuate_cli
from infra.collect import cli as collect_cli
from infra.console.errors import HarmonyError
from infra.console.options import BrokersOption, ConfigOption, JsonOption, finite, print_json, say, writable
from infra.console.text import parse_duration_s
from infra.lab.backtest.command import backtest
from infra.lab.bench import cli as bench_cli
from infra.lab.capacity.command import capacity
from infra.lab.defaults import DEFAULT_LEVELS, MAX_FORECAST_STEPS, MODELS
from infra.lab.evaluate.ablations import ablate
from infra.lab.evaluate.command import evaluate
from infra.lab.replay.command import replay
from infra.lab.train import train
from infra.operate import cli as cli_operate
from infra.operate import state as cli_state
from infra.operate import topics as cli_topics
from infra.operate.cli import export, plugins
from infra.operate.init import init

# How a command ends that cannot go on: one sentence on stderr and an exit code, also when its output is lost.


# A full disk or quota, a file as large as may be, a device that fails.
_OUTPUT_LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def end_on_sigterm() -> None:
    """Let SIGTERM end a command that is the first process of a container, until the command has a handler of its own.

    Linux drops signals that such a process has no handler for: a worker told to end while it loads and compiles, for
    seconds to minutes, would go on until it is killed at the end of its grace period.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end_at_once)


def _end_at_once(number: int, _frame: object) -> None:
    # As the default would: nothing has been begun that must be brought to an end.
    os._exit(128 + number)


@contextmanager
def ended_plainly() -> Iterator[None]:
    """Around a whole command.

    Raises:
        SystemExit: in place of a `HarmonyError`, and of an output that nobody takes.
    """
    try:
        try:
            yield
        finally:
            # What is still held would otherwise fail when nobody can say so any more.
            sys.stdout.flush()
    except HarmonyError as error:
        say(f"harmony: {error.message}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has seen enough (`| head`).
        _drop_output()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _OUTPUT_LOST:
            raise
        _drop_output()
        say(f"harmony: Cannot write the output: {error.strerror}. Make room, or send it elsewhere.")
        sys.exit(1)


def _drop_output() -> None:
    """Python must not complain again while it shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# `harmony forecast` as a person types it.


def forecast(
    file: Annotated[Path, typer.Argument(help="Telemetry: CSV (plain or gzip) or Parquet, wide or long.")],
    prediction_length: Annotated[int, typer.Option(min=1, max=MAX_FORECAST_STEPS, help="Steps ahead.")] = 24,
    quantile_levels: Annotated[str, typer.Option(help="With commas, each within 0..1.")] = DEFAULT_LEVELS,
    step: Annotated[
        str | None, typer.Option(help="Sampling step such as 15s or 5m; default: inferred. Coarser averages rows.")
    ] = None,
    items: Annotated[str | None, typer.Option(help="Only these items, with commas.")] = None,
    indicators: Annotated[str | None, typer.Option(help="Only these columns, with commas.")] = None,
    holdout: Annotated[
        bool, typer.Option("--holdout", help="Forecast the last rows of the file, and compare with them.")
    ] = False,
    windows: Annotated[
        int, typer.Option(min=1, max=1000, help="Stretches to hold out with --holdout, one before the other.")
    ] = 1,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "served",
    lower: Annotated[
        float | None, typer.Option(help="No value is below; default: 0 where the file has none below.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV, or JSON by its ending; default: CSV on stdout.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF (extra `plots`).")] = None,
) -> None:
    """Forecast the quantiles of every indicator of a telemetry file."""
    from infra.lab.forecast import ForecastJob, run_forecast

    run_forecast(
        ForecastJob(
            file,
            prediction_length,
            quantile_levels,
            step,
            items,
            indicators,
            windows if holdout else 0,
            model,
            lower,
            out,
            as_json,
            plot,
        )
    )


# The commands by task, in the order of use.
_TASKS = {
    "See it at work": ("run", "backtest", "forecast"),
    "Set it up": ("init", "doctor", "topics", "capacity", "collect", "map", "worker"),
    "Watch it": ("status", "decisions", "explain", "dlq"),
    "Steer it": ("mode", "pin", "unpin", "pause", "resume", "actuate"),
    "Measure it": ("replay", "evaluate", "bench"),
    "Models, data and state": ("export", "train", "ablate", "plugins", "state", "version"),
}


_LONGEST_HELP = 400


class TaskGroup(TyperGroup):
    """The commands in `--help` under the task that they serve, each with its whole sentence."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        order = [name for names in _TASKS.values() for name in names]
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else len(order))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each task."""
        shown = {name: self.commands[name] for name in self.list_commands(ctx) if not self.commands[name].hidden}
        widest = max(map(len, shown))
        sections = dict(_TASKS) | {"Others": tuple(shown.keys() - {n for names in _TASKS.values() for n in names})}
        for title, names in sections.items():
            # Spaces, so that every section has the same columns.
            rows = [(n.ljust(widest), shown[n].get_short_help_str(_LONGEST_HELP)) for n in names if n in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    name="harmony",
    cls=TaskGroup,
    no_args_is_help=True,
    # Help in boxes would take twice the time of help itself.
    rich_markup_mode=None,
    # A trace with local variables could show secrets.
    pretty_exceptions_enable=False,
    help="Predictive, SLO-aware scaling of GPU services on Kafka.",
)
app.add_typer(cli_topics.app, name="topics")
app.add_typer(bench_cli.app, name="bench")
app.add_typer(cli_state.app, name="state")
app.add_typer(actuate_cli.app, name="actuate")
app.add_typer(collect_cli.app, name="collect")


def _print_version(value: bool) -> None:
    if value:
        from infra.console.host import own_version

        typer.echo(own_version())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Predictive, SLO-aware scaling of GPU services on Kafka."""


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the versions of HARMONY and of what it stands on."""
    from importlib.metadata import version as installed

    from infra.console.host import own_version
    from infra.kafka.jars import KAFKA_VERSION

    versions = {"harmony": own_version(), "python": ".".join(map(str, sys.version_info[:3])), "kafka": KAFKA_VERSION}
    versions |= {name: installed(name) for name in ("faust-streaming", "aiokafka", "torch")}
    if as_json:
        print_json(versions)
    else:
        for name, value in versions.items():
            typer.echo(f"{name} {value}")


@app.command()
def worker(
    config: ConfigOption = None,
    brokers: BrokersOption = None,
    role: Annotated[
        str | None, typer.Option(help="What this worker does: all (default), or some of ingest,forecast,decide.")
    ] = None,
    instance_id: Annotated[
        str | None, typer.Option(help="Stable name of this worker; default: host name and number.")
    ] = None,
    web_host: Annotated[str | None, typer.Option(help="Address of metrics, health and page.")] = None,
    web_port: Annotated[int | None, typer.Option(help="Its port; 0 = any free one.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    ticks: Annotated[
        bool,
        typer.Option("--ticks/--no-ticks", help="Close the steps of silent partitions, or leave it to the publisher."),
    ] = True,
    accelerated: Annotated[bool, typer.Option("--accelerated", help="Event time is not wall time.")] = False,
    end_with_parent: Annotated[
        bool, typer.Option("--end-with-parent", help="Stop when the parent process ends.")
    ] = False,
) -> None:
    """Run a worker until it is told to stop."""
    # Modules and settings stay: looking them through for garbage as they grow takes a quarter of a start.
    gc.disable()
    if end_with_parent:
        from infra.console.host import watch_parent

        watch_parent()
    from infra.console.host import ensure_open_files
    from infra.kafka.discovery import resolve_brokers
    from infra.settings.load import load_settings
    from infra.worker.options import InstanceId

    own = {name: value for name, value in (("instance_id", instance_id), ("log_level", log_level)) if value is not None}
    flags = {
        "brokers": brokers,
        "role": role,
        "web_host": web_host,
        "web_port": web_port,
        "advanced": {"worker": own} if own else None,
    }
    settings = load_settings(config, flags)
    _refuse_taken_port(settings.web_host, settings.web_port)
    ensure_open_files()
    where = resolve_brokers(settings.brokers or None, settings.state_dir)
    token = settings.worker.metrics_token
    with InstanceId(settings.state_dir, settings.worker.instance_id) as instance:
        from infra.worker.options import WorkerOptions
        from infra.worker.process import run_worker

        run_worker(
            settings,
            WorkerOptions(
                role=settings.role,
                brokers=where,
                instance_id=instance.name,
                metrics_host=settings.web_host,
                metrics_port=settings.web_port,
                metrics_token=token.get_secret_value() if token else None,
                ticks=ticks,
                accelerated=accelerated,
            ),
        )


@app.command()
def run(
    scenario: Annotated[
        str | None,
        typer.Option(help="What is played: day (default), surge, ramp, cold-start, gpu-failure, or endless."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Recorded requests that drive the fleet, in place of a scenario.")
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(
            help="Recorded GPU telemetry to play in place of a fleet, its forecasts scored: a DCGM log (CSV, plain or "
            "gzip) or a GenTD26 directory."
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers",
            "-b",
            help="A running Kafka; default: one is started here, or with --no-fleet that of the settings.",
        ),
    ] = None,
    config: ConfigOption = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
    duration: Annotated[
        str | None,
        typer.Option(help="How long to run once the context is full: seconds, or such as 10m; default: to its end."),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Simulated seconds per second; 0 = as fast as it goes. Default: the scenario's; 0 for a recording.",
        ),
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            callback=finite,
            help="Seconds of simulated time per step. Default: the scenario's, of a recording its interval.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of load and fleet.")] = 0,
    fleet: Annotated[bool, typer.Option("--fleet/--no-fleet", help="Simulate a fleet, or wait for telemetry.")] = True,
    offline: Annotated[bool, typer.Option("--offline", help="Never fetch anything.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Of the Kafka started here.")] = None,
    kafka_port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Of the Kafka started here.")] = None,
    web_port: Annotated[int | None, typer.Option(help="Of page and metrics; default: the settings', 0 = any.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(callback=writable, help="HTML report to write at the end; default: in the state directory."),
    ] = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live view and no progress.")] = False,
) -> None:
    """Run everything here: Kafka, a fleet that closes the loop, workers, page and metrics."""
    from infra.demo.options import RunOptions
    from infra.settings.load import load_settings

    if trace is not None and not trace.is_file():
        raise HarmonyError(f"--trace: there is no file {trace}.", 2)
    if trace is not None and recording is not None:
        raise HarmonyError("--trace and --recording exclude each other: drop one of them.", 2)
    others = [name for name, on in (("--trace", trace), ("--recording", recording), ("--no-fleet", not fleet)) if on]
    if scenario is not None and others:
        raise HarmonyError(f"--scenario and {others[0]} exclude each other: drop one of them.", 2)
    if scenario is not None:
        from infra.demo.scenarios import SCENARIOS

        if scenario not in SCENARIOS:
            raise HarmonyError(f"--scenario: {scenario!r} is none of {', '.join(SCENARIOS)}.", 2)
    settings = load_settings(config, {"brokers": brokers, "web_port": web_port})
    if "web_port" in settings.model_fields_set:
        _refuse_taken_port(settings.web_host, settings.web_port)
    chosen = RunOptions(
        settings=settings,
        config=config,
        trace=trace,
        recording=recording,
        scenario=scenario,
        report=report,
        brokers=brokers,
        workers=workers,
        duration_s=_duration_s(duration),
        speed=speed,
        step_s=step,
        seed=seed,
        fleet=fleet,
        offline=offline,
        data_dir=data_dir,
        kafka_port=kafka_port,
        as_json=as_json,
        quiet=quiet,
    )
    from infra.demo.run import run_demo

    run_demo(chosen)


def _refuse_taken_port(host: str, port: int) -> None:
    """Say so at once, before anything is loaded, started or compiled.

    Raises:
        HarmonyError: another program has it.
    """
    from infra.console.host import is_free

    # What others hold on this machine's own address says nothing of another address.
    if port and host in {"127.0.0.1", "localhost", "0.0.0.0", "::"} and not is_free(port):  # noqa: S104
        raise HarmonyError(
            f"Port {port} on this machine is in use by another program. Choose one with --web-port N; "
            "--web-port 0 takes any free one.",
        )


def _duration_s(text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration_s(text)
    except ValueError as error:
        raise HarmonyError(f"--duration: {error}.", 2) from None


@app.command()
def doctor(config: ConfigOption = None, brokers: BrokersOption = None, as_json: JsonOption = False) -> None:
    """Check Java, jars, ports, brokers, topics, disk and GPU; exit code 1 when something must be done."""
    from infra.kafka.discovery import find_fleet
    from infra.operate.doctor import examine
    from infra.settings.load import load_settings

    settings, where = load_settings(config, {"brokers": brokers}), None
    with suppress(HarmonyError):
        settings, where = find_fleet(config, brokers)
    findings = list(examine(settings, where))
    failed = sum(finding.status == "fail" for finding in findings)
    if as_json:
        print_json({"ok": failed == 0, "findings": [asdict(finding) for finding in findings]})
    else:
        from rich.text import Text

        from infra.console.output import FittedTable, TableColumn, output

        headings = [
            TableColumn("check"),
            TableColumn(""),
            TableColumn("found", wraps=True),
            TableColumn("what to do", wraps=True),
        ]
        colours = {"ok": "green", "note": "yellow", "fail": "bold red"}
        rows = [(f.check, Text(f.status, colours[f.status]), f.detail, f.remedy) for f in findings]
        output().print(FittedTable(headings, [*rows], ruled=False))
    raise typer.Exit(1 if failed else 0)


app.command()(backtest)
app.command()(capacity)
app.command()(evaluate)
app.command()(export)
app.command()(forecast)
app.command()(init)
app.command()(plugins)
app.command()(replay)
app.command()(train)
app.command()(ablate)
app.command("map")(collect_cli.map_raw)
cli_operate.register(app)


def main() -> None:
    """Entry point: runs the command; a `HarmonyError` becomes its sentence on stderr and its exit code."""
    end_on_sigterm()
    with ended_plainly():
        app()


if __name__ == "__main__":
    main()
