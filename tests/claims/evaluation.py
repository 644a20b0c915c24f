"""Stores the summary of `harmony evaluate` as a record: `python -m tests.claims.evaluation --json FILE OPTION...`.

The options are those of `harmony evaluate`; the data are looked for in `$HARMONY_DATA_DIR`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.console.files import write_json
from infra.lab.bench.report import document, load_average


def by_model(report: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a report, one entry a contestant; each was asked at one length of context.

    Raises:
        ValueError: a contestant could not run here.
    """
    if report["not_run"]:
        raise ValueError(f"not run: {report['not_run']}")
    return {row["model"]: row for row in report["summary"]}


def main(arguments: Sequence[str]) -> None:
    """Run the command and write the record."""
    at = arguments.index("--json")
    where, options = Path(arguments[at + 1]), [*arguments[:at], *arguments[at + 2 :]]
    loads = [load_average()]
    with tempfile.TemporaryDirectory() as home:
        report = Path(home) / "report.json"
        command = [sys.executable, "-m", "infra.cli.app", "evaluate", *options, "--json", str(report)]
        subprocess.run(command, check=True)
        found = json.loads(report.read_bytes())
    loads.append(load_average())
    write_json(where, document("evaluate", {"options": " ".join(options)}, by_model(found), loads))


if __name__ == "__main__":
    main(sys.argv[1:])
