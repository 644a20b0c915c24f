"""HARMONY as shipped and the tuned HPA on several draws of each day: `python -m tests.bench.replay_draws DATA FOLDER`.

The table of all cells (`tests.bench.replay_cells`) has one draw of a day's arrivals, for a day takes minutes of tuning.
What one draw more or less changes is seen here, where nothing of HARMONY is tuned.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from infra.lab.report import document, load_average, write_json
from tests.bench.replay_cells import LEADS_S, LOADS, against_hpa, replayed

DAYS: Final = ("worldcup-50", "worldcup-55", "servegen-mid", "servegen-image")
_DRAWS: Final = 5
_POLICIES: Final = ("--policies", "harmony,hpa")


def draws_of(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Attainment and GPU-hours of both, draw by draw, and the intervals of HARMONY less the HPA over paired windows."""
    rows = cell["policies"]
    told = {
        policy: {name: [row[name] for row in rows if row["policy"] == policy] for name in ("attainment", "gpu_hours")}
        for policy in ("harmony", "hpa")
    }
    return told | {"against_hpa": against_hpa(rows, "harmony")}


def _cell(data: Path, folder: Path, load: str, lead_s: int) -> dict[str, Any]:
    asked = ("--oracle", "0", "--seeds", str(_DRAWS), *_POLICIES)
    its = replayed(data, folder, load, lead_s, ("-draws", asked))
    sys.stderr.write(f"{load}, {lead_s} s\n")
    return draws_of(its)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and store it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay_draws")
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--leads", nargs="*", type=int, choices=LEADS_S, default=list(LEADS_S))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    wanted = [(load, lead_s) for load in DAYS for lead_s in asked.leads]
    loads = [load_average()]
    with ThreadPoolExecutor(asked.jobs) as pool:
        made = list(pool.map(lambda one: _cell(asked.data, asked.folder, *one), wanted))
    loads.append(load_average())
    results = {f"{load}, {lead_s} s": its for (load, lead_s), its in zip(wanted, made, strict=True)}
    job = {"leads_s": asked.leads, "loads": {load: LOADS[load] for load in DAYS}, "draws": _DRAWS}
    write_json(asked.json, document("replay_draws", job, results, loads))


if __name__ == "__main__":
    main()
