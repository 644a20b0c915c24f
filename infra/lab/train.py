"""`harmony train`: the shipped network anew from synthetic telemetry, or adapted to a user's own series."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from infra.console.errors import HarmonyError
from infra.console.options import JsonOption, finite, print_json, say, writable_folder

if TYPE_CHECKING:
    from model.network.network import Network
    from model.training.examples import History, SyntheticShares
    from model.training.loop import Progress, Trainer


_GO_ON_RATE = 6e-4  # of what was trained before: at the first rate it would begin anew


def train(
    out: Annotated[
        Path,
        typer.Option(callback=writable_folder, help="Folder for the weights; a run that was stopped there goes on."),
    ],
    data: Annotated[
        Path | None, typer.Option(help="CSV or Parquet to adapt to; default: train anew on synthetic telemetry.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--from", help="Weights to start at: shipped, or a folder. Default: shipped with --data."),
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(help="NAME=1, 2 or 3: demand, engine or device; default: the catalogue's, else 1. Repeatable."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates. Default: 6000, with --data 300.")] = None,
    minutes: Annotated[
        float | None, typer.Option(callback=finite, min=0.05, help="Be done in this time, whatever the machine's pace.")
    ] = None,
    loads: Annotated[
        float,
        typer.Option(
            callback=finite, min=0, max=1, help="Share of the synthetic telemetry that is young request loads."
        ),
    ] = 0.0,
    patterns: Annotated[
        float,
        typer.Option(
            callback=finite,
            min=0,
            max=1,
            help="Share that is jobs at fixed times, events of one shape, and other patterns (docs/lab/network.md).",
        ),
    ] = 0.0,
    head: Annotated[
        bool, typer.Option("--head", help="With --from: train what reads a token only, at a third of the cost.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of initialisation and of the order of examples.")] = 0,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Processes that make synthetic telemetry.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the updates.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Train the forecaster anew, or adapt it to your telemetry. The weights serve by `advanced.model.weights: DIR`."""
    import torch

    torch.set_num_threads(threads)
    from model.network.checkpoint import CheckpointError
    from model.training.adapt import TooShortError
    from model.training.examples import SyntheticShares

    shares = SyntheticShares(loads, patterns)
    try:
        report = _train(out, data, base, level or [], steps, minutes, shares, head, seed, workers)
    except (CheckpointError, TooShortError) as error:
        raise HarmonyError(f"{error}.", 2) from None
    except OSError as error:
        raise HarmonyError(f"{error.filename or out}: {error.strerror or error}.") from None
    if as_json:
        print_json(report)
    else:
        say(
            f"{report['steps']} updates in {report['seconds']} s, validation {report['validation']:.4f}, "
            f"{report['bytes'] / 1e6:.1f} MB in {out}"
        )
        say(f"To use it: advanced.model.weights: {out.absolute()}")


def _train(
    out: Path,
    data: Path | None,
    base: str | None,
    levels: list[str],
    steps: int | None,
    minutes: float | None,
    shares: SyntheticShares,
    head: bool,
    seed: int,
    workers: int,
) -> dict[str, Any]:
    from model.network.checkpoint import WEIGHTS, save
    from model.training import loop as runs

    run_folder = out / "run"
    started = time.monotonic()
    begin = _begun(run_folder)
    if data is not None and sum(shares) > 0:
        raise HarmonyError("--loads and --patterns are of synthetic telemetry, and --data is not: give one of them.", 2)
    if sum(shares) > 1:
        raise HarmonyError(
            f"--loads {shares.loads:g} and --patterns {shares.patterns:g} are shares: together at most 1.", 2
        )
    if head and (base is None or data is not None):
        raise HarmonyError("--head is of a network that is trained on: give --from, and no --data.", 2)
    identity: dict[str, Any] = {"data": str(data) if data else "synthetic", "seed": seed, "from": base or "default"}
    identity |= {name: share for name, share in shares._asdict().items() if share > 0}
    identity |= {"part": "head"} if head else {}
    if data is not None:
        trainer = _adaptation(data, base, levels, steps, seed, begin)
    else:
        trainer = _synthetic(base, steps, shares, head, seed, workers, begin)
    if runs.restore_run(trainer, run_folder, identity):
        say(f"going on at step {trainer.step}")
    with _TrainingWatch(trainer, run_folder, identity) as watch:
        try:
            trainer.run(watch.saw, None if minutes is None else 60 * minutes)
        except KeyboardInterrupt:
            runs.save_run(trainer, run_folder, identity)
            raise HarmonyError(f"Stopped at step {trainer.step}; the same command goes on there.", 130) from None
    runs.save_run(trainer, run_folder, identity)
    about = {**identity, "steps": trainer.step, "validation": trainer.best, "history": trainer.history[-50:]}
    # Synthetic telemetry never repeats: the end of the run is its best, and a choice by few batches is noise.
    network = trainer.best_network() if data else trainer.averaged
    digest = save(network, out, about)
    return {
        "steps": trainer.step,
        "seconds": round(time.monotonic() - started),
        "validation": trainer.best,
        "sha256": digest,
        "bytes": (out / WEIGHTS).stat().st_size,
        "out": str(out),
    }


