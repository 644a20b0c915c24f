"""`harmony.forecast` and `harmony.evaluate`: forecasts of a DataFrame, and scores of forecasters on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from infra.api.errors import InputError, python_errors
from infra.api.frames import DF, tables_of_frame, times_like, whole_number
from infra.lab.defaults import MAX_FORECAST_STEPS, MAX_STEPS

if TYPE_CHECKING:
    import pandas as pd

    from infra.lab.series import Table
    from model.contract import Forecaster

_SCORES = ("wql", "mase", "crps", "coverage_50", "coverage_90", "peak_pinball_95")


def forecast(
    df: pd.DataFrame,
    prediction_length: int = 24,
    quantile_levels: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95),
    *,
    id_column: str = "item_id",
    timestamp_column: str = "timestamp",
    target: str | Sequence[str] = "target",
    step: str | float | timedelta | None = None,
    model: str = "served",
    lower: float | None = None,
) -> pd.DataFrame:
    """Quantile forecasts of every item of a table. The same table gives the same numbers.

    Args:
        df: pandas DataFrame with one row per item and time, sorted by time within each item. Holes, empty cells and
            absent rows, are missing values: they are masked, never read as zero. Times without a zone are UTC.
        prediction_length: steps ahead, 1 to 1,000.
        quantile_levels: each between 0 and 1.
        id_column: names the item of a row; a table without it is one item.
        timestamp_column: the time of a row.
        target: the columns to forecast. They are forecast jointly.
        step: sampling step, as "15s", seconds or a timedelta. Default: the most common distance of two rows. A coarser
            step averages the rows in it.
        model: "served" (network and ridge, then baselines), "network", "pool", "ridge", "seasonal_naive" or
            "long_range". Beyond 64 steps the long-range forecaster continues.
        lower: no value is below; default: 0 for a column without a negative value.

    Returns:
        One row per item, target and step: `item_id` (if the table has it), `timestamp`, `target_name`, `mean`, and a
        column per level, named as "0.9". `timestamp` has the zone of the table's. An empty column is forecast as NaN.

    Raises:
        InputError: a column is missing or there twice, rows are out of order or doubled, a cell holds no number or
            time, an item is too short or keeps no step; the sentence names the row as `df.iloc` counts it.
    """
    import pandas as pd

    from infra.lab.forecast import forecast_tables
    from infra.lab.forecast import quantile_levels as sorted_levels

    horizon = whole_number("prediction_length", prediction_length, 1, MAX_FORECAST_STEPS)
    with python_errors():
        levels = sorted_levels(",".join(str(level) for level in quantile_levels))
        tables = tables_of_frame(df, id_column, timestamp_column, target, step)
        answers = forecast_tables(DF, tables, horizon, levels, model=model, lower=lower)
    parts = []
    for answer in answers:
        times = times_like(df, timestamp_column, answer.timestamps_ms)
        for n, name in enumerate(answer.table.indicators):
            item = {id_column: answer.table.item_id} if id_column in df.columns else {}
            columns: dict[str, Any] = {**item, timestamp_column: times, "target_name": name, "mean": answer.mean[:, n]}
            columns |= {f"{level:g}": answer.quantiles[k, :, n] for k, level in enumerate(levels)}
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def evaluate(
    df: pd.DataFrame,
    prediction_length: int = 24,
    models: Sequence[str | Forecaster] = ("snaive", "served"),
    *,
    id_column: str = "item_id",
    timestamp_column: str = "timestamp",
    target: str | Sequence[str] = "target",
    step: str | float | timedelta | None = None,
    context_length: int = 512,
    max_origins: int = 40,
    seed: int = 0,
) -> pd.DataFrame:
    """Scores of forecasters on the last fifth of every item, by rolling origins (docs/evaluation.md).

    Args:
        df, id_column, timestamp_column, target, step: as `forecast` has them.
        prediction_length: steps ahead, 1 to 64.
        models: contestants of `harmony evaluate --protocol rolling`, such as snaive, ewma, ridge, served_pool, served;
            or a forecaster of your own (docs/plugins.md), scored under the name of its class.
        context_length: rows that a forecaster reads before an origin.
        max_origins: forecasts per item, evenly spread over its last fifth.
        seed: of the bootstrap.

    Returns:
        One row per model: `model`, `wql` (weighted quantile loss), `mase`, `crps`, `coverage_50`, `coverage_90`,
        `peak_pinball_95`; `relative_wql`, the WQL in parts of the seasonal naive's, with its 90 % interval
        `relative_wql_low` and `relative_wql_high`; `num_origins`, `fit_seconds`.

    Raises:
        InputError: as `forecast` does; an unknown model, or one that cannot run here; items too short for an origin.
    """
    import pandas as pd

    from infra.lab.evaluate.models import FINE_ROWS, roster
    from infra.lab.evaluate.rolling import result_rows, run_rolling, task_of_tables
    from model.evaluation.served import rolling_contestant

    horizon = whole_number("prediction_length", prediction_length, 1, MAX_STEPS)
    context = whole_number("context_length", context_length, 2)
    cap = whole_number("max_origins", max_origins, 1)
    asked = [models] if isinstance(models, str) else list(models)
    own = {type(model).__name__: model for model in asked if not isinstance(model, str)}
    names = list(dict.fromkeys(model if isinstance(model, str) else type(model).__name__ for model in asked))
    with python_errors():
        tables = tables_of_frame(df, id_column, timestamp_column, target, step)
        contestants = roster([name for name in names if name not in own])
        for name, forecaster in own.items():
            _check_forecaster(name, forecaster, horizon)
            contestants.rolling[name] = rolling_contestant(forecaster, FINE_ROWS)
        chosen, not_run = contestants.choose("rolling", names)
        if not_run:
            raise InputError("models: " + "; ".join(f"{name} cannot run here ({why})" for name, why in not_run.items()))
        task = task_of_tables("df", tables, horizon, context, cap, _lower_bounds(tables))
        run = run_rolling(
            [task], contestants.rolling, chosen, track="local", limit=None, horizons=None, progress=lambda *_: None
        )
        if not run.cells:
            longest = max(len(table.values) for table in tables)
            raise InputError(
                f"df: no item has room for a forecast of {horizon} steps in its last fifth; the longest has {longest} "
                f"rows. Give {5 * (horizon + 1)} rows or more, or a shorter prediction_length."
            )
        rows = result_rows(run, chosen, draws=200, seed=seed)
    return pd.DataFrame([_score_row(row) for row in rows])


def _check_forecaster(name: str, forecaster: Forecaster, horizon: int) -> None:
    if not callable(getattr(forecaster, "forecast", None)):
        raise InputError(f"models: {name} has no method forecast(batch, horizon, num_paths).")
    longest = getattr(forecaster, "max_horizon", horizon)
    if longest < horizon:
        raise InputError(f"models: {name} forecasts at most {longest} steps; prediction_length is {horizon}.")


def _lower_bounds(tables: Sequence[Table]) -> list[float]:
    """0 for an indicator that is nowhere negative."""
    import numpy as np

    columns = zip(*(table.values.T for table in tables), strict=True)
    return [0.0 if all(np.nanmin(c, initial=0.0) >= 0 for c in column) else float("-inf") for column in columns]


def _score_row(row: dict[str, Any]) -> dict[str, Any]:
    low, high = row["relative_wql_interval_90"]
    return {
        "model": row["model"],
        **{name: row[name] for name in _SCORES},
        "relative_wql": row["relative"]["wql"],
        "relative_wql_low": low,
        "relative_wql_high": high,
        "num_origins": row["num_origins"],
        "fit_seconds": row["fit_seconds"],
    }
