"""A picture of some minutes of a replay: load, ready replicas and misses, reactive against predictive.

    harmony replay --rate hourly --policies hpa,harmony ... --log-dir LOGS
    python -m infra.lab.replay.picture LOGS/hpa-0 LOGS/harmony-0 OUT.svg --start 3600 --length 1800 --slo-ttft 2

It reads the logs of two runs (`requests.csv`, `replicas.csv`) and draws an SVG that stands alone. Seconds count from
the start of the run, its lead-in included.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.console.svg import COLOURS, DASHES, LEFT, WIDTH, Frame, steps

_BIN_S: Final = 10.0
_LOAD_HEIGHT, _REPLICA_HEIGHT, _MISS_HEIGHT = 130, 190, 130
_TOP: Final = 30
_STYLE: Final = (
    "svg{--ink:#1c2833;--soft:#5b6770;--line:#d5dbe1;--paper:#fff}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6eaee;--soft:#9aa7b2;--line:#3a4550;--paper:#14191f}}"
    "text{fill:var(--soft);font:12px system-ui,sans-serif}.name{font-weight:600}.axis{stroke:var(--line)}"
)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What the picture needs of one run, by bins of ten seconds.

    Attributes:
        load_rps, missed: float64 [K], arrivals per second, and the share of them outside the SLO; 0 where none came.
        ready: float64 [K], replicas that serve.
    """

    load_rps: Floats
    missed: Floats
    ready: Floats


def read_run(folder: Path, start_s: float, length_s: float, slo_ttft: float, slo_tpot: float) -> LoggedRun:
    """The bins of a run's logs.

    Raises:
        HarmonyError: the folder is no log of a run.
    """
    num = round(length_s / _BIN_S)
    edges = start_s + _BIN_S * np.arange(num + 1)
    try:
        with (folder / "requests.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if start_s <= float(row["arrival_s"]) < edges[-1]]
        with (folder / "replicas.csv").open(newline="", encoding="utf-8") as file:
            lives = [
                (_time(row["ready_s"]), min(_time(row["drain_s"]), _time(row["release_s"])))
                for row in csv.DictReader(file)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise HarmonyError(f"{folder}: holds no logs of a replay ({error!r}); make them with --log-dir.", 2) from None
    arrivals = np.array([float(row["arrival_s"]) for row in rows])
    bad = np.array([not _good(row, slo_ttft, slo_tpot) for row in rows], dtype=np.float64)
    count = np.histogram(arrivals, edges)[0].astype(np.float64)
    missed = np.histogram(arrivals, edges, weights=bad)[0] / np.maximum(count, 1.0)
    middles = (edges[:-1] + edges[1:]) / 2
    ready = np.array([sum(begin <= t < end for begin, end in lives) for t in middles], dtype=np.float64)
    return LoggedRun(count / _BIN_S, missed, ready)


def _time(text: str) -> float:
    return float(text) if text else float("inf")


def _good(row: dict[str, str], slo_ttft: float, slo_tpot: float) -> bool:
    if not row["finish_s"] or not row["first_token_s"]:
        return False
    first_s, finish_s = float(row["first_token_s"]), float(row["finish_s"])
    tpot_s = (finish_s - first_s) / max(int(row["output_tokens"]) - 1, 1)
    return first_s - float(row["arrival_s"]) <= slo_ttft and tpot_s <= slo_tpot


def draw(reactive: LoggedRun, predictive: LoggedRun) -> str:
    """The SVG: load, ready replicas of both, and the share of requests that each misses."""
    length_s = len(reactive.load_rps) * _BIN_S
    at_s = _BIN_S * (np.arange(len(reactive.load_rps)) + 0.5)
    runs = {"hpa": reactive, "harmony": predictive}
    load = Frame(length_s, float(reactive.load_rps.max()) * 1.1 or 1.0, _LOAD_HEIGHT, _TOP)
    replicas = Frame(
        length_s, float(max(r.ready.max() for r in runs.values())) + 1, _REPLICA_HEIGHT, _TOP + _LOAD_HEIGHT
    )
    misses = Frame(length_s, 100.0, _MISS_HEIGHT, _TOP + _LOAD_HEIGHT + _REPLICA_HEIGHT)
    parts = [_key("hpa", "reactive: an HPA, untuned", LEFT), _key("harmony", "predictive: HARMONY", LEFT + 230)]
    parts += [load.axes("requests/s"), replicas.axes("replicas that serve"), misses.axes("requests outside the SLO, %")]
    parts.append(load.line(_pairs(at_s, reactive.load_rps), "var(--ink)", 1.2))
    for name, run in runs.items():
        width = 2.4 if name == "harmony" else 1.8
        parts.append(replicas.line(steps(_pairs(at_s, run.ready)), COLOURS[name], width, DASHES[name]))
        parts.append(misses.line(_pairs(at_s, 100 * run.missed), COLOURS[name], width, DASHES[name]))
    height = misses.y_from + misses.height
    label = "Load, replicas that serve and requests outside the SLO at a surge, under an HPA and under HARMONY"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f'<style>{_STYLE}</style><rect width="{WIDTH}" height="{height}" fill="var(--paper)"/>{"".join(parts)}</svg>\n'
    )


def _key(name: str, text: str, x: int) -> str:
    line = f'<line x1="{x}" y1="14" x2="{x + 34}" y2="14" stroke="{COLOURS[name]}" stroke-width="3" '
    return f'{line}stroke-dasharray="{DASHES[name] or "none"}"/><text class="name" x="{x + 40}" y="18">{text}</text>'


def _pairs(at_s: NDArray[np.floating[Any]], values: NDArray[np.floating[Any]]) -> list[tuple[float, float]]:
    return list(zip(at_s.tolist(), values.tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw; exit code 2 for a folder that is no log."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("reactive", type=Path, help="folder of the logs of one run")
    parser.add_argument("predictive", type=Path, help="folder of the logs of the other")
    parser.add_argument("out", type=Path, help="SVG to write")
    parser.add_argument("--start", type=float, required=True, help="second of the run at which the picture begins")
    parser.add_argument("--length", type=float, default=1800.0, help="seconds that it shows")
    parser.add_argument("--slo-ttft", type=float, default=2.0)
    parser.add_argument("--slo-tpot", type=float, default=0.2)
    a = parser.parse_args(arguments)
    try:
        runs = [read_run(folder, a.start, a.length, a.slo_ttft, a.slo_tpot) for folder in (a.reactive, a.predictive)]
    except HarmonyError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    a.out.write_text(draw(*runs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
