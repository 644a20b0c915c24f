"""`harmony collect …` and `harmony map`. Each collector's packages are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.collect.options import Common, Dry
from infra.console.errors import HarmonyError
from infra.console.options import JsonOption, print_json, say, spread

app = typer.Typer(no_args_is_help=True, help="Bring in telemetry: exporters, Prometheus, this machine, files.")

ProfileOption = Annotated[
    list[str] | None,
    typer.Option("--profile", "-p", help="Exporters to read (several); default: all but those that are opt-in."),
]
MappingOption = Annotated[
    list[Path] | None, typer.Option("--mapping", "-m", help="File with more profiles and workload rules (several).")
]
WorkloadOption = Annotated[
    str | None,
    typer.Option("--workload", "-w", help="Workload of what no rule names, such as {namespace}/{model_name}."),
]
IntervalOption = Annotated[str, typer.Option(help="Time between two rounds: seconds, or such as 10s.")]
OnceOption = Annotated[bool, typer.Option("--once", help="One round, then end.")]
ReplicasOption = Annotated[
    bool, typer.Option("--count-replicas", help="Publish as replica counts how many engines of a workload answer.")
]
HeaderOption = Annotated[list[str] | None, typer.Option("--header", help="Sent with every request: 'Name: value'.")]
TokenOption = Annotated[Path | None, typer.Option("--token-file", help="File with a bearer token.")]
CaOption = Annotated[Path | None, typer.Option("--ca-file", help="Certificate authority of https addresses.")]
StartsOption = Annotated[
    bool, typer.Option("--starts", help="Report the stages of each replica's start, from kube-state-metrics.")
]
HistoryOption = Annotated[
    str | None,
    typer.Option(help="First publish so much of the server's past, such as 7d: for a fleet that starts."),
]
FLEET_SOURCE = "collect"


@app.command()
@spread
def prometheus(
    server: Annotated[str | None, typer.Option(help="A Prometheus server to ask, http://host:port.")] = None,
    scrape: Annotated[list[str] | None, typer.Option(help="An exporter to read, host:port or URL (several).")] = None,
    targets: Annotated[
        Path | None, typer.Option(help="File of exporters, as file_sd_configs reads it; read again every round.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Label of every --scrape target: name=value.")] = None,
    selector: Annotated[str, typer.Option(help="Only series with these labels, such as 'namespace=\"prod\"'.")] = "",
    profile: ProfileOption = None,
    mapping: MappingOption = None,
    workload: WorkloadOption = None,
    interval: IntervalOption = "5s",
    count_replicas: ReplicasOption = False,
    starts: StartsOption = False,
    history: HistoryOption = None,
    header: HeaderOption = None,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    once: OnceOption = False,
    *,
    shared: Dry,
) -> None:
    """Ask a Prometheus server, or read exporters directly, and publish what profiles know."""
    from infra.collect.history import QUERY_TIMEOUT_S, history_s, load_history
    from infra.collect.loop import Read, collect, interval_of, reader_of
    from infra.collect.mapping.starts import START_SERIES, PodStarts
    from infra.collect.sources.prometheus import PrometheusApi, PrometheusSource
    from infra.collect.sources.scrape import Scraper, parse_labels, parse_target, read_targets
    from infra.console.web import http_client, printable_url

    if (server is None) == (not scrape and targets is None):
        raise HarmonyError("Say either --server URL, or exporters with --scrape or --targets.", 2)
    if history is not None and server is None:
        raise HarmonyError("--history asks a Prometheus for the past: say --server URL. Exporters know only now.", 2)
    length_s = None if history is None else history_s(history)
    settings = shared.settings()
    interval_s = interval_of(interval)
    http = http_client(min(10.0, max(interval_s, 1.0)), tuple(header or ()), token_file, ca_file)
    reader = reader_of(settings[0], profile or (), mapping or (), workload)
    read: Read
    before = None
    if server is not None:
        names = (*reader.names, *(START_SERIES if starts else ()))
        read = PrometheusSource(PrometheusApi(server, http, selector), names, printable_url(server))
        if length_s is not None:
            # Answers of many minutes take longer than those of a round.
            patient = http_client(QUERY_TIMEOUT_S, tuple(header or ()), token_file, ca_file)
            before = load_history(PrometheusApi(server, patient, selector), read, settings, shared, length_s)
    else:
        labels = parse_labels(label or ())
        fixed = [parse_target(text, labels) for text in scrape or ()]
        if targets is not None:
            read_targets(targets)
        read = Scraper(
            lambda: [*fixed, *(read_targets(targets) if targets else ())],
            lambda name: reader.reads(name) or (starts and name in START_SERIES),
            http,
        )
    fleet_source = FLEET_SOURCE if count_replicas else None
    collect(
        read,
        reader,
        shared,
        interval_s=interval_s,
        once=once,
        fleet_source=fleet_source,
        starts=PodStarts(reader.workload_of_pod) if starts else None,
        settings=settings,
        before=before,
    )


@app.command("remote-write")
@spread
def remote_write(
    listen: Annotated[str, typer.Option(help="Address to listen on, host:port; port 0 = any free one.")] = (
        "127.0.0.1:9201"
    ),
    hold: Annotated[str, typer.Option(help="How long a scrape's parts wait for each other.")] = "2s",
    profile: ProfileOption = None,
    mapping: MappingOption = None,
    workload: WorkloadOption = None,
    token_file: TokenOption = None,
    *,
    shared: Dry,
) -> None:
    """Receive Prometheus' remote_write (version 1) and publish what profiles know."""
    from infra.collect.receive import receive

    receive(shared, listen, hold, profile or (), mapping or (), workload, token_file)


