"""`harmony backtest`: what HARMONY would have done in the past of one workload."""

from __future__ import annotations

import json
from pathlib import Path
from time import time
from typing import Annotated

import typer

from infra.console.errors import HarmonyError
from infra.console.options import ConfigOption, JsonOption, finite, print_json, say
from infra.console.progress import WorkBar


def backtest(
    prometheus: Annotated[str | None, typer.Option(help="A Prometheus server that holds the past.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="Or a recorded file: start_s,rate_rps,replicas[,prompt_tokens,output_tokens].")
    ] = None,
    workload: Annotated[str | None, typer.Option("--workload", "-w", help="Needed if there are several.")] = (None),
    days: Annotated[float, typer.Option(callback=finite, min=0.05, max=366, help="How far back, from --until.")] = 7.0,
    until: Annotated[
        float | None, typer.Option(callback=finite, help="End of the past, Unix time; default: now.")
    ] = None,
    profile: Annotated[
        list[str] | None, typer.Option("--profile", "-p", help="Exporters to read (several); default: all.")
    ] = None,
    mapping: Annotated[
        list[Path] | None, typer.Option("--mapping", "-m", help="File with more profiles and workload rules (several).")
    ] = None,
    selector: Annotated[str, typer.Option(help="Only series with these labels, such as 'namespace=\"prod\"'.")] = "",
    slo_ttft: Annotated[
        float | None, typer.Option(callback=finite, help="Seconds to the first token; default: as set.")
    ] = None,
    slo_tpot: Annotated[
        float | None, typer.Option(callback=finite, help="Seconds per further token; default: as set.")
    ] = None,
    objective: Annotated[float | None, typer.Option(callback=finite, help="Wanted share of good requests.")] = None,
    lead_time: Annotated[
        float | None, typer.Option(callback=finite, min=1, help="Seconds from command to ready replica.")
    ] = None,
    min_replicas: Annotated[int, typer.Option(min=0, help="Fewest replicas of HARMONY.")] = 1,
    max_replicas: Annotated[int | None, typer.Option(min=1, help="Most; default: twice what was recorded.")] = None,
    engine: Annotated[str, typer.Option(help="Engine profile: built-in name or JSON file.")] = "dense-13b",
    gpus_per_replica: Annotated[int | None, typer.Option(min=1, help="Default: of the engine.")] = None,
    fit: Annotated[bool, typer.Option("--fit/--no-fit", help="Fit the engine's speed to measured token times.")] = True,
    epsilon: Annotated[
        float | None,
        typer.Option(
            callback=finite, min=0, max=1, help="Accepted probability of missing the objective; default: as set."
        ),
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(callback=finite, min=1, help="Seconds per step of HARMONY; default: 15, beyond two days 60."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Draws of the arrivals.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("backtest"),
    header: Annotated[list[str] | None, typer.Option("--header", help="Sent along: 'Name: value'.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with a bearer token.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificate authority of https addresses.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What would HARMONY have done? Replay a workload's past under your replicas and under HARMONY; no Kafka needed."""
    from infra.lab.backtest.job import BacktestJob, run_backtest
    from infra.settings.load import load_settings

    if (prometheus is None) == (history is None):
        raise HarmonyError("Say where the past is: either --prometheus URL or --history FILE.", 2)
    job = BacktestJob(
        settings=load_settings(config), prometheus=prometheus, history=history, workload=workload, days=days,
        until_s=time() if until is None else until, profiles=tuple(profile or ()), mappings=tuple(mapping or ()),
        selector=selector, slo_ttft=slo_ttft, slo_tpot=slo_tpot, objective=objective, lead_time=lead_time,
        min_replicas=min_replicas, max_replicas=max_replicas, engine=engine, gpus_per_replica=gpus_per_replica, fit=fit,
        epsilon=epsilon, step=step, seeds=seeds, out=out, headers=tuple(header or ()), token_file=token_file,
        ca_file=ca_file,
    )  # fmt: skip
    with WorkBar() as bar:
        data = run_backtest(job, bar)
    (out / "backtest.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        for line in (data["verdict"], *(f"* {note}" for note in data["caveats"])):
            typer.echo(line)
    say(f"The report is {out / 'report.html'}.")