def _begun(run_folder: Path) -> int:
    """Step at which a run that was put away stopped; 0 without one."""
    from model.training.loop import COUNTERS

    try:
        return int(json.loads((run_folder / COUNTERS).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _synthetic(
    base: str | None, steps: int | None, shares: SyntheticShares, head: bool, seed: int, workers: int, begin: int
) -> Trainer:
    import torch

    from model.network.network import Network
    from model.network.spec import NetworkSpec
    from model.training.examples import TOKENS, synthetic_stream, synthetic_validation
    from model.training.loop import Trainer, TrainingOptions

    torch.manual_seed(seed)
    network = _network(base) if base else Network(NetworkSpec())
    options = TrainingOptions(steps=steps or 6000, seed=seed, patience=0)
    if base:
        options = replace(options, learning_rate=_GO_ON_RATE, part="head" if head else "all")
    tokens = TOKENS // 3 if head else TOKENS  # of a few weights more and smaller updates teach sooner
    examples = synthetic_stream(network.spec, begin, seed, workers, shares, tokens)
    return Trainer(network.train(), examples, synthetic_validation(network.spec, shares=shares), options)


def _adaptation(data: Path, base: str | None, levels: list[str], steps: int | None, seed: int, begin: int) -> Trainer:
    from model.training.adapt import ADAPT, start_adaptation

    histories = _histories(data, _levels(levels))
    options = replace(ADAPT, seed=seed, steps=steps or ADAPT.steps)
    return start_adaptation(_network(base or "shipped"), histories, options, start=begin)


def _network(weights: str) -> Network:
    from model.network.checkpoint import load
    from model.network.spec import weights_folder

    return load(weights_folder(weights)).network


def _levels(pairs: list[str]) -> dict[str, int]:
    levels = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not name or number not in {"1", "2", "3"}:
            raise HarmonyError(f"--level: {pair!r} is not NAME=1, NAME=2 or NAME=3.", 2)
        levels[name] = int(number)
    return levels


def _histories(data: Path, levels: dict[str, int]) -> list[History]:
    import numpy as np

    from infra.lab.series import read_series
    from model.network.spec import MAX_INDICATORS
    from model.training.examples import History
    from streams.catalogue import DEFAULT_CATALOGUE

    level_by_name = {indicator.name: indicator.level for indicator in DEFAULT_CATALOGUE} | levels
    histories = []
    for table in read_series(data):
        if len(table.indicators) > MAX_INDICATORS:
            raise HarmonyError(
                f"{data}: {len(table.indicators)} indicators; the network reads up to {MAX_INDICATORS}: leave out.",
                2,
            )
        order = sorted(range(len(table.indicators)), key=lambda k: level_by_name.get(table.indicators[k], 1))
        names = tuple(table.indicators[k] for k in order)
        values = table.values[:, order]
        never_negative = ~(np.nan_to_num(values, nan=0.0) < 0).any(axis=0)
        histories.append(
            History(
                item_id=table.item_id,
                start_ts_ms=table.start_ts_ms,
                step_ms=table.step_ms,
                values=values,
                levels=np.array([level_by_name.get(name, 1) for name in names], dtype=np.int64),
                names=names,
                lower=np.where(never_negative, 0.0, -np.inf),
                upper=np.full(len(names), np.inf),
            )
        )
    return histories


class _TrainingWatch:
    """Shows a bar with the time left, and puts the run away every few minutes."""

    def __init__(self, trainer: Trainer, folder: Path, identity: dict[str, Any], every_s: float = 120.0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._trainer, self._folder, self._identity, self._every_s = trainer, folder, identity, every_s
        self._saved = self._spoke = time.monotonic()
        self._terminal = Console(stderr=True).is_terminal and "NO_PROGRESS" not in os.environ
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}"),
            console=Console(stderr=True), disable=not self._terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("training", total=None, words="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def saw(self, progress: Progress) -> None:
        from model.training import loop as runs

        scored = "" if progress.validation is None else f", validation {progress.validation:.4f}"
        message = f"loss {progress.loss:.4f}{scored}, {progress.eta_s / 60:.1f} min left"
        self._bar.update(self._task, completed=progress.step, total=progress.steps, words=message)
        now = time.monotonic()
        if not self._terminal and now - self._spoke >= 30:
            say(f"step {progress.step} of {progress.steps}: {message}")
            self._spoke = now
        if now - self._saved >= self._every_s:
            runs.save_run(self._trainer, self._folder, self._identity)
            self._saved = now
