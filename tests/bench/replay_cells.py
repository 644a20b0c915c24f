"""Every policy on six loads at three lead times: `python -m tests.bench.replay_cells DATA FOLDER`.

DATA holds the data sets (docs/replay.md names them), FOLDER gets what `harmony replay` says of each cell; cells that
are there already are not run again, so that one may stop and go on. At the end one table: of how many cells a policy
kept the objective, and at what cost. `--jobs N` runs N cells side by side, `--json FILE` stores the table. With
`--loads` only these are run, and of what FILE held the other loads stay, with the day on which they were run. With
`--alone` only HARMONY and the HPA are run, by whose windows HARMONY is judged, the HPA as it was tuned. The rows of
the others and the oracle's hours are then those of FILE: in a replay no policy knows of another, so a change of
HARMONY does not change them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from infra.lab.replay.cells import LOADS as NAMED_LOADS
from infra.lab.replay.results import Window, paired_windows
from infra.lab.report import document, load_average, print_table, write_json

LEADS_S = (30, 100, 300)
OBJECTIVE = 0.99
LOADS: dict[str, tuple[str, ...]] = {
    name: NAMED_LOADS[name].arguments("{data}")
    for name in ("conversation", "ramp", "worldcup-50", "worldcup-55", "servegen-mid", "servegen-image")
}
_ORACLE = "100"
# What stands in the name of a cell's file, and how its replay is asked for.
_ALL = ("", ("--oracle", _ORACLE))
_ALONE = ("--oracle", "0", "--policies", "harmony,hpa")


@dataclass(frozen=True, slots=True)
class Scored:
    """One policy on one cell, means over seeds; `ratio` is of GPU-hours, to the best schedule found.

    Of HARMONY also the mean stated P(miss), the share of windows missed with its 95 % interval, and those of its
    attainment less the tuned HPA's, and of its GPU-hours by the HPA's, less one.
    """

    attainment: float
    worst_window: float
    gpu_hours: float
    ratio: float
    switches_per_hour: float
    mean_replicas: float
    settings: str
    stated: float | None = None
    realized: tuple[float, float, float] | None = None
    against_hpa: tuple[float, float, float, float] | None = None

    @property
    def worse_than_hpa(self) -> bool:
        """Whether it surely misses more than the HPA, and surely costs more."""
        return self.against_hpa is not None and self.against_hpa[1] < 0.0 < self.against_hpa[2]

    @property
    def kept(self) -> bool:
        """Whether the objective was."""
        return self.attainment >= OBJECTIVE


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy over all of its cells: how many kept the objective, median and largest ratio, worst attainment,
    median of moves an hour."""

    policy: str
    cells: int
    kept: int
    ratio: float
    most: float
    worst: float
    switches_per_hour: float


def scored(cell: Mapping[str, Any], bound: float | None = None) -> dict[str, Scored]:
    """Policies of a cell, from the document of `harmony replay --json`.

    Args:
        bound: GPU-hours of the oracle; None: those of this cell.
    """
    if bound is None:
        bound = fmean(b["gpu_hours"] for b in cell["oracle"]["lead_constrained"].values())
    rows, told = cell["policies"], cell["calibration"]
    found = {}
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy]
        hours = fmean(row["gpu_hours"] for row in mine)
        found[policy] = Scored(
            fmean(row["attainment"] for row in mine),
            min(row["worst_window_attainment"] for row in mine),
            hours,
            hours / bound,
            fmean(row["switches_per_hour"] for row in mine),
            fmean(row["mean_replicas"] for row in mine),
            mine[0]["params"],
            *(
                (told[policy]["stated"], tuple(told[policy]["realized_and_interval"]), against_hpa(rows, policy))
                if policy in told
                else ()
            ),
        )
    return found


def against_hpa(rows: Sequence[Mapping[str, Any]], policy: str) -> tuple[float, float, float, float] | None:
    """Intervals over paired windows of all seeds; None without an HPA, or where windows are not told."""
    windows = {
        (row["policy"], row["seed"]): [Window(*its) for its in row["windows"]]
        for row in rows
        if row["policy"] in (policy, "hpa") and row.get("windows")
    }
    seeds = sorted(seed for name, seed in windows if name == policy and ("hpa", seed) in windows)
    found = paired_windows([windows[policy, seed] for seed in seeds], [windows["hpa", seed] for seed in seeds])
    return None if found is None else (*found.attainment, *found.gpu_hours_ratio)


def standings(cells: Mapping[str, Mapping[str, Scored]]) -> list[Standing]:
    """A standing per policy: who keeps more of its cells first, then who costs less."""
    found = []
    for policy in dict.fromkeys(policy for cell in cells.values() for policy in cell):
        mine = [cell[policy] for cell in cells.values() if policy in cell]
        ratios = [its.ratio for its in mine]
        found.append(
            Standing(
                policy,
                len(mine),
                sum(its.kept for its in mine),
                median(ratios),
                max(ratios),
                min(its.attainment for its in mine),
                median(its.switches_per_hour for its in mine),
            )
        )
    return sorted(found, key=lambda its: (-its.kept / its.cells, its.ratio))


