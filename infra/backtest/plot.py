"""The picture of a backtest: load, replicas of both, good requests by the hour."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infra.console.plots import GREY, INK, PALETTE, pyplot, save
from infra.lab.backtest.history import BIN_S, History
from infra.lab.backtest.judge import Judged
from infra.lab.replay.simulation import Lived

_OURS, _THEIRS = PALETTE[0], PALETTE[1]


def draw(where: Path, history: History, judged: Judged) -> Path:
    """Draw the first seed's lives.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    plt = pyplot(where)
    figure, axes = plt.subplots(3, 1, figsize=(9.0, 6.6), sharex=True, height_ratios=(1.0, 1.4, 1.0))
    hours = np.arange(len(history.rate_rps)) * BIN_S / 3600
    axes[0].fill_between(hours, 0, history.rate_rps, color=GREY, alpha=0.45, lw=0)
    axes[0].set_title(f"{history.workload}: requests/s")
    axes[1].step(hours, history.replicas, where="post", color=_THEIRS, lw=1.3, label="your scaler")
    axes[1].step(hours, held(judged.harmony[0], hours * 3600), where="post", color=_OURS, lw=1.3, label="HARMONY")
    axes[1].set_title("replicas, ready")
    axes[1].set_ylim(bottom=0)
    axes[1].legend(ncols=2, loc="upper left")
    for windows, color in zip(judged.good, (_THEIRS, _OURS), strict=True):
        axes[2].plot((windows.starts_s + windows.window_s / 2) / 3600, windows.good, color=color, lw=1.3)
    axes[2].axhline(judged.terms.share, color=INK, lw=0.8, ls=":")
    axes[2].set_title(f"good requests, per {judged.good[0].window_s / 60:.0f} min; dotted: the objective")
    axes[2].set_xlabel("hours")
    for axis in axes:
        axis.axvspan(0, judged.score[0] / 3600, color=GREY, alpha=0.12, lw=0)
    figure.tight_layout()
    saved: Path = save(figure, where)
    plt.close(figure)
    return saved


def held(life: Lived, at_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Ready replicas at these instants."""
    count = np.zeros(len(at_s), dtype=np.int64)
    for replica in life.replicas:
        if not math.isnan(replica.ready_s):
            end_s = min(x for x in (replica.drain_s, replica.release_s, math.inf) if not math.isnan(x))
            count += (at_s >= replica.ready_s) & (at_s < end_s)
    return count
