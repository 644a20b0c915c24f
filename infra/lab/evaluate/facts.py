"""Made-up series on which forecasters were seen to fail, with the figure that shows it: a bar for later networks.

    python -m infra.lab.evaluate.facts --models network,served,served_pool [--json OUT]

* Nightly job: it runs at the same time of every night, and a week of nights lies in the context. The error of the
  median while it runs, by that of yesterday's value. With steps of a minute the nights are in the ten-minute means
  only. With steps of ten minutes half of them are in the fine rows too.
* Flat: a level with 1 % noise, 128 steps of 15 s. The width of the 90 % interval by the level.
* Young: a smooth cycle of 12 minutes, 64 and 128 steps of 15 s. The share of the next four minutes that lies within the
  90 % interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from infra.console.errors import HarmonyError
from infra.lab.evaluate.models import CHECKPOINT, FINE_ROWS, SERVED_MODELS, checkpoint_forecaster
from model.contract import Forecaster, quantiles_of_paths
from model.evaluation.rolling import Floats, Indicator
from model.evaluation.served import context_batch

_DRAWS: Final = 40
_PATHS: Final = 512
_MINUTE_MS: Final = 60_000
_STEP_MS: Final = 15_000
_NIGHTS: Final = 7
_DAY_MINUTES: Final = 1_440
_JOB_MINUTES: Final = slice(130, 150)
_BEFORE_MINUTES: Final = 10  # from the origin to the job
_DEFAULT_MODELS: Final = "network,served,served_pool,served_naive"


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure of one forecaster. `goal` is what is right."""

    fact: str
    model: str
    value: float
    goal: str


Rng = np.random.Generator


def nightly_job(forecaster: Forecaster, minutes: int) -> float:
    """Error of the median while the job runs, in parts of that of yesterday's value, with steps of so many minutes."""
    day, before = _DAY_MINUTES // minutes, _BEFORE_MINUTES // minutes
    start, length = _JOB_MINUTES.start // minutes, (_JOB_MINUTES.stop - _JOB_MINUTES.start) // minutes
    origin, job = _NIGHTS * day + start - before, slice(before, before + length)
    ours, naive = [], []
    for rng in _draws():
        t = np.arange((_NIGHTS + 1) * day)
        in_job = (t % day >= start) & (t % day < start + length)
        load = (10 + 30 * in_job) * (1 + 0.05 * rng.normal(size=len(t)))
        quantiles = _quantiles(forecaster, load[:origin], minutes * _MINUTE_MS, before + length)
        truth, yesterday = load[origin:][job], load[origin - day :][job]
        ours.append(np.abs(quantiles[job, 1] - truth).mean())
        naive.append(np.abs(yesterday - truth).mean())
    return float(np.mean(ours) / np.mean(naive))


def flat_band(forecaster: Forecaster) -> float:
    """Width of the 90 % interval of a level with 1 % noise, in parts of the level."""
    widths = []
    for rng in _draws():
        load = 50 * (1 + 0.01 * rng.normal(size=128))
        quantiles = _quantiles(forecaster, load, _STEP_MS, 16)
        widths.append((quantiles[:, 2] - quantiles[:, 0]).mean() / 50)
    return float(np.mean(widths))


def young_coverage(forecaster: Forecaster, rows: int) -> float:
    """Share of values within the 90 % interval, four minutes ahead of a short history of a smooth cycle."""
    inside = []
    for rng in _draws():
        t = np.arange(rows + 16) + rng.integers(0, 48)
        load = (20 + 10 * np.sin(2 * np.pi * t / 48)) * (1 + 0.03 * rng.normal(size=len(t)))
        quantiles = _quantiles(forecaster, load[:rows], _STEP_MS, 16)
        inside.append(((load[rows:] >= quantiles[:, 0]) & (load[rows:] <= quantiles[:, 2])).mean())
    return float(np.mean(inside))


FACTS: Final[dict[str, tuple[Callable[[Forecaster], float], str]]] = {
    "nightly job at 1 min": (lambda forecaster: nightly_job(forecaster, 1), "<= 1.1"),
    "nightly job at 10 min": (lambda forecaster: nightly_job(forecaster, 10), "<= 1.1"),
    "flat, width of the 90 % band": (flat_band, "<= .06, exact .033"),
    "64 rows, in the 90 % band": (lambda forecaster: young_coverage(forecaster, 64), ".88 to .92"),
    "128 rows, in the 90 % band": (lambda forecaster: young_coverage(forecaster, 128), ".88 to .92"),
}


def measured(models: Sequence[str]) -> list[Fact]:
    """Every figure of every model.

    Raises:
        HarmonyError: an unknown model (exit code 2).
    """
    found = []
    for name in models:
        if name not in SERVED_MODELS and name.partition(":")[0] != CHECKPOINT:
            raise HarmonyError(f"--models: {name!r} is none of {CHECKPOINT}[:FOLDER], {', '.join(SERVED_MODELS)}.", 2)
        forecaster = SERVED_MODELS[name]() if name in SERVED_MODELS else checkpoint_forecaster(name)
        found += [Fact(fact, name, measure(forecaster), goal) for fact, (measure, goal) in FACTS.items()]
    return found


def _draws() -> list[Rng]:
    return [np.random.default_rng(seed) for seed in range(_DRAWS)]


def _quantiles(forecaster: Forecaster, load: Floats, step_ms: int, horizon: int) -> Floats:
    """Quantiles .05, .5, .95 of every step, [H, 3]."""
    batch = context_batch(
        load[:, None],
        [len(load) - 1],
        item_id="fact",
        start_ts_ms=0,
        step_ms=step_ms,
        indicators=[Indicator("request.arrival_rate", lower=0.0)],
        fine_rows=FINE_ROWS,
        context_rows=len(load),
    )
    paths = forecaster.forecast(batch, horizon, _PATHS).paths[0, :, :, 0]
    levels = torch.tensor([0.05, 0.5, 0.95])
    return np.asarray(quantiles_of_paths(paths.T, levels), dtype=np.float64)


def main() -> None:
    """Entry of `python -m infra.lab.evaluate.facts`."""
    arguments = argparse.ArgumentParser(description="Made-up series on which forecasters were seen to fail.")
    arguments.add_argument("--models", default=_DEFAULT_MODELS, help="With commas.")
    arguments.add_argument("--json", type=Path, help="File to write.")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    facts = measured([name.strip() for name in options.models.split(",")])
    for fact in facts:
        print(f"{fact.fact:36} {fact.model:14} {fact.value:7.3f}   goal {fact.goal}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(fact) for fact in facts], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
