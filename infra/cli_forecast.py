"""`harmony forecast` as a person types it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_LEVELS = "0.05,0.1,0.25,0.5,0.75,0.9,0.95"
MODELS = ("served", "network", "pool", "ridge", "seasonal_naive")


def forecast(
    file: Annotated[Path, typer.Argument(help="Telemetry: CSV (plain or gzip) or Parquet, wide or long.")],
    prediction_length: Annotated[int, typer.Option(min=1, max=64, help="Steps ahead.")] = 24,
    quantile_levels: Annotated[str, typer.Option(help="With commas, each within 0..1.")] = DEFAULT_LEVELS,
    step: Annotated[
        str | None, typer.Option(help="Sampling step such as 15s or 5m; default: inferred. Coarser averages rows.")
    ] = None,
    items: Annotated[str | None, typer.Option(help="Only these items, with commas.")] = None,
    indicators: Annotated[str | None, typer.Option(help="Only these columns, with commas.")] = None,
    holdout: Annotated[
        bool, typer.Option("--holdout", help="Forecast the last rows of the file, and compare with them.")
    ] = False,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "served",
    lower: Annotated[
        float | None, typer.Option(help="No value is below; default: 0 where the file has none below.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV, or JSON by its ending; default: CSV on stdout.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF (extra `plots`).")] = None,
) -> None:
    """Forecast the quantiles of every indicator of a telemetry file."""
    from infra.lab.forecast import ForecastJob, run_forecast

    run_forecast(
        ForecastJob(
            file, prediction_length, quantile_levels, step, items, indicators, holdout, model, lower, out, as_json, plot
        )
    )
