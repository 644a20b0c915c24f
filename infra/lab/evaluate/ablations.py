"""`harmony ablate`: what each part of the network is worth, by variants trained on the same telemetry."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.console.errors import HarmonyError
from infra.console.options import ReportOption, comma_list, say, writable_folder
from infra.lab.report import STDOUT, write_json

if TYPE_CHECKING:
    from infra.lab.series import Table
    from model.evaluation.rolling import Task
    from model.network.spec import NetworkSpec
    from model.training.examples import FeatureBatch

ARMS: dict[str, dict[str, Any]] = {
    "full": {},
    "flat": {"attention": "flat"},
    "gaussian": {"marginal": "gaussian"},
    "single": {"seasons": False},
}
ABOUT = {
    "full": "cascading attention, spline marginals with atoms, fine and coarse context",
    "flat": "every indicator attends every other",
    "gaussian": "a Gaussian in place of spline and atoms, the same dependence",
    "single": "the newest rows only: no day, no week",
}
TASKS = "servegen-mid,worldcup-10min,gentd26-pods,azure-conv-10s"
CONTAINERS = "container1,container2,container3"
METRICS = ("wql", "crps", "energy", "peak95")


def ablate(
    out: Annotated[
        Path,
        typer.Option(callback=writable_folder, help="Folder for the variants' weights; those that are there stay."),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Updates of each variant.")] = 800,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Runs of each variant: initialisation and examples.")] = 3,
    tasks: Annotated[str, typer.Option(help="Rolling tasks, with commas.")] = TASKS,
    containers: Annotated[str, typer.Option(help="Fisher containers, with commas.")] = CONTAINERS,
    part: Annotated[str, typer.Option(help="rolling: test, or validation to choose by.")] = "validation",
    limit: Annotated[int | None, typer.Option(min=1, help="A quick look: origins and windows per item.")] = None,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Processes that make synthetic telemetry.")] = 1,
    json_out: ReportOption = None,
) -> None:
    """Train variants of the network side by side on the same synthetic telemetry, and score them zero-shot."""
    from infra.lab.evaluate.fisher import read_containers
    from infra.lab.evaluate.rolling import check_part, read_tasks

    check_part(part)
    root = os.environ.get("HARMONY_DATA_DIR")
    if not root:
        raise HarmonyError("Set HARMONY_DATA_DIR to the folder that holds forecast-tasks and fisher.", 2)
    rolling = read_tasks(Path(root) / "forecast-tasks", comma_list(tasks), part)
    fisher = read_containers(Path(root) / "fisher", comma_list(containers))
    import torch

    torch.set_num_threads(1)
    rows = []
    for seed in range(1, seeds + 1):
        train_arms(out, steps, seed, workers)
        for arm in ARMS:
            weights = _folder(out, arm, seed)
            scores = _rolling(rolling, weights, limit) | _fisher(fisher, weights, limit)
            rows.append({"arm": arm, "seed": seed, **scores})
            say(f"{arm}, seed {seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in scores.items()))
    report = {
        "steps": steps,
        "part": part,
        "tasks": [task.name for task in rolling],
        "containers": [name for name, _ in fisher],
        "about": ABOUT,
        "runs": rows,
        "arms": summarize(rows),
    }
    if json_out != STDOUT:
        _show(report)
    write_json(json_out, report)


def train_arms(out: Path, steps: int, seed: int, workers: int) -> None:
    """Train every variant that has no weights yet, in lockstep: each reads the same batches in the same order."""
    import torch

    from model.network.checkpoint import SPEC, save
    from model.network.network import Network
    from model.network.spec import NetworkSpec
    from model.training.loop import Trainer, TrainingOptions

    specs = {arm: NetworkSpec(**changed) for arm, changed in ARMS.items()}
    missing = [arm for arm in ARMS if not (_folder(out, arm, seed) / SPEC).is_file()]
    if not missing:
        return
    options = TrainingOptions(steps=steps, seed=seed, patience=0, validate_every=steps + 1)
    streams = tee(_examples(specs, seed, workers), len(missing))
    trainers = {}
    for arm, stream in zip(missing, streams, strict=True):
        torch.manual_seed(seed)
        own = (batches[specs[arm].seasons] for batches in stream)
        trainers[arm] = Trainer(Network(specs[arm]).train(), own, [], options)
    started = spoke = time.monotonic()
    for step in range(steps):
        for trainer in trainers.values():
            trainer.advance()
        now = time.monotonic()
        if now - spoke > 60:
            left = (now - started) / (step + 1) * (steps - step - 1)
            say(f"seed {seed}: step {step + 1} of {steps}, {left / 60:.0f} min left")
            spoke = now
    for arm, trainer in trainers.items():
        save(trainer.averaged, _folder(out, arm, seed), {"arm": arm, "seed": seed, "steps": steps})


def _examples(specs: dict[str, NetworkSpec], seed: int, workers: int) -> Iterator[dict[bool, FeatureBatch]]:
    from model.training.examples import ordered

    kinds = {spec.seasons: spec for spec in specs.values()}
    return ordered(partial(_batches, kinds), seed * 10_000_000, workers)


def _batches(kinds: dict[bool, NetworkSpec], number: int) -> dict[bool, FeatureBatch]:
    """One batch, with the features that each kind of variant reads."""
    from model.training.examples import TOKENS, prepare
    from model.training.synthetic import draw_example

    example = draw_example(number, TOKENS)
    return {seasons: prepare(example, spec) for seasons, spec in kinds.items()}


def _folder(out: Path, arm: str, seed: int) -> Path:
    return out / f"{arm}-{seed}"


def _rolling(tasks: Sequence[Task], weights: Path, limit: int | None) -> dict[str, float]:
    from infra.lab.evaluate.models import roster
    from infra.lab.evaluate.rolling import run_rolling, summary_rows

    contestant = f"network:{weights}"
    run = run_rolling(
        tasks, roster([contestant]).rolling, [contestant], track="zeroshot", limit=limit, horizons=None,
        progress=lambda *_: None,
    )  # fmt: skip
    (row,) = summary_rows(run, [contestant], draws=10, seed=0)
    return {f"rolling_{name}": float(row["relative"][name]) for name in METRICS}


def _fisher(containers: Sequence[tuple[str, Table]], weights: Path, limit: int | None) -> dict[str, float]:
    from infra.lab.evaluate.fisher import result_rows, run_fisher
    from infra.lab.evaluate.models import roster

    contestant = f"network:{weights}"
    run = run_fisher(
        containers, roster([contestant]).fisher, [contestant], lengths=[72], limit=limit, progress=lambda *_: None
    )
    rows = result_rows(run)
    return {f"fisher_{name}": statistics.fmean(row[name] for row in rows) for name in ("crps", "energy_score")}


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per variant the median over seeds and its range, likewise of its ratio to the full network of the same seed."""
    full = {row["seed"]: row for row in rows if row["arm"] == "full"}
    metrics = [key for key in rows[0] if key not in {"arm", "seed"}]
    summary = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        of = [row for row in rows if row["arm"] == arm]
        line: dict[str, Any] = {"arm": arm}
        for metric in metrics:
            values = [row[metric] for row in of]
            ratios = [row[metric] / full[row["seed"]][metric] for row in of]
            line[metric] = {
                "median": statistics.median(values), "low": min(values), "high": max(values),
                "over_full": statistics.median(ratios), "over_full_low": min(ratios), "over_full_high": max(ratios),
            }  # fmt: skip
        summary.append(line)
    return summary


def _show(report: dict[str, Any]) -> None:
    from infra.console.output import FittedTable, TableColumn, output

    arms = [line["arm"] for line in report["arms"]]
    table = FittedTable([TableColumn("metric"), *(TableColumn(arm, k) for k, arm in enumerate(arms))])
    for metric in [key for key in report["arms"][0] if key != "arm"]:
        cells = []
        for line in report["arms"]:
            m = line[metric]
            cells.append(f"{m['median']:.4f} ({m['low']:.4f}-{m['high']:.4f}) x{m['over_full']:.3f}")
        table.rows.append((metric, *cells))
    console = output()
    console.print(
        f"{report['steps']} updates; median (range) over seeds; x: against full, seed by seed", highlight=False
    )
    console.print(table, highlight=False)
