"""`harmony replay` on the command line; what it needs is imported when it runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.console.options import finite, writable, writable_folder
from infra.lab.defaults import OUTPUT_TOKENS, PROMPT_TOKENS, TRAIN_SHARE


def replay(
    requests: Annotated[Path | None, typer.Option(help="Recorded requests, CSV, plain or gzip.")] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="A rate file, or one that is built in: ramp, flash-crowd, regime-shift, longer-answers, hourly, "
            "half-hourly."
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="Engine profile: built-in name or JSON file.")] = "dense-70b",
    policies: Annotated[str | None, typer.Option(help="Separated by commas; default: all public ones.")] = None,
    slo_ttft: Annotated[float, typer.Option(callback=finite, help="Seconds to the first token.")] = 2.0,
    slo_tpot: Annotated[float, typer.Option(callback=finite, help="Seconds per further token.")] = 0.2,
    objective: Annotated[float, typer.Option(callback=finite, help="Wanted share of good requests.")] = 0.99,
    lead_time: Annotated[
        str,
        typer.Option(
            help="Seconds from command to ready; 100~0.3 = lognormal of mean 100, sigma of log 0.3; 40/300:0.25 = a "
            "quarter of the starts take 300, the others 40."
        ),
    ] = "100",
    min_replicas: Annotated[int, typer.Option(help="Fewest replicas.")] = 1,
    max_replicas: Annotated[int, typer.Option(help="Most replicas.")] = 16,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs per policy: arrivals of a rate file, lead times.")
    ] = 5,
    first_seed: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Of a rate file: number of the first run's draw.")
    ] = 0,
    step: Annotated[
        float, typer.Option(callback=finite, min=1.0, help="Seconds per telemetry step of HARMONY.")
    ] = 15.0,
    scrape_interval: Annotated[
        float,
        typer.Option(
            callback=finite, min=0.0, help="Seconds between readings of the metrics; 0 = at each policy's own tick."
        ),
    ] = 0.0,
    delay: Annotated[
        float, typer.Option(callback=finite, min=0.0, help="Seconds until a reading reaches a policy.")
    ] = 0.0,
    noise: Annotated[
        float, typer.Option(callback=finite, min=0.0, help="Relative noise of the gauges that policies read.")
    ] = 0.0,
    faults: Annotated[
        str | None,
        typer.Option(
            help="Times in which engines' telemetry fails for all: gap@600+300, silent@600+300:0.25 (of a quarter), "
            "frozen@600+300, delayed@600+300:60."
        ),
    ] = None,
    train_share: Annotated[
        float | None,
        typer.Option(
            callback=finite, help=f"Part of a request trace that policies are tuned on; default: {TRAIN_SHARE}."
        ),
    ] = None,
    day: Annotated[
        int | None, typer.Option(help="Day of a rate file of days, from 0; the one before is tuned on.")
    ] = None,
    past_days: Annotated[
        int,
        typer.Option(
            min=0, max=7, help="With --day: so many days before it stand in HARMONY's week, as in a worker's."
        ),
    ] = 0,
    mean_rate: Annotated[
        float | None, typer.Option(callback=finite, help="Thin a rate file to this mean, requests/s.")
    ] = None,
    prompt_tokens: Annotated[
        str | None, typer.Option(help=f"Where a rate file has none: mean or mean:sigma; default: {PROMPT_TOKENS}.")
    ] = None,
    output_tokens: Annotated[str | None, typer.Option(help=f"Likewise; default: {OUTPUT_TOKENS}.")] = None,
    tune: Annotated[bool, typer.Option("--tune/--no-tune", help="Tune every rival on the training part.")] = True,
    epsilon: Annotated[
        float | None,
        typer.Option(
            callback=finite, help="Probability that replicas fall behind that HARMONY accepts; default: its own."
        ),
    ] = None,
    told_capacity: Annotated[
        str,
        typer.Option(
            help="Times the load test's figure that HARMONY is told, such as 2.2, or 2.2:2 if that may be off by 2."
        ),
    ] = "1",
    given: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of a rival, such as hpa.target=40 (repeat); it is then not tuned."),
    ] = None,
    oracle: Annotated[int, typer.Option(min=0, help="Simulations that the search for the oracle may take.")] = 160,
    oracle_rate: Annotated[
        int,
        typer.Option(
            min=0, help="Schedules tried for one who knows the rate, not its draw; 3 or 10 simulations each, 0 = none."
        ),
    ] = 0,
    surprise: Annotated[
        str | None,
        typer.Option(
            help="Of one to whom these come without a word: seconds of what is scored, 36000,51300, or x1.33 for "
            "wherever a rate file rises so many times within the lead time. Built-in loads know theirs."
        ),
    ] = None,
    equal: Annotated[
        bool,
        typer.Option("--equal-attainment", help="Also the cheapest rivals that keep as much as HARMONY, in hindsight."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes side by side.")] = 1,
    json_out: Annotated[
        Path | None, typer.Option("--json", callback=writable, help="Write the results here; - = stdout.")
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Write every request and replica of every run here.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=writable, help="Write cost against misses here, as SVG.")
    ] = None,
    plot_risk: Annotated[
        Path | None,
        typer.Option(callback=writable, help="Draw HARMONY's stated risks against what came here: .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Replay a load under HARMONY, public scaling policies and a clairvoyant, on the demo's engine."""
    from infra.lab.replay.job import ReplayRequest, run_replay

    run_replay(
        ReplayRequest(
            requests=requests,
            rate=rate,
            profile=profile,
            policies=policies,
            slo_ttft=slo_ttft,
            slo_tpot=slo_tpot,
            objective=objective,
            lead_time=lead_time,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            seeds=seeds,
            first_seed=first_seed,
            step=step,
            scrape_interval=scrape_interval,
            delay=delay,
            noise=noise,
            faults=faults,
            past_days=past_days,
            train_share=train_share,
            day=day,
            mean_rate=mean_rate,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            tune=tune,
            epsilon=epsilon,
            told_capacity=told_capacity,
            given=tuple(given or ()),
            oracle=oracle,
            oracle_rate=oracle_rate,
            surprise=surprise,
            equal=equal,
            jobs=jobs,
            json_out=json_out,
            log_dir=log_dir,
            plot=plot,
            plot_risk=plot_risk,
        )
    )
