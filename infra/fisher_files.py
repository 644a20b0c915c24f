"""Reading the Fisher containers: `container*.csv[.gz]`, a date and eleven indicators."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from infra.console.errors import HarmonyError
from infra.lab.series import Table, read_series


def read_containers(dataset: Path, names: Iterable[str] | None = None) -> list[tuple[str, Table]]:
    """Name and table of each container, in the order of their numbers.

    Raises:
        HarmonyError: no such folder or container, or a container with gaps.
    """
    if not dataset.is_dir():
        raise HarmonyError(f"--dataset: there is no directory {dataset}.", 2)
    found = {path.name.split(".")[0]: path for path in dataset.glob("container*.csv*")}
    if not found:
        raise HarmonyError(f"{dataset} holds no container*.csv or container*.csv.gz.", 2)
    ordered = sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    wanted = ordered if names is None else list(names)
    unknown = [name for name in wanted if name not in found]
    if unknown:
        raise HarmonyError(f"--tasks: {dataset} has no {', '.join(unknown)}; it has {', '.join(ordered)}.", 2)
    tables = []
    for name in wanted:
        table = read_series(found[name])[0]
        if not np.isfinite(table.values).all():
            raise HarmonyError(f"{found[name]}: has gaps; the Fisher protocol knows none.", 2)
        tables.append((name, table))
    return tables
