"""Stores the summary of `harmony evaluate` or `harmony ablate` as a record.

`python -m tests.claims.evaluation COMMAND OPTION... --json FILE`; the options are those of the command. The data are
looked for in `$HARMONY_DATA_DIR`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.lab.report import document, load_average, write_json


def by_model(report: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a report, one entry a contestant; each was asked at one length of context.

    Raises:
        ValueError: a contestant could not run here.
    """
    if report["not_run"]:
        raise ValueError(f"not run: {report['not_run']}")
    return {row["model"]: row for row in report["summary"]}


def by_arm(report: Mapping[str, Any]) -> dict[str, Any]:
    """The arms of an ablation by their names, and all runs."""
    return {"arms": {row["arm"]: row for row in report["arms"]}, "runs": report["runs"]}


def main(arguments: Sequence[str]) -> None:
    """Run the command and write the record."""
    at = arguments.index("--json")
    where, options = Path(arguments[at + 1]), [*arguments[:at], *arguments[at + 2 :]]
    loads = [load_average()]
    with tempfile.TemporaryDirectory() as home:
        report = Path(home) / "report.json"
        command = [sys.executable, "-m", "infra.cli.app", *options, "--json", str(report)]
        subprocess.run(command, check=True)
        found = json.loads(report.read_bytes())
    loads.append(load_average())
    summary = by_arm(found) if options[0] == "ablate" else by_model(found)
    write_json(where, document(options[0], {"command": " ".join(options)}, summary, loads))


if __name__ == "__main__":
    main(sys.argv[1:])
