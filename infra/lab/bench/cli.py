"""`harmony bench ingest|inference|latency|plan|recovery|scale|workers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.console.options import writable

app = typer.Typer(
    no_args_is_help=True,
    help="How fast it is, beside rivals measured in the same run. Needs a source checkout and a quiet machine.",
)

_OutOption = Annotated[
    Path | None, typer.Option("--json", callback=writable, help="Also write every figure to this file; - is stdout.")
]
_BrokersOption = Annotated[
    str | None, typer.Option("--brokers", "-b", help="A running Kafka; default: one is started for the bench.")
]
_RoundsOption = Annotated[int, typer.Option(min=1, help="Every subject runs once per round; medians are shown.")]


@app.command()
def ingest(
    rounds: _RoundsOption = 5,
    samples: Annotated[int, typer.Option(min=1, help="Samples of the job, rounded up.")] = 409_600,
    form: Annotated[str | None, typer.Option(help="single, packed or binary; default: all.")] = None,
    rivals: Annotated[bool, typer.Option("--rivals/--no-rivals", help="Run the rivals too.")] = True,
    brokers: _BrokersOption = None,
    out: _OutOption = None,
) -> None:
    """Telemetry to acknowledged pages, as fast as one process can, from a topic that is full."""
    from infra.console.errors import HarmonyError
    from infra.lab.bench.ingest import IngestBench, run_ingest_bench
    from infra.lab.bench.job import FORMS

    forms = tuple(f for f in FORMS if form is None or f == form)
    if not forms:
        raise HarmonyError(f"--form: {form!r} is none of {', '.join(FORMS)}.", 2)
    run_ingest_bench(IngestBench(rounds, samples, forms, brokers, rivals), out)


@app.command()
def inference(
    rounds: _RoundsOption = 3,
    batches: Annotated[str, typer.Option(help="Windows in one call, separated by commas.")] = "1,64,1024",
    out: _OutOption = None,
) -> None:
    """A forecast by batch size: network, what serves, and the pool, on the CPU and on a GPU where there is one."""
    from infra.lab.bench.inference import InferenceBench, run_inference_bench

    run_inference_bench(InferenceBench(rounds, tuple(sorted(_sizes(batches, "--batches")))), out)


@app.command()
def plan(
    rounds: _RoundsOption = 3,
    most: Annotated[int, typer.Option("--workloads", min=100, help="Largest fleet.")] = 10_000,
    paths: Annotated[int, typer.Option(min=1, help="Sample paths per workload.")] = 256,
    out: _OutOption = None,
) -> None:
    """The planner alone, for growing fleets: sample paths to plans on one core."""
    from infra.lab.bench.plan import PlanBench, run_plan_bench

    sizes = tuple(size for size in (100, 1_000, 10_000, 100_000) if size < most)
    run_plan_bench(PlanBench(rounds=rounds, workloads=(*sizes, most), paths=paths), out)


@app.command()
def latency(
    workloads: Annotated[str, typer.Option(help="Fleet sizes, separated by commas.")] = "100,1000",
    samples_per_s: Annotated[int, typer.Option(min=1, help="Load, over all workloads.")] = 5_000,
    slots: Annotated[
        int, typer.Option(min=1, help="Slots to measure per fleet: of 5 s, longer above 1,000 workloads.")
    ] = 10,
    weights: Annotated[
        str | None,
        typer.Option(help="As `advanced.model.weights`; default: a worker's, which needs six hours."),
    ] = None,
    brokers: _BrokersOption = None,
    out: _OutOption = None,
) -> None:
    """From the broker's stamp of the tick that closes a slot to the decision on its topic, in real time."""
    from infra.lab.bench.latency import LatencyBench, run_latency_bench

    run_latency_bench(LatencyBench(_sizes(workloads), samples_per_s, slots, weights, brokers), out)


@app.command()
def recovery(
    workloads: Annotated[str, typer.Option(help="Fleet sizes, separated by commas.")] = "1000",
    brokers: _BrokersOption = None,
    out: _OutOption = None,
) -> None:
    """Kill -9 of a worker to the first new decision, and to the last workload's first one."""
    from infra.lab.bench.latency import RecoveryBench, run_recovery_bench

    run_recovery_bench(RecoveryBench(_sizes(workloads), brokers), out)


@app.command()
def scale(
    workloads: Annotated[str, typer.Option(help="Fleet sizes, separated by commas.")] = "100,1000,10000,100000",
    slots: Annotated[int, typer.Option(min=1, help="Slots to measure per fleet without planner.")] = 3,
    out: _OutOption = None,
) -> None:
    """CPU per sample and workload, and memory: growing fleets, without model and planner and with both."""
    from infra.lab.bench.scale import ScaleBench, run_scale_bench

    run_scale_bench(ScaleBench(tuple(sorted(_sizes(workloads))), slots), out)


@app.command()
def workers(
    workloads: Annotated[int, typer.Option(min=1, help="Fleet size.")] = 200,
    samples_per_s: Annotated[int, typer.Option(min=1, help="Load, over all workloads.")] = 5_000,
    slots: Annotated[int, typer.Option(min=1, help="Slots of 5 s to measure per arrangement.")] = 10,
    brokers: _BrokersOption = None,
    out: _OutOption = None,
) -> None:
    """The same load on one worker, two, four, and on the roles apart: CPU, balance, memory, latency."""
    from infra.lab.bench.workers import WorkersBench, run_workers_bench

    run_workers_bench(WorkersBench(workloads, samples_per_s, slots, brokers), out)


def _sizes(text: str, option: str = "--workloads") -> tuple[int, ...]:
    from infra.console.errors import HarmonyError

    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise HarmonyError(f"{option}: {text!r} is no list of numbers such as 100,1000.", 2)
    return sizes