def summary(cells: Mapping[str, Mapping[str, Scored]]) -> list[list[str]]:
    """A row of text per policy, best first."""
    return [
        [
            its.policy,
            f"{its.kept} of {its.cells}",
            f"{its.ratio:.2f}",
            f"{its.most:.2f}",
            f"{its.switches_per_hour:.1f}",
        ]
        for its in standings(cells)
    ]


def replayed(data: Path, folder: Path, load: str, lead_s: int, asked: tuple[str, tuple[str, ...]]) -> Any:
    """What `harmony replay --json` says of a cell with these options; from the folder if it is there."""
    name, effort = asked
    where = folder / f"{load}-{lead_s}{name}.json"
    if not where.exists():
        options = [word.format(data=data) for word in LOADS[load]]
        command = [sys.executable, "-m", "infra.cli.app", "replay", *options, "--lead-time", str(lead_s), *effort]
        unfinished = where.with_suffix(".part")
        subprocess.run([*command, "--json", str(unfinished)], check=True, stdout=subprocess.DEVNULL)
        unfinished.replace(where)
    return json.loads(where.read_bytes())


def _cell(
    data: Path, folder: Path, load: str, lead_s: int, beside: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Scored]:
    """`beside`: what is known of the cell, where HARMONY alone is run."""
    asked = _ALL
    if beside is not None:
        found = (f"hpa.{setting}" for setting in beside["hpa"]["settings"].split())
        asked = "-alone", (*_ALONE, *(word for setting in found for word in ("--set", setting)))
    its = replayed(data, folder, load, lead_s, asked)
    sys.stderr.write(f"{load}, {lead_s} s\n")
    return scored(its) if beside is None else with_harmony(beside, its)


def with_harmony(beside: Mapping[str, Mapping[str, Any]], alone: Mapping[str, Any]) -> dict[str, Scored]:
    """A cell as stored, with HARMONY as it is now in the oracle's hours of then."""
    known = {policy: Scored(**its) for policy, its in beside.items()}
    one = next(iter(known.values()))
    return known | scored(alone, one.gpu_hours / one.ratio)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay_cells")
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS))
    parser.add_argument("--alone", action="store_true")
    asked = parser.parse_args(arguments)
    stored = json.loads(asked.json.read_bytes()) if asked.json is not None and asked.json.exists() else None
    if asked.alone and stored is None:
        parser.error("--alone needs the --json FILE that holds the other policies")
    asked.folder.mkdir(parents=True, exist_ok=True)
    wanted = [(load, lead_s) for load in asked.loads for lead_s in LEADS_S]
    loads = [load_average()]
    with ThreadPoolExecutor(asked.jobs) as pool:
        names = [f"{load}, {lead_s} s" for load, lead_s in wanted]
        beside = [stored["results"][name] if asked.alone else None for name in names]
        made = pool.map(lambda one: _cell(asked.data, asked.folder, *one[0], one[1]), zip(wanted, beside, strict=True))
        cells = dict(zip(names, made, strict=True))
    loads.append(load_average())
    print_table(("policy", "cells kept", "median of oracle", "most", "moves/h"), summary(cells))
    if asked.json is not None:
        results = {name: {policy: asdict(its) for policy, its in cell.items()} for name, cell in cells.items()}
        made = document("replay_cells", {"leads_s": LEADS_S, "loads": LOADS}, results, loads)
        write_json(asked.json, with_others(made, asked.loads, stored, alone=asked.alone))


def with_others(
    made: dict[str, Any], loads: Sequence[str], stored: Mapping[str, Any] | None, *, alone: bool = False
) -> dict[str, Any]:
    """A document of these loads, with what was stored of others.

    `measured` says of which day each load is, and `harmony` of which HARMONY's rows are; with `alone` the former stays
    of these loads too.
    """
    days = dict.fromkeys(loads, made["date"])
    of_harmony, cells = dict(days), dict(made["results"])
    if stored is not None:
        before = {load: stored["job"].get("measured", {}).get(load, stored["date"]) for load in LOADS}
        others = [load for load in LOADS if load not in days]
        cells |= {name: cell for name, cell in stored["results"].items() if name.split(", ")[0] in others}
        of_harmony |= {load: stored["job"].get("harmony", before).get(load, before[load]) for load in others}
        days = (days | before) if alone else (before | days)
    wanted = [f"{load}, {lead_s} s" for load in LOADS for lead_s in LEADS_S]
    told = {"measured": days, "harmony": of_harmony}
    told = {what: {load: its[load] for load in LOADS if load in its} for what, its in told.items()}
    results = {name: cells[name] for name in wanted if name in cells}
    return made | {"job": made["job"] | told, "results": results}


if __name__ == "__main__":
    main()
