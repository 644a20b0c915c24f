"""`harmony evaluate`: forecasters measured by a protocol that anyone can repeat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.console.errors import HarmonyError
from infra.console.options import ReportOption, comma_list, say, writable_folder
from infra.console.progress import WorkBar
from infra.lab.report import STDOUT, write_json


def evaluate(
    protocol: Annotated[str, typer.Option(help="fisher or rolling.")],
    dataset: Annotated[
        Path | None, typer.Option(help="Folder of the data; default: its place in $HARMONY_DATA_DIR.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Names, with commas; default: the baselines and what is served.")
    ] = None,
    track: Annotated[str, typer.Option(help="rolling: local or zeroshot.")] = "local",
    part: Annotated[str, typer.Option(help="rolling: test, or validation to choose by.")] = "test",
    tasks: Annotated[str | None, typer.Option(help="Only these tasks or containers, with commas.")] = None,
    input_lengths: Annotated[str, typer.Option(help="fisher: rows of context, with commas.")] = "72,144,288",
    prediction_lengths: Annotated[str | None, typer.Option(help="rolling: only these, with commas.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="A quick look: origins per item and items per task; fisher: windows.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    draws: Annotated[int, typer.Option(min=10, help="Bootstrap draws of the intervals.")] = 200,
    json_out: ReportOption = None,
    plots: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Write plots into this folder (extra `plots`).")
    ] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="rolling: also the table of all tasks.")] = False,
) -> None:
    """Score forecasters by the Fisher or the rolling-origin protocol."""
    if protocol not in {"fisher", "rolling"}:
        raise HarmonyError(f"--protocol: {protocol!r} is neither fisher nor rolling.", 2)
    if track not in {"local", "zeroshot"}:
        raise HarmonyError(f"--track: {track!r} is neither local nor zeroshot.", 2)
    from infra.lab.evaluate.rolling import check_part

    check_part(part)
    import torch

    torch.set_num_threads(1)  # the tensors are small; threads that wait for each other cost more than they bring
    from infra.lab.evaluate.models import DEFAULT_MODELS, roster

    names = _split_list(models) or DEFAULT_MODELS[protocol]
    contestants = roster(names)
    chosen, not_run = contestants.choose(protocol, names)
    where = dataset or _default_dataset(protocol)
    task_names = _split_list(tasks)
    with WorkBar(quiet=True) as progress:
        if protocol == "rolling":
            report, cells = _rolling(
                where, contestants.rolling, chosen, task_names, track=track, part=part, limit=limit,
                horizons=_numbers("--prediction-lengths", prediction_lengths), draws=draws, seed=seed,
                progress=progress,
            )  # fmt: skip
        else:
            lengths = _numbers("--input-lengths", input_lengths) or []
            report, cells = _fisher(
                where, contestants.fisher, chosen, task_names, lengths=lengths, limit=limit, draws=draws, seed=seed,
                progress=progress,
            )  # fmt: skip
    report["not_run"] = not_run
    if json_out != STDOUT:
        from infra.lab.evaluate.report import print_fisher, print_pairs, print_rolling

        if protocol == "rolling":
            if pairs:
                print_pairs(report["results"])
            print_rolling(report["summary"], not_run, track=track)
        else:
            print_fisher(report["summary"], not_run)
    write_json(json_out, report)
    if plots is not None:
        from infra.lab.evaluate.report import draw_report

        for path in draw_report(plots, protocol, report, cells):
            say(f"wrote {path}")


def _rolling(
    where: Path, contestants: Any, chosen: list[str], task_names: list[str] | None, **how: Any
) -> tuple[Any, Any]:
    from infra.lab.evaluate.rolling import read_tasks, result_rows, run_rolling, summary_rows

    tasks = read_tasks(where, task_names, how["part"])
    run = run_rolling(
        tasks, contestants, chosen, track=how["track"], limit=how["limit"], horizons=how["horizons"],
        progress=how["progress"],
    )  # fmt: skip
    if not run.cells:
        raise HarmonyError(f"{where}: no task has room for an origin with these prediction lengths.", 2)
    how["progress"]("intervals")
    report = {
        "protocol": "rolling",
        "dataset": str(where),
        "track": how["track"],
        "part": how["part"],
        "results": result_rows(run, chosen, draws=how["draws"], seed=how["seed"]),
        "summary": summary_rows(run, chosen, draws=how["draws"], seed=how["seed"]),
    }
    return report, (tasks, run, contestants, how["track"])


def _fisher(
    where: Path, contestants: Any, chosen: list[str], task_names: list[str] | None, **how: Any
) -> tuple[Any, Any]:
    from infra.lab.evaluate.fisher import read_containers, result_rows, run_fisher, summary_rows

    run = run_fisher(
        read_containers(where, task_names), contestants, chosen, lengths=how["lengths"], limit=how["limit"],
        progress=how["progress"],
    )  # fmt: skip
    rows = result_rows(run)
    report = {
        "protocol": "fisher",
        "dataset": str(where),
        "results": rows,
        "summary": summary_rows(rows, draws=how["draws"], seed=how["seed"]),
    }
    return report, run


def _default_dataset(protocol: str) -> Path:
    root = os.environ.get("HARMONY_DATA_DIR")
    if not root:
        raise HarmonyError("Give the data's folder with --dataset, or set HARMONY_DATA_DIR.", 2)
    return Path(root) / ("fisher" if protocol == "fisher" else "forecast-tasks")


def _split_list(text: str | None) -> list[str] | None:
    return None if text is None else comma_list(text)


def _numbers(option: str, text: str | None) -> list[int] | None:
    items = _split_list(text)
    if items is None:
        return None
    try:
        numbers = [int(word) for word in items]
    except ValueError:
        raise HarmonyError(f"{option}: {text!r} is not a list of whole numbers such as 12,48.", 2) from None
    if not numbers or min(numbers) < 1:
        raise HarmonyError(f"{option}: {text!r} must name numbers of at least 1.", 2)
    return numbers
