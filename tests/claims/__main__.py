"""Measures claims and says which hold: `python -m tests.claims` (`make claims`).

Without `--all` only measurements with a form that needs no hours are made, the others are judged by their last record.
`out/claims.json` holds what was found. With `--record` the measured records replace the stored ones, and all pages are
written; that needs a quiet machine and the commands in full.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from infra.lab.report import document, load_average, print_table, write_json
from tests.bench.stored import RESULTS, Document, results
from tests.claims.claim import Claim, Judgement, Measurement
from tests.claims.registry import claims

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out/claims.json"


class Measured:
    """Records of this run, and of the last one for what this run does not measure."""

    def __init__(self, home: Path, *, in_full: bool) -> None:
        self.home, self.in_full = home, in_full
        self.made: dict[str, Document] = {}
        self.failed: dict[str, str] = {}

    def measure(self, measurement: Measurement, command: str) -> None:
        """Run a command; keeps its record, or why there is none."""
        where = self.home / f"{measurement.record}.json"
        data = os.environ.get("HARMONY_DATA_DIR", "")
        folder = ROOT / "out" / measurement.record
        if "{data}" in command and not data:
            self.failed[measurement.record] = "HARMONY_DATA_DIR is not set"
            return
        words = [word.format(data=data, folder=folder) for word in shlex.split(command)]
        program = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "infra.cli.app"]
        sys.stderr.write(f"== {command}\n")
        done = subprocess.run([*program, *words[1:], "--json", str(where)], check=False, stdout=sys.stderr, cwd=ROOT)
        if done.returncode or not where.exists():
            self.failed[measurement.record] = f"exit code {done.returncode}"
            return
        self.made[measurement.record] = json.loads(where.read_bytes())

    def record(self, measurement: Measurement) -> Document:
        """The record of this run, else the stored one."""
        return self.made[measurement.record] if measurement.record in self.made else results(measurement.record)

    def judge(self, claim: Claim) -> tuple[Judgement | None, str]:
        """The judgement, and of which day it is; None where a command of the claim has failed.

        A short form may lack a figure: then the stored record is judged.
        """
        names = [measurement.record for measurement in claim.measurements]
        for name in names:
            if name in self.failed:
                return None, self.failed[name]
        if names[0] in self.made:
            try:
                return claim.judge(self.record), "measured"
            except (LookupError, StopIteration, ValueError) as error:
                if self.in_full:
                    return None, f"the record lacks it: {error!r}"
        return claim.judge(lambda measurement: results(measurement.record)), f"of {results(names[0])['date']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the record; 1 when a claim that is not open fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.claims")
    parser.add_argument("ids", nargs="*", metavar="CLAIM", help="only these")
    parser.add_argument("--all", action="store_true", help="also those that take hours, and every command in full")
    parser.add_argument("--record", action="store_true", help="store what was measured, and write the pages")
    parser.add_argument("--list", action="store_true", help="measure nothing: judge by the stored records")
    asked = parser.parse_args(arguments)
    chosen = _chosen(asked.ids)
    if asked.record and not asked.all:
        parser.error("--record stores full commands only: add --all")
    loads = [load_average()]
    with tempfile.TemporaryDirectory(prefix="harmony-claims-") as home:
        measured = Measured(Path(home), in_full=asked.all)
        for measurement in _measurements(chosen):
            command = measurement.command if asked.all else measurement.quick
            if command is not None and not asked.list:
                measured.measure(measurement, command)
                loads.append(load_average())
        found = [(claim, *measured.judge(claim)) for claim in chosen]
        if asked.record:
            for name in measured.made:
                shutil.copyfile(Path(home) / f"{name}.json", RESULTS / f"{name}.json")
            subprocess.run([sys.executable, "-m", "tests.claims.pages"], check=True, cwd=ROOT)
    rows = [_row(*one) for one in found]
    print_table(("claim", "figure", "bar", "control", "", ""), rows)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    write_json(OUT, document("claims", {"all": asked.all}, [_stored(*one) for one in found], loads))
    return int(any(its is None or its.verdict == "FAIL" for _, its, _ in found))


def _chosen(ids: Sequence[str]) -> list[Claim]:
    known = {claim.id: claim for claim in claims()}
    unknown = [name for name in ids if name not in known]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: no such claim; there are {', '.join(known)}")
    return [known[name] for name in ids] if ids else list(known.values())


def _measurements(chosen: Iterable[Claim]) -> list[Measurement]:
    """Each measurement once."""
    return list(dict.fromkeys(measurement for claim in chosen for measurement in claim.measurements))


def _row(claim: Claim, its: Judgement | None, how: str) -> tuple[str, ...]:
    if its is None:
        return (claim.id, "-", claim.bar_text, "-", "FAIL", how)
    return (claim.id, its.shown, claim.bar_text, its.control_shown, its.verdict, how)


def _stored(claim: Claim, its: Judgement | None, how: str) -> dict[str, Any]:
    figures = {} if its is None else {"figure": its.figure, "control": its.control_figure}
    return {
        "claim": claim.id,
        "bar": claim.bar_text,
        **figures,
        "verdict": "FAIL" if its is None else its.verdict,
        "how": how,
    }


if __name__ == "__main__":
    sys.exit(main())
