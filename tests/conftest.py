"""What every test may use, and one line at the end that says what was skipped and why."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from tests.programs import extend_path

settings.register_profile("harmony", deadline=None, print_blob=True)
settings.load_profile("harmony")
extend_path()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of recorded telemetry, `$HARMONY_DATA_DIR`; the test is skipped where it is absent."""
    path = Path(os.environ.get("HARMONY_DATA_DIR", ""))
    if not os.environ.get("HARMONY_DATA_DIR") or not path.is_dir():
        pytest.skip("HARMONY_DATA_DIR names no directory")
    return path


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile what workers run before the first of them is started: its first answer must not wait for that."""
    if any(item.get_closest_marker("kafka") for item in session.items) and not session.config.option.collectonly:
        from infra.worker.warm_up import warm_up

        warm_up()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
    if reasons:
        listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skipped {sum(reasons.values())}: {listed}")
