"""What the host does to a worker while it works: it takes the memory away, and it sets the clock."""

from __future__ import annotations

import resource
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.faults.conftest import Hunt
from tests.faults.exactness import check_everything

pytestmark = pytest.mark.faults


def address_space(pid: int) -> int:
    """Bytes that the process has mapped."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def test_memory_that_runs_out_changes_nothing(hunt: Hunt) -> None:
    hunted = hunt()
    hunted.begin()
    hunted.wait_for_work()

    # Not one more page: whoever asks next is told no, in Python, in numpy, or in a library that cannot bear it.
    worker = hunted.running.pop("w0")
    mapped = address_space(worker.pid)
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (mapped, mapped))
    deadline = monotonic() + 120
    while worker.poll() is None and monotonic() < deadline:
        hunted.publish_slot()
        sleep(0.2)
    assert worker.poll() not in (None, 0), f"it goes on, or says that all is well: {worker.poll()}"
    print(f"without memory it ended with {worker.poll()}: {hunted.log_of().rstrip().rsplit(chr(10), 1)[-1]}")

    hunted.begin()
    hunted.wait_for_work()
    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)


@pytest.mark.parametrize("illness", ["clock-ahead", "clock-behind"])
def test_a_clock_that_jumps_by_an_hour_and_back_changes_nothing(hunt: Hunt, tmp_path: Path, illness: str) -> None:
    hunted = hunt()
    jumped = tmp_path / "jumped"
    # Not out of the nursery, whose modules hold the true clock already.
    hunted.running["w0"] = hunted.start_worker("w0", program=("tests.faults.sick_worker", illness, str(jumped)))
    hunted.wait_for_work()

    jumped.touch()
    for _ in range(3):
        hunted.publish_slots(3)
        hunted.wait_for_work()
    jumped.unlink()
    hunted.publish_slots(3)
    hunted.wait_for_work()
    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)
