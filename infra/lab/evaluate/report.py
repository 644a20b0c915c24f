"""Plots of `harmony evaluate`: skill, coverage and probability integral, skill by step, fan charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infra.console.output import FittedTable, TableColumn, output
from infra.lab.plots import GREY, INK, PALETTE, TRUTH, fan, pyplot, save

_BINS = 20
_MAX_MODELS = 5
_FAN_LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def draw_report(folder: Path, protocol: str, report: Mapping[str, Any], measured: Any) -> list[Path]:
    """All plots of a report; measured is what the protocol's run kept.

    Raises:
        HarmonyError: matplotlib is missing, or a file cannot be written.
    """
    if protocol == "rolling":
        tasks, run, contestants, track = measured
        best = _ranked(report["summary"], lambda row: float(row["relative"]["wql"]))
        integrals = {name: [c.integral for c in run.cells[name].values()] for name in best}
        inside = {name: [[c.inside[k] for c in run.cells[name].values()] for k in range(4)] for name in best}
        paths = [
            draw_calibration(folder / "calibration.png", integrals, inside),
            draw_skill_by_step(folder / "skill_by_step.png", report["results"], best),
            draw_pairs(folder / "skill_by_task.png", report["results"], best),
        ]
        return [*paths, draw_fans(folder / "fans.png", tasks, contestants, best[0], track)]
    lengths = list(dict.fromkeys(row["input_length"] for row in report["summary"]))
    of = [row for row in report["summary"] if row["input_length"] == lengths[0]]
    best = _ranked(of, lambda row: float(row["crps"]))
    scores = {
        name: [s for (model, _, length), s in measured.scores.items() if (model, length) == (name, lengths[0])]
        for name in best
    }
    integrals = {name: [s.integral[:, s.moving] for s in cases] for name, cases in scores.items()}
    inside = {
        name: [[s.inside[c][:, s.moving] for s in cases] for c in (0.5, 0.8, 0.9, 0.98)]
        for name, cases in scores.items()
    }
    rows = [row for row in report["results"] if row["input_length"] == lengths[0]]
    return [
        draw_calibration(folder / "calibration.png", integrals, inside),
        draw_indicators(folder / "crps_by_indicator.png", rows, best, lengths[0]),
    ]


def draw_calibration(
    where: Path, integrals: Mapping[str, Sequence[Any]], inside: Mapping[str, Sequence[Sequence[Any]]]
) -> Path:
    """Histogram of the probability integral (flat is right) and coverage against its nominal value, per model.

    Args:
        integrals: per model arrays of any shape, NaN where not scored; each array weighs the same.
        inside: per model and level (.5, .8, .9, .98) arrays of 0, 1, NaN.
    """
    plt = pyplot(where)
    names = list(integrals)
    figure, axes = plt.subplots(
        1, len(names) + 1, figsize=(2.3 * len(names) + 3.2, 2.9), layout="constrained",
        gridspec_kw={"width_ratios": [1] * len(names) + [1.35]},
    )  # fmt: skip
    edges = np.linspace(0, 1, _BINS + 1)
    highest = 1.5
    for k, (axis, name) in enumerate(zip(axes, names, strict=False)):
        shares = []
        for values in integrals[name]:
            finite_values = values[np.isfinite(values)]
            if len(finite_values):
                shares.append(np.histogram(finite_values, edges)[0] / len(finite_values) * _BINS)
        density = np.mean(shares, axis=0)
        axis.bar(edges[:-1], density, 1 / _BINS, align="edge", color=PALETTE[k], alpha=0.75, lw=0)
        axis.axhline(1, color=INK, lw=0.8, ls="--")
        axis.set_title(name)
        axis.set_xlim(0, 1)
        axis.set_xticks([0, 0.5, 1])
        highest = max(highest, 1.08 * float(density.max()))
    for axis in axes[:-1]:
        axis.set_ylim(0, highest)
        axis.set_xlabel("probability integral")
    for axis in axes[1:-1]:
        axis.tick_params(labelleft=False)
    axes[0].set_ylabel("density")
    last = axes[-1]
    levels = np.array([0.5, 0.8, 0.9, 0.98])
    for k, name in enumerate(names):
        shares = [np.nanmean([np.nanmean(v) for v in inside[name][c] if np.isfinite(v).any()]) for c in range(4)]
        last.plot(levels, np.array(shares) - levels, color=PALETTE[k], marker="o", ms=3.5, lw=1.2, label=name)
    last.axhline(0, color=INK, lw=0.8, ls="--")
    last.axhspan(-0.02, 0.02, color=GREY, alpha=0.15, lw=0)
    last.set_xlabel("nominal coverage")
    last.set_ylabel("measured - nominal")
    last.set_xticks(levels, ["50 %", "80 %", "90 %", "98 %"])
    last.tick_params(axis="x", labelsize=7.5)
    last.legend(fontsize=7.5)
    save(figure, where)
    plt.close(figure)
    return where


def draw_skill_by_step(where: Path, results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Path:
    """Skill against the seasonal naive by step ahead, one panel per prediction length, mean over the tasks."""
    plt = pyplot(where)
    lengths = sorted({row["prediction_length"] for row in results if row["prediction_length"] > 1})
    figure, axes = plt.subplots(
        1, max(1, len(lengths)), figsize=(3.4 * max(1, len(lengths)), 3), squeeze=False, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for axis, length in zip(axes[0], lengths, strict=False):
        for k, name in enumerate(names):
            curves = [
                row["skill_by_step"] for row in results if (row["model"], row["prediction_length"]) == (name, length)
            ]
            if curves:
                ratio = np.exp(np.log(np.maximum(1 - np.array(curves), 1e-3)).mean(0))
                axis.plot(np.arange(1, length + 1), 1 - ratio, color=PALETTE[k], lw=1.4, label=name)
        axis.axhline(0, color=INK, lw=0.8, ls="--")
        axis.set_title(f"{length} steps")
        axis.set_xlabel("step ahead")
    axes[0][0].set_ylabel("WQL skill against seasonal naive")
    axes[0][-1].legend(fontsize=7.5)
    save(figure, where)
    plt.close(figure)
    return where


def draw_pairs(where: Path, results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Path:
    """Relative WQL of every task and prediction length, with the 90 % interval of the best model."""
    plt = pyplot(where)
    pairs = list(dict.fromkeys((row["series"], row["prediction_length"]) for row in results))[::-1]
    figure, axis = plt.subplots(figsize=(7.5, 0.27 * len(pairs) + 1.2), layout="constrained")
    for k, name in reversed(list(enumerate(names))):
        of = {(row["series"], row["prediction_length"]): row for row in results if row["model"] == name}
        at = [(y, of[pair]) for y, pair in enumerate(pairs) if pair in of]
        axis.scatter(
            [row["relative"]["wql"] for _, row in at], [y for y, _ in at], color=PALETTE[k], s=34 if k == 0 else 18,
            zorder=3 + (k == 0), label=name, alpha=1.0 if k == 0 else 0.75, lw=0,
        )  # fmt: skip
        if k == 0:
            for y, row in at:
                axis.plot(row["relative_wql_interval_90"], [y, y], color=PALETTE[0], lw=1.6, alpha=0.5)
    axis.axvline(1, color=INK, lw=0.8, ls="--")
    axis.set_xscale("log")
    ticks = [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_yticks(range(len(pairs)), [f"{task}, H = {length}" for task, length in pairs])
    axis.set_ylim(-0.7, len(pairs) - 0.3)
    axis.set_xlabel("WQL relative to the seasonal naive (bars: 90 % interval)")
    figure.legend(*_upright(axis), loc="outside upper center", ncols=len(names), fontsize=8)
    save(figure, where)
    plt.close(figure)
    return where


def draw_indicators(where: Path, results: Sequence[Mapping[str, Any]], names: Sequence[str], length: int) -> Path:
    """CRPS per indicator, mean over the containers."""
    plt = pyplot(where)
    means: dict[str, dict[str, float]] = {}
    for name in names:
        of = [row["per_indicator"] for row in results if row["model"] == name]
        indicators = list(dict.fromkeys(key for row in of for key in row))
        means[name] = {key: float(np.mean([row[key]["crps"] for row in of if key in row])) for key in indicators}
    order = sorted(means[names[0]], key=lambda key: means[names[0]][key])
    order = [key for key in order if max(means[name].get(key, 0) for name in names) > 1e-6]
    figure, axis = plt.subplots(figsize=(7.5, 0.42 * len(order) + 1.2), layout="constrained")
    height = 0.8 / len(names)
    for k, name in enumerate(names):
        at = np.arange(len(order)) + 0.4 - (k + 0.5) * height
        axis.barh(at, [means[name][key] for key in order], height * 0.9, color=PALETTE[k], label=name)
    axis.set_yticks(range(len(order)), [key.removeprefix("container_").removeprefix("blkio.") for key in order])
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(f"CRPS, {length} rows of context (min-max scaled)")
    axis.legend(fontsize=8, loc="lower right")
    save(figure, where)
    plt.close(figure)
    return where


def draw_fans(where: Path, tasks: Sequence[Any], contestants: Mapping[str, Any], name: str, track: str) -> Path:
    """A fan chart per task at its longest prediction length: the middle origin of the first item."""
    import torch

    from model.contract import quantiles_of_paths
    from model.evaluation.rolling import RollingCase

    plt = pyplot(where)
    first_tasks = list(tasks)[:12]
    columns = min(3, len(first_tasks))
    rows = -(-len(first_tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 2.3 * rows), squeeze=False, layout="constrained")
    for axis, task in zip(axes.flat, first_tasks, strict=False):
        horizon = max(task.prediction_lengths)
        case = RollingCase(task, task.items[0], horizon, track, dict(contestants))  # type: ignore[arg-type]
        if len(case.origins) == 0:
            continue
        middle = len(case.origins) // 2
        case.origins = case.origins[middle : middle + 1]
        origin = int(case.origins[0])
        paths = torch.from_numpy(case.forecast_of(name)[0, :, :, 0]).double()  # [S, H]
        quantiles = quantiles_of_paths(paths.T, torch.tensor(_FAN_LEVELS, dtype=torch.float64)).T.numpy()
        past = np.arange(max(0, origin + 1 - 3 * horizon), origin + 1)
        newest = case.filled[origin, 0]
        axis.plot(past - origin, case.item.values[past, 0], color=INK, lw=0.9, label="history")
        fan(axis, np.arange(horizon + 1), np.concatenate((np.full((7, 1), newest), quantiles), 1), _FAN_LEVELS)
        axis.plot(np.arange(1, horizon + 1), case.targets()[0, :, 0], color=TRUTH, lw=1, ls=(0, (2, 1)), label="truth")
        axis.set_title(f"{task.name}: {task.names[0]}", fontsize=8.5)
        axis.tick_params(labelsize=7.5)
        axis.margins(x=0.01)
    for axis in axes.flat[len(first_tasks) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("steps from the origin")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8, title=name)
    save(figure, where)
    plt.close(figure)
    return where


def _upright(axis: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axis.get_legend_handles_labels()
    return handles[::-1], labels[::-1]


def _ranked(summary: Sequence[Mapping[str, Any]], figure: Any) -> list[str]:
    """The best models first, a handful."""
    return [row["model"] for row in sorted(summary, key=figure)][:_MAX_MODELS]


# The tables of `harmony evaluate`.


def print_rolling(summary: Sequence[Mapping[str, Any]], not_run: Mapping[str, str], *, track: str) -> None:
    """Ratios to the seasonal naive, geometric means over all pairs; below 1 is better."""
    headings = (
        "model", "WQL", "90 % interval", "MASE", "CRPS", "energy", "peak .95", "cov. 90 %", "|error|", "peak > .95",
        "worst", "pairs", "seconds",
    )  # fmt: skip
    table = _table(headings)
    for row in sorted(summary, key=lambda row: float(row["relative"]["wql"])):
        ratios, interval = row["relative"], row["relative_wql_interval_90"]
        table.rows.append(
            (
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
        )
    _print(f"rolling, track {track}: ratios to the seasonal naive", table, not_run)


def print_pairs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Relative WQL of every pair, one column per model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    table = _table(("task", "H", "origins", *models))
    for series, horizon in dict.fromkeys((row["series"], row["prediction_length"]) for row in rows):
        of = {row["model"]: row for row in rows if (row["series"], row["prediction_length"]) == (series, horizon)}
        cells = [f"{of[model]['relative']['wql']:.3f}" if model in of else "–" for model in models]
        table.rows.append((series, str(horizon), str(max(row["num_origins"] for row in of.values())), *cells))
    _print("relative WQL by task and prediction length", table, {})


def print_fisher(summary: Sequence[Mapping[str, Any]], not_run: Mapping[str, str]) -> None:
    """Means over the containers, all test windows; the published rows beside them."""
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
    table = _table((*headings, "published rows: mse", "crps", "seconds"))
    for length in dict.fromkeys(row["input_length"] for row in summary):
        of = sorted((row for row in summary if row["input_length"] == length), key=lambda row: float(row["crps"]))
        for row in of:
            low, high = row["crps_interval_90"]
            table.rows.append(
                (
                    str(length),
                    row["model"],
                    *(_number(row[key], 5) for key in ("mse", "mae", "crps")),
                    f"{low:.4f}–{high:.4f}",
                    *(_number(row[key], 3) for key in ("coverage_90", "width_90", "energy_score")),
                    *(_number(row[key], 5) for key in ("load_mse", "load_crps")),
                    *(_number(row[key], 5) for key in ("mse_published_rows", "crps_published_rows")),
                    f"{row['fit_seconds']:.1f}",
                )
            )
        if of and of[0]["published_mse"] is not None:
            published = (_number(of[0][key], 5) for key in ("published_mse", "published_crps"))
            table.rows.append((str(length), "(published HARMONY)", *[""] * 9, *published, ""))
    _print("fisher: one step ahead, mean over containers, all test windows", table, not_run)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _table(headings: Sequence[str]) -> FittedTable:
    """The first columns name a row, the last ones are the first to be left out."""
    return FittedTable(
        [TableColumn(h, max(0, k - 1), right=h not in {"model", "task"}) for k, h in enumerate(headings)]
    )


def _print(title: str, table: FittedTable, not_run: Mapping[str, str]) -> None:
    console = output()
    console.print(title, highlight=False)
    console.print(table, highlight=False)
    for name, reason in not_run.items():
        console.print(f"{name}: not run ({reason})", markup=False)
