"""The picture of a forecast: history, fan, and the truth where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infra.console.plots import INK, TRUTH, fan, pyplot, save

if TYPE_CHECKING:
    from infra.forecast_output import ItemForecast

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
