"""`harmony run` from its first line to its report: a real broker, a worker, a scenario that ends by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_scenario_ends_with_a_summary_a_report_and_what_comes_next(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    arguments = ["--scenario", "gpu-failure", "--speed", "600", "--duration", "2", "--report", str(report), "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARMONY_")}
    environment |= {"HARMONY_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli.app", "run", *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=360, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["trace"] == "gpu-failure"
    assert summary["slots"] == 128 + 240
    assert set(summary["shadows"]) == {"static_peak", "hpa"}
    # One workload at 3.0 an hour and GPU.
    assert summary["cost"] == pytest.approx(3.0 * summary["gpu_hours"])
    assert "scenario  gpu-failure: a third of the replicas of a service fail, twice" in done.stderr
    assert f"report    {report}" in done.stderr
    assert "next      harmony backtest --prometheus URL" in done.stderr
    text = report.read_text(encoding="utf-8")
    assert "demo/chat-70b" in text
    assert text.count("<polyline") == 4
