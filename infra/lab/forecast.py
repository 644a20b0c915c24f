"""`harmony forecast FILE`: quantile forecasts of any telemetry file, with a plot where one is wanted."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.console.text import parse_duration_s, some
from infra.lab.defaults import MAX_STEPS, MODELS
from infra.lab.holdout import HoldoutScore, HoldoutSums, score_lines
from infra.lab.plots import INK, TRUTH, fan, pyplot, save
from infra.lab.series import Table, read_series
from model.baselines.long_range import LongRangeForecaster, SplicedForecaster
from model.evaluation.rolling import Floats, Indicator

# A forecast of one item as a value, and how it is written: CSV or JSON.


@dataclass(frozen=True, slots=True)
class ItemForecast:
    """One item's forecast.

    Attributes:
        origin: the last row read.
        timestamps_ms: [H], start of each forecast step.
        quantiles: [Q, H, N].
        mean: [H, N].
        peak: [Q, N], quantiles of the largest value over the horizon.
        truth: [H, N] or None; NaN where the file has no value.
    """

    table: Table
    origin: int
    timestamps_ms: list[int]
    levels: tuple[float, ...]
    quantiles: Floats
    mean: Floats
    peak: Floats
    truth: Floats | None
    source: str


def write_csv(stream: TextIO, answers: Sequence[ItemForecast]) -> None:
    """One row per item, step and indicator: mean and quantiles."""
    writer = csv.writer(stream, lineterminator="\n")
    levels = [f"{level:g}" for level in answers[0].levels]
    writer.writerow(["item_id", "timestamp", "indicator", "mean", *levels])
    for answer in answers:
        for h, moment in enumerate(answer.timestamps_ms):
            for n, name in enumerate(answer.table.indicators):
                cells = [answer.mean[h, n], *answer.quantiles[:, h, n]]
                writer.writerow([answer.table.item_id, _iso(moment), name, *(_cell(value) for value in cells)])


def write_json(stream: TextIO, answers: Sequence[ItemForecast], scores: Sequence[HoldoutScore] = ()) -> None:
    """One object, with the quantiles of the peak and, where rows were held out, the truth and the scores."""
    held_out = {"scores": [score.to_dict() for score in scores]} if scores else {}
    json.dump({"forecasts": [_as_dict(answer) for answer in answers], **held_out}, stream)
    stream.write("\n")


def _as_dict(answer: ItemForecast) -> dict[str, Any]:
    table = answer.table
    return {
        "item_id": table.item_id,
        "source": answer.source,
        "step_s": table.step_ms / 1000,
        "origin": _iso(table.start_ts_ms + answer.origin * table.step_ms),
        "prediction_length": len(answer.timestamps_ms),
        "quantile_levels": list(answer.levels),
        "timestamps": [_iso(moment) for moment in answer.timestamps_ms],
        "indicators": {
            name: {
                "mean": _numbers(answer.mean[:, n]),
                "quantiles": [_numbers(row) for row in answer.quantiles[:, :, n]],
                "peak_quantiles": _numbers(answer.peak[:, n]),
                **({"truth": _numbers(answer.truth[:, n])} if answer.truth is not None else {}),
            }
            for n, name in enumerate(table.indicators)
        },
    }


def _numbers(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _cell(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""


def _iso(moment_ms: int) -> str:
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds" if moment_ms % 1000 else "seconds").replace("+00:00", "Z")


if TYPE_CHECKING:
    from torch import Tensor

    from model.contract import Forecaster

_NUM_PATHS = 1024
_FINE_ROWS = 512
_MIN_ROWS = 8
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class ForecastJob:
    """What to forecast, as the command line has it."""

    file: Path
    prediction_length: int
    quantile_levels: str
    step: str | None
    items: str | None
    indicators: str | None
    windows: int  # stretches that are held out
    model: str
    lower: float | None
    out: Path | None
    as_json: bool
    plot: Path | None


def run_forecast(job: ForecastJob) -> None:
    """Read, forecast, and write where the job says.

    Raises:
        HarmonyError: a file or an option that cannot be used.
    """
    levels = quantile_levels(job.quantile_levels)
    indicators = None if job.indicators is None else [word.strip() for word in job.indicators.split(",")]
    tables = _chosen(job.file, read_series(job.file, parse_step_ms(job.step), None, indicators), job.items, indicators)
    for line in _remarks(tables):
        say(line)
    horizon = job.prediction_length
    answers = forecast_tables(
        job.file, tables, horizon, levels, holdout=job.windows > 0, model=job.model, lower=job.lower
    )
    scores = _scores(job, tables) if job.windows else []
    if job.plot is not None:
        say(f"wrote {draw_forecasts(job.plot, answers)}")
    for line in score_lines(scores, horizon) if scores else ():
        say(line)
    if job.out is not None:
        try:
            with job.out.open("w", encoding="utf-8", newline="") as stream:
                write_json(stream, answers, scores) if job.out.suffix == ".json" else write_csv(stream, answers)
        except OSError as error:
            raise HarmonyError(f"--out: cannot write {job.out} ({error.strerror}).") from None
        say(f"wrote {job.out}")
    elif job.as_json:
        write_json(sys.stdout, answers, scores)
    else:
        write_csv(sys.stdout, answers)


def forecast_tables(
    where: Path,
    tables: Sequence[Table],
    horizon: int,
    levels: tuple[float, ...],
    *,
    holdout: bool = False,
    model: str = "served",
    lower: float | None = None,
) -> list[ItemForecast]:
    """A forecast of each table.

    Args:
        where: what errors call the source of the tables.
        horizon: steps ahead, 1 to `MAX_FORECAST_STEPS`.
        levels: of the quantiles, ascending.
        holdout: forecast the last `horizon` rows.
        model: one of `MODELS`.
        lower: no value is below; None: 0 for a column that has none below.

    Raises:
        HarmonyError: an unknown model, or a table that is too short.
    """
    forecaster = _forecaster(model, horizon)
    return [_forecast_item(where, table, forecaster, horizon, levels, holdout, lower) for table in tables]


def _forecast_item(
    file: Path,
    table: Table,
    forecaster: Forecaster,
    horizon: int,
    levels: tuple[float, ...],
    holdout: bool,
    lower: float | None,
) -> ItemForecast:
    import torch

    from model.contract import quantiles_of_paths

    torch.set_num_threads(1)
    num = len(table.values) - (horizon if holdout else 0)
    observed = int(np.isfinite(table.values[: max(num, 0)]).sum(0).max(initial=0))
    least = max(_MIN_ROWS, forecaster.min_context)
    if observed < least:
        after = f" before the {horizon} held out" if holdout else ""
        raise HarmonyError(
            f"{file}: item {table.item_id!r} has {max(observed, 0)} observed rows{after}; a forecast of {horizon} "
            f"steps needs {least}. Give a longer file, a finer --step or a shorter --prediction-length.",
            2,
        )
    context = table.values[:num]
    low = [
        _lower(column, lower, f"item {table.item_id!r}, {name}")
        for name, column in zip(table.indicators, context.T, strict=True)
    ]
    paths, source = _paths(file, table, forecaster, horizon, num, low)
    empty = ~np.isfinite(context).any(0)
    at = torch.tensor(levels, dtype=torch.float64)
    quantiles = quantiles_of_paths(paths.permute(1, 2, 0), at).permute(2, 0, 1).numpy()
    peak = quantiles_of_paths(paths.amax(1).T, at).T.numpy()
    mean = paths.mean(0).numpy()
    for values in (quantiles, peak, mean):
        values[..., empty] = np.nan
    return ItemForecast(
        table=table,
        origin=num - 1,
        timestamps_ms=[table.start_ts_ms + (num + k) * table.step_ms for k in range(horizon)],
        levels=levels,
        quantiles=quantiles,
        mean=mean,
        peak=peak,
        truth=table.values[num : num + horizon] if holdout else None,
        source=source,
    )


def _paths(
    file: Path, table: Table, forecaster: Forecaster, horizon: int, num: int, lower: Sequence[float]
) -> tuple[Tensor, str]:
    """Paths [S, H, N] of the steps after the first `num` rows, and what made them."""
    from model.evaluation.served import context_batch

    batch = context_batch(
        table.values[:num],
        [num - 1],
        item_id=table.item_id,
        start_ts_ms=table.start_ts_ms,
        step_ms=table.step_ms,
        indicators=[Indicator(name, lower=bound) for name, bound in zip(table.indicators, lower, strict=True)],
        fine_rows=_FINE_ROWS if horizon <= MAX_STEPS and not isinstance(forecaster, LongRangeForecaster) else num,
        context_rows=num,
    )
    try:
        result = forecaster.forecast(batch, horizon, _NUM_PATHS)
    except ValueError as error:
        raise HarmonyError(f"{file}: item {table.item_id!r} cannot be forecast: {error}.", 2) from None
    return result.paths[0].double(), result.sources[0]


def _scores(job: ForecastJob, tables: Sequence[Table]) -> list[HoldoutScore]:
    """Scores over the stretches held out, of the model, the seasonal naive and the pool.

    Stretches with too few rows before them are left out. The pool reaches 64 steps: beyond, both are scored over these.
    """
    horizon = job.prediction_length
    sums: list[tuple[Forecaster, list[HoldoutSums]]] = []
    for name in dict.fromkeys((job.model, "seasonal_naive", "pool")):
        lengths = [MAX_STEPS] if name == "pool" and horizon > MAX_STEPS else [horizon]
        if name == job.model and horizon > MAX_STEPS:
            lengths = [horizon, MAX_STEPS]
        sums.append((_forecaster(name, max(lengths)), [HoldoutSums(name, steps) for steps in lengths]))
    for table in tables:
        for window in range(job.windows):
            num = len(table.values) - (window + 1) * horizon
            context = table.values[: max(num, 0)]
            low = [_lower(column, job.lower, f"item {table.item_id!r}") for column in context.T]
            for forecaster, parts in sums:
                if int(np.isfinite(context).sum(0).max(initial=0)) < max(_MIN_ROWS, forecaster.min_context):
                    continue
                paths, _ = _paths(job.file, table, forecaster, max(part.steps for part in parts), num, low)
                for part in parts:
                    part.add(table.item_id, paths.numpy(), table.values[num : num + horizon], context, table.step_ms)
    return [part.score() for _, parts in sums for part in parts]


def _lower(column: Floats, given: float | None, where: str) -> float:
    finite_values = column[np.isfinite(column)]
    if given is not None:
        if np.isnan(given) or (len(finite_values) and finite_values.max() < given):
            raise HarmonyError(f"--lower {given:g}: no value of {where} lies there or above. Give a lower bound.", 2)
        return given
    return 0.0 if len(finite_values) and finite_values.min() >= 0 else float("-inf")


def _forecaster(name: str, horizon: int) -> Forecaster:
    """The model; beyond 64 steps its first 64, and then the long-range forecaster."""
    if name == "long_range":
        return LongRangeForecaster()
    if horizon <= MAX_STEPS:
        return _short_forecaster(name)
    if name == "seasonal_naive":
        return LongRangeForecaster(("yesterday",), source="seasonal_naive")
    return SplicedForecaster(_short_forecaster(name), LongRangeForecaster(), _FINE_ROWS)


def _short_forecaster(name: str) -> Forecaster:
    from model.baselines.ridge import RidgeForecaster
    from model.baselines.smoothing import SeasonalNaiveForecaster
    from model.network.checkpoint import CheckpointError
    from model.network.forecaster import baselines, network_forecaster, serving_forecaster

    if name == "served":
        return serving_forecaster(on_refusal=say)
    if name == "pool":
        return baselines()
    if name == "ridge":
        return RidgeForecaster()
    if name == "seasonal_naive":
        return SeasonalNaiveForecaster()
    if name != "network":
        raise HarmonyError(f"--model: {name!r} is none of {', '.join(MODELS)}.", 2)
    try:
        return network_forecaster()
    except CheckpointError as error:
        raise HarmonyError(f"--model network: {error}.", 2) from None


def _chosen(file: Path, tables: list[Table], items: str | None, indicators: list[str] | None) -> list[Table]:
    names = None if items is None else [word.strip() for word in items.split(",")]
    if names is not None:
        missing = [name for name in names if name not in {table.item_id for table in tables}]
        if missing:
            raise HarmonyError(
                f"--items: {file} has no {', '.join(missing)}; it has "
                f"{some([t.item_id for t in tables], _MAX_LISTED)}.",
                2,
            )
        tables = [table for table in tables if table.item_id in names]
    if indicators is None:
        return tables
    all_names = {name for table in tables for name in (*table.indicators, *table.unread)}
    missing = [name for name in indicators if name not in all_names]
    if missing:
        raise HarmonyError(
            f"--indicators: {file} has no {', '.join(missing)}; it has {some(sorted(all_names), _MAX_LISTED)}.", 2
        )
    return [_only(table, indicators) for table in tables]


def _only(table: Table, indicator_names: list[str]) -> Table:
    from dataclasses import replace

    names = tuple(name for name in indicator_names if name in table.indicators)
    return replace(table, indicators=names, values=table.values[:, [table.indicators.index(name) for name in names]])


def _remarks(tables: list[Table]) -> list[str]:
    """What the reader should know of how the file was read."""
    step = tables[0].step_ms / 1000
    rows = sum(len(table.values) for table in tables)
    lines = [f"step {step:g} s; {len(tables)} item{'s' * (len(tables) > 1)}, {rows} rows"]
    gaps = sum(table.num_gaps for table in tables)
    empty = sum(int(np.isnan(table.values).sum()) for table in tables)
    if empty:
        lines.append(f"{empty} missing cells are masked ({gaps} rows of the grid are absent)")
    jitter = max(table.jitter_ms for table in tables)
    if jitter:
        lines.append(f"timestamps lie up to {jitter} ms off the grid and were moved onto it")
    nameless = tables[0].num_nameless
    if nameless:
        lines.append(
            f"{nameless} column{'s' * (nameless > 1)} without a name {'are' if nameless > 1 else 'is'} not read"
        )
    merged = sum(table.num_merged for table in tables)
    if merged:
        lines.append(f"{merged} rows were averaged into steps of {step:g} s")
    return lines


def quantile_levels(text: str) -> tuple[float, ...]:
    """Levels with commas between, sorted and distinct.

    Raises:
        HarmonyError: one is no number between 0 and 1.

    >>> quantile_levels("0.9, 0.1, 0.9")
    (0.1, 0.9)
    """
    try:
        levels = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        levels = ()
    if not levels or not all(0 < level < 1 for level in levels):
        raise HarmonyError(f"--quantile-levels: {text!r} must list numbers between 0 and 1, such as 0.1,0.5,0.9.", 2)
    return levels


def parse_step_ms(text: str | None) -> int | None:
    """Milliseconds of a step such as 15s; None where none is given.

    Raises:
        HarmonyError: it is no duration, or shorter than a millisecond.
    """
    if text is None:
        return None
    try:
        step_ms = round(1000 * parse_duration_s(text))
    except ValueError as error:
        raise HarmonyError(f"--step: {error}.", 2) from None
    if step_ms < 1:
        raise HarmonyError("--step: must be at least a millisecond.", 2)
    return step_ms


# The picture of a forecast: history, fan, and the truth where there is one.


_MAX_PANELS = 12
_HISTORY_HORIZONS = 5


def draw_forecasts(where: Path, answers: Sequence[ItemForecast]) -> Path:
    """One panel per item and indicator, the first dozen of them.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    plt = pyplot(where)
    panels = [(answer, n) for answer in answers for n in range(len(answer.table.indicators))]
    left_out = max(0, len(panels) - _MAX_PANELS)
    panels = panels[:_MAX_PANELS]
    columns = 1 if len(panels) <= 3 else 2
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(9.5 if columns == 1 else 12, 2.6 * rows), squeeze=False, layout="constrained"
    )
    for axis, (answer, n) in zip(axes.flat, panels, strict=False):
        _panel(axis, answer, n, many=len(answers) > 1)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=8)
    if left_out:
        figure.text(0.01, 0.0, f"{left_out} more not drawn", fontsize=7, color=INK)
    save(figure, where)
    plt.close(figure)
    return where


