"""Runs tests as a measurement: `python -m tests.claims.checks --claim TEST... --control TEST... --json FILE`.

The tests of the claim must pass. Those of the control take the capability away and pass when the check notices it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from infra.lab.report import document, load_average, write_json


def outcome(tests: Sequence[str]) -> dict[str, int]:
    """How many of these tests passed, failed and were skipped, whatever their marks.

    Raises:
        ValueError: pytest could not run them.
    """
    with tempfile.TemporaryDirectory() as home:
        report = Path(home) / "report.xml"
        options = ("-q", "-m", "", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", f"--junit-xml={report}")
        done = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], check=False, stdout=sys.stderr)
        if done.returncode not in {0, 1}:
            raise ValueError(f"pytest ended with {done.returncode}: {' '.join(tests)}")
        suite = ET.parse(report).getroot()[0]  # noqa: S314 - our own file of a moment ago
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    return {"passed": counts["tests"] - failed - counts["skipped"], "failed": failed, "skipped": counts["skipped"]}


def failures(results: Any) -> float:
    """Failed tests of the claim; infinite where none has passed, for then nothing was shown."""
    found = results["claim"]
    return float(found["failed"]) if found["passed"] else float("inf")


def faults_found(results: Any) -> float:
    """Faults that the check has noticed in the control arm; none where it has missed one."""
    found = results["control"]
    return 0.0 if found["failed"] else float(found["passed"])


def main() -> None:
    """Run both and write the record."""
    parser = argparse.ArgumentParser(prog="python -m tests.claims.checks")
    parser.add_argument("--claim", nargs="+", required=True)
    parser.add_argument("--control", nargs="+", required=True)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    loads = [load_average()]
    results = {"claim": outcome(asked.claim), "control": outcome(asked.control)}
    loads.append(load_average())
    write_json(asked.json, document("checks", {"claim": asked.claim, "control": asked.control}, results, loads))


if __name__ == "__main__":
    main()
