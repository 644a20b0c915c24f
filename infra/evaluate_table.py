"""The tables of `harmony evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_rolling(summary: Sequence[Mapping[str, Any]], not_run: Mapping[str, str], *, track: str) -> None:
    """Ratios to the seasonal naive, geometric means over all pairs; below 1 is better."""
    table = Table(title=f"rolling, track {track}: ratios to the seasonal naive", title_justify="left")
    for heading in ("model", "WQL", "90 % interval", "MASE", "CRPS", "energy", "peak .95", "cov. 90 %", "|error|"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for heading in ("peak > .95", "worst", "pairs", "seconds"):
        table.add_column(heading, justify="right")
    for row in sorted(summary, key=lambda row: float(row["relative"]["wql"])):
        ratios, interval = row["relative"], row["relative_wql_interval_90"]
        table.add_row(
            row["model"],
            f"{ratios['wql']:.3f}",
            f"{interval[0]:.3f}–{interval[1]:.3f}",
            *(f"{ratios[key]:.3f}" for key in ("mase", "crps", "energy", "peak95")),
            f"{row['coverage_90']:.3f}",
            f"{row['coverage_90_error']:.3f}",
            f"{row['peak_exceedance_95']:.3f}",
            f"{row['worst_peak_exceedance_95']:.3f}",
            f"{row['pairs_forecast']}/{row['pairs']}",
            f"{row['fit_seconds']:.1f}",
        )
    _print(table, not_run)


def print_pairs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Relative WQL of every pair, one column per model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    table = Table(title="relative WQL by task and prediction length", title_justify="left")
    for heading in ("task", "H", "origins", *models):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for series, horizon in dict.fromkeys((row["series"], row["prediction_length"]) for row in rows):
        of = {row["model"]: row for row in rows if (row["series"], row["prediction_length"]) == (series, horizon)}
        cells = [f"{of[model]['relative']['wql']:.3f}" if model in of else "–" for model in models]
        table.add_row(series, str(horizon), str(max(row["num_origins"] for row in of.values())), *cells)
    _print(table, {})


def print_fisher(summary: Sequence[Mapping[str, Any]], not_run: Mapping[str, str]) -> None:
    """Means over the containers, all test windows; the published rows beside them."""
    table = Table(title="fisher: one step ahead, mean over containers, all test windows", title_justify="left")
    headings = (
        "L",
        "model",
        "mse",
        "mae",
        "crps",
        "90 % interval",
        "cov. 90 %",
        "width",
        "energy",
        "load mse",
        "load crps",
    )
    for heading in (*headings, "published rows: mse", "crps", "seconds"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for length in dict.fromkeys(row["input_length"] for row in summary):
        of = sorted((row for row in summary if row["input_length"] == length), key=lambda row: float(row["crps"]))
        for row in of:
            low, high = row["crps_interval_90"]
            table.add_row(
                str(length),
                row["model"],
                *(_number(row[key], 5) for key in ("mse", "mae", "crps")),
                f"{low:.4f}–{high:.4f}",
                *(_number(row[key], 3) for key in ("coverage_90", "width_90", "energy_score")),
                *(_number(row[key], 5) for key in ("load_mse", "load_crps")),
                *(_number(row[key], 5) for key in ("mse_published_rows", "crps_published_rows")),
                f"{row['fit_seconds']:.1f}",
            )
        if of and of[0]["published_mse"] is not None:
            blank = [""] * 8
            table.add_row(
                str(length), "(published HARMONY)", *blank[:8], "", _number(of[0]["published_mse"], 5),
                _number(of[0]["published_crps"], 5), "", style="dim",
            )  # fmt: skip
    _print(table, not_run)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _print(table: Table, not_run: Mapping[str, str]) -> None:
    console = Console()
    # A table of figures is not for wrapping: a narrow terminal or a pipe gets whole lines.
    console.print(table) if console.width >= 140 else Console(width=160).print(table)
    for name, reason in not_run.items():
        console.print(f"{name}: not run ({reason})", markup=False)