@app.command()
@spread
def host(
    workload: Annotated[str, typer.Option("--workload", "-w", help="Whose device this machine is.")],
    root: Annotated[Path, typer.Option(help="Where /proc and /sys are, such as a host's mounted into a container.")] = (
        Path("/")
    ),
    interval: IntervalOption = "5s",
    once: OnceOption = False,
    *,
    shared: Dry,
) -> None:
    """Publish this machine's CPUs, memory and power as one device: for workloads that compute on CPUs."""
    from infra.collect.loop import collect, interval_of, reader_of
    from infra.collect.sources.host import PROFILE, Host

    read = Host({"workload": workload}, root)
    settings = shared.settings()
    reader = reader_of(settings[0], own=(PROFILE,))
    if once:
        # Shares of CPU time are increases: a first look, so that the one that counts has something to compare with.
        from time import sleep

        reader.read(read().points)
        sleep(min(1.0, interval_of(interval)))
    collect(read, reader, shared, interval_s=interval_of(interval), once=once, settings=settings)


@app.command()
@spread
def nvml(
    workload: Annotated[str, typer.Option("--workload", "-w", help="Whose devices these are.")],
    device: Annotated[list[int] | None, typer.Option(help="Index of a device (several); default: all.")] = None,
    interval: IntervalOption = "5s",
    once: OnceOption = False,
    *,
    shared: Dry,
) -> None:
    """Publish this machine's NVIDIA devices, asked through NVML."""
    from infra.collect.loop import collect, interval_of, reader_of
    from infra.collect.sources.nvml import PROFILE, Nvml

    read = Nvml({"workload": workload}, tuple(device or ()))
    settings = shared.settings()
    reader = reader_of(settings[0], own=(PROFILE,))
    collect(read, reader, shared, interval_s=interval_of(interval), once=once, settings=settings)


@app.command()
@spread
def file(
    paths: Annotated[list[Path], typer.Argument(help="Files, plain or gzip; - = standard input.")],
    form: Annotated[
        str, typer.Option("--format", "-f", help="exposition, csv, or a format of telemetry.raw; default: by content.")
    ] = "auto",
    label: Annotated[list[str] | None, typer.Option(help="Label of every sample: name=value.")] = None,
    profile: ProfileOption = None,
    mapping: MappingOption = None,
    workload: WorkloadOption = None,
    history: Annotated[
        bool, typer.Option("--history", help="Publish it as the past, in the order of time: for a fleet that starts.")
    ] = False,
    *,
    shared: Dry,
) -> None:
    """Publish what files hold: dumps of exporters, CSV of nvidia-smi, DCGM or AMD's tools, others' JSON lines."""
    from infra.collect.files import collect_files

    collect_files(shared, paths, form, label or (), profile or (), mapping or (), workload, history=history)


@app.command()
def profiles(
    mapping: MappingOption = None,
    show: Annotated[str | None, typer.Option(help="Print one as YAML, to start a mapping file from.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the exporters that are known, and check mapping files."""
    from infra.collect.mapping.profiles import listed, profile_yaml

    if show is not None:
        typer.echo(profile_yaml(show, mapping or ()), nl=False)
        return
    rows, rules = listed(mapping or ())
    if as_json:
        print_json({"profiles": rows, "workload_rules": rules})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("profile", "kind", "reads", "fields"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["kind"], row["about"], ", ".join(row["fields"]))
    Console().print(table)
    if mapping:
        say(f"{len(mapping)} mapping files are as they must be; {rules} workload rules.")


@spread
def map_raw(
    form: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="Of the records; auto tells them apart by their shape; plugin:NAME = yours."
        ),
    ] = "auto",
    hold: Annotated[str, typer.Option(help="How long a reading's parts wait for each other.")] = "2s",
    profile: ProfileOption = None,
    mapping: MappingOption = None,
    workload: WorkloadOption = None,
    *,
    shared: Common,
) -> None:
    """Turn what other collectors write to telemetry.raw into telemetry, keyed by workload."""
    from infra.collect.receive import map_topic

    map_topic(shared, form, hold, profile or (), mapping or (), workload)
