"""How every plot looks, and the one place that asks for matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.console.errors import HarmonyError

INK, GREY, TRUTH = "#22303c", "#8a97a3", "#111111"
FAN = "#1f77b4"
PALETTE = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#a6761d", "#66a61e", "#666666", "#17becf", "#bcbd22")
FORMATS = {".png", ".svg", ".pdf"}


def pyplot(where: Path) -> Any:
    """matplotlib.pyplot without a display, with the house style.

    Raises:
        HarmonyError: matplotlib is missing, or the file's ending names no format.
    """
    if where.suffix.lower() not in FORMATS:
        raise HarmonyError(f"{where}: a plot must end in .png, .svg or .pdf.", 2)
    try:
        import matplotlib as mpl
    except ImportError:
        raise HarmonyError("Plots need matplotlib: install the extra `plots`.", 2) from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 150,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": GREY,
            "axes.labelcolor": INK,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.grid": True,
            "grid.color": "#e6eaee",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "svg.hashsalt": "harmony",
        }
    )
    return plt


def save(figure: Any, where: Path) -> Path:
    """Write the figure; the folder is made."""
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(where, bbox_inches="tight")
    except OSError as error:
        raise HarmonyError(f"{where}: the plot cannot be written ({error.strerror}).") from None
    return where


def fan(axis: Any, x: Any, quantiles: Any, levels: Any, color: str = FAN) -> None:
    """Central intervals as shades, the widest lightest, and the median as a line.

    Args:
        quantiles: [Q, H], ascending in the levels.
    """
    pairs = [(k, len(levels) - 1 - k) for k in range(len(levels) // 2)]
    for depth, (low, high) in enumerate(pairs):
        if abs(levels[low] + levels[high] - 1) > 1e-6:
            continue
        label = f"{levels[high] - levels[low]:.0%} interval"
        shade = 0.14 + 0.16 * depth
        axis.fill_between(x, quantiles[low], quantiles[high], color=color, alpha=min(shade, 0.6), lw=0, label=label)
    middle = min(range(len(levels)), key=lambda k: abs(levels[k] - 0.5))
    axis.plot(x, quantiles[middle], color=color, lw=1.6, label="median")