def _panel(axis: Any, answer: ItemForecast, n: int, *, many: bool) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    table, horizon = answer.table, len(answer.timestamps_ms)
    first = max(0, answer.origin + 1 - max(_HISTORY_HORIZONS * horizon, 60))
    past = _times(table.timestamps_ms[first : answer.origin + 1].tolist())
    ahead = _times(answer.timestamps_ms)
    history = table.values[first : answer.origin + 1, n]
    axis.plot(past, history, color=INK, lw=1.0, label="history")
    newest = np.flatnonzero(np.isfinite(history))
    quantiles = answer.quantiles[:, :, n]
    x = ahead
    if len(newest):  # the fan grows out of the last value
        x = [past[newest[-1]], *ahead]
        quantiles = np.concatenate((np.full((len(quantiles), 1), history[newest[-1]]), quantiles), axis=1)
    fan(axis, x, quantiles, answer.levels)
    if answer.truth is not None:
        axis.plot(ahead, answer.truth[:, n], color=TRUTH, lw=1.0, ls=(0, (2, 1)), label="truth")
    axis.axvline(past[-1], color=INK, lw=0.6, ls=":")
    axis.set_title(f"{table.item_id}: {table.indicators[n]}" if many else table.indicators[n])
    axis.margins(x=0.01)
    locator = AutoDateLocator(maxticks=8)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _times(moments_ms: Sequence[int]) -> list[datetime]:
    return [datetime.fromtimestamp(moment / 1000, UTC) for moment in moments_ms]
