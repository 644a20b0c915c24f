"""The reliability diagram: stated risks against how often they came true.

`python -m infra.lab.replay.reliability_plot FILE RESULTS.json ...` draws those of several replays, told apart by load
and policy.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from infra.console.errors import HarmonyError
from infra.console.plots import GREY, INK, PALETTE, pyplot, save
from infra.lab.replay.calibration import Bin

_LEAST, _MOST = 8e-4, 1.0  # rarer is drawn at the edge: a logarithm has no zero
_TICKS = (0.001, 0.01, 0.1, 1.0)
_LONG_NAME = 20  # letters, of which no two stand beside each other


def draw(where: Path, curves: Mapping[str, Sequence[Bin]], title: str) -> Path:
    """One curve per name: realized share of missed windows over the stated one, with 95 % intervals.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    plt = pyplot(where)
    figure, axis = plt.subplots(figsize=(5.4, 4.6))
    axis.plot([_LEAST, _MOST], [_LEAST, _MOST], color=GREY, lw=0.9, ls="--")
    axis.annotate("more misses than stated", (0.0013, 0.55), color=INK, fontsize=8)
    axis.annotate("fewer", (0.35, 0.0013), color=INK, fontsize=8)
    for k, (name, bins) in enumerate(curves.items()):
        stated = np.clip([b.stated for b in bins], _LEAST, _MOST)
        realized = np.clip([b.realized for b in bins], _LEAST, _MOST)
        ends = np.clip([b.interval for b in bins], _LEAST, _MOST).reshape(-1, 2)
        colour = PALETTE[k % len(PALETTE)]
        apart = 1.03 ** (k - (len(curves) - 1) / 2)  # so that intervals of several curves do not hide each other
        axis.vlines(stated * apart, ends[:, 0], ends[:, 1], color=colour, lw=1.0, alpha=0.45)
        axis.plot(stated * apart, realized, color=colour, lw=1.0, alpha=0.8, label=name)
        axis.scatter(stated * apart, realized, s=[6 + 2 * b.count**0.5 for b in bins], color=colour, zorder=3)
    axis.set(xscale="log", yscale="log", xlim=(_LEAST, _MOST * 1.1), ylim=(_LEAST, _MOST * 1.1))
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_ticks(_TICKS, [f"{100 * tick:g} %" for tick in _TICKS])
    axis.set(xlabel="stated P(miss)", ylabel="windows missed")
    columns = 1 if max(map(len, curves), default=0) > _LONG_NAME else 2
    axis.set_title(title, pad=8 + 14 * math.ceil(len(curves) / columns))
    axis.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns)
    figure.tight_layout()
    saved: Path = save(figure, where)
    plt.close(figure)
    return saved


def curves_of(results: Sequence[Path]) -> dict[str, list[Bin]]:
    """From what `harmony replay --json` wrote, named by load and lead time, and by policy where there are several.

    Raises:
        HarmonyError: a file that is none of these.
    """
    curves = {}
    for path in results:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            name = f"{body['trace'].rpartition('_')[2]}, {body['lead_time_s']['mean']:g} s"
            told = body["calibration"]
            for policy, said in told.items():
                curve = f"{name}, {policy}" if len(told) > 1 else name
                curves[curve] = [Bin(**(b | {"interval": tuple(b["interval"])})) for b in said["bins"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HarmonyError(f"{path}: not a result of `harmony replay --json` ({error}).", 2) from None
    return curves


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        if len(arguments) < 2:
            raise HarmonyError("Give the file to draw to, then results of `harmony replay --json`.", 2)
        draw(Path(arguments[0]), curves_of([Path(a) for a in arguments[1:]]), "Is the stated risk right?")
    except HarmonyError as error:
        print(f"harmony: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
