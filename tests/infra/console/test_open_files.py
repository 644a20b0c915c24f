"""Open files: the limit is raised as far as it goes, and a process that gets too few says so and does not start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from infra.console.host import ENOUGH, LEAST
from streams.runtime.app import descriptor_limit


def started_with(soft: int, hard: int, *words: str) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, preexec_fn=limit, timeout=100
    )


def test_too_few_open_files_are_refused_at_start_in_one_sentence() -> None:
    done = started_with(32, 64, "-m", "infra", "worker", "--brokers", "127.0.0.1:9")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f"may open 64 files and connections at once, a worker needs {LEAST}" in line


def test_the_limit_is_raised_as_far_as_the_system_lets_it() -> None:
    told = "from infra.console.host import *; import resource; ensure_open_files(); print(resource.getrlimit(7))"
    for soft, hard, raised in ((64, 200, 200), (64, 10_000, ENOUGH), (6_000, 10_000, 6_000)):
        if hard > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
            continue
        assert started_with(soft, hard, "-c", told).stdout.strip() == f"({raised}, {hard})"


def test_exhaustion_is_told_from_health() -> None:
    assert descriptor_limit() is None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        said = descriptor_limit()
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said is not None
    assert "limit of open files is reached" in said
