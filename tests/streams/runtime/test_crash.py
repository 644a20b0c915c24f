"""The last words of a worker: one sentence with cause and remedy, and the exit code of a life to be begun anew."""

from __future__ import annotations

import subprocess
import sys

import pytest


def ended_by(error: str) -> subprocess.CompletedProcess[str]:
    program = f"from streams.runtime.app import *; crash('forecast of pages/1', {error})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("MemoryError()", "no memory is left (MemoryError); raise the limit"),
        ("MemoryError('Unable to allocate 8 GiB')", "no memory is left (Unable to allocate 8 GiB); raise the limit"),
        ("TopicAuthorizationFailedError('pages')", "Kafka refuses this worker's user"),
        (
            "UnsupportedCodecError('Libraries for lz4 compression codec not found')",
            "records are compressed, by a publisher",
        ),
        ("ContractBroken('the log has a gap')", "the log has a gap"),
    ],
)
def test_a_known_cause_is_one_line(error: str, said: str) -> None:
    ended = ended_by(error)
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"harmony worker stops (forecast of pages/1): {said}")
    assert ended.returncode == 1


def test_a_bug_keeps_its_trace() -> None:
    ended = ended_by("ZeroDivisionError('division by zero')")
    assert (
        ended.stderr.splitlines()[-1]
        == "harmony worker stops (forecast of pages/1): ZeroDivisionError: division by zero"
    )
    assert ended.returncode == 1
