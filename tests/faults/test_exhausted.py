"""What a worker needs of its host runs out: open files, room on disk. And a settings file goes bad while it runs."""

from __future__ import annotations

import resource
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.kafka.embedded import EmbeddedKafka
from tests.faults.nursery import Forked, Nursery
from tests.integration.pipeline import Pipeline, stop, workload_names


class Needy(Pipeline):
    """A worker out of the nursery, and what it says last."""

    nursery: Nursery
    process: Forked

    def begin(self, state_dir: Path | None = None) -> None:
        command, environment = self.worker_call("w0", "all", "", ("infra",))
        self.url = f"http://127.0.0.1:{command[command.index('--web-port') + 1]}"
        if state_dir is not None:
            environment["HARMONY_STATE_DIR"] = str(state_dir)
        self.process = self.nursery.start(command[2:], environment, self.home / "w0.log")

    def decides(self, slots: int = 3) -> None:
        self.wait_for_decisions(self.publish_slots(slots), 180, self.process)

    def last_line(self) -> str:
        return self.log_of().rstrip().rsplit("\n", 1)[-1]

    def probed(self) -> int | None:
        """Status of /livez; None = no connection."""
        try:
            with urllib.request.urlopen(f"{self.url}/livez", timeout=2) as answer:  # noqa: S310
                return int(answer.status)
        except (urllib.error.URLError, OSError):
            return None


@contextmanager
def needy_worker(broker: EmbeddedKafka, nursery: Nursery, home: Path) -> Iterator[Needy]:
    """At work, under the name of its home; gone at the end."""
    made = Needy(broker.bootstrap, f"{home.name}.", home, workload_names(2))
    made.nursery = nursery
    made.begin()
    made.decides()
    yield made
    if made.process.poll() is None:
        stop(made.process, signal.SIGKILL)
    made.producer.close(1)


@pytest.fixture
def needy(own_broker: EmbeddedKafka, nursery: Nursery, tmp_path: Path) -> Iterator[Needy]:
    with needy_worker(own_broker, nursery, tmp_path / "needy") as made:
        yield made


@pytest.mark.faults
def test_open_files_that_run_out_while_it_runs(needy: Needy, own_broker: EmbeddedKafka) -> None:
    assert needy.probed() == 200
    resource.prlimit(needy.process.pid, resource.RLIMIT_NOFILE, (3, 3))
    # What is open stays open: it goes on deciding, and can only not be asked how it is.
    needy.decides()
    assert needy.probed() is None

    # A connection that has to be made anew cannot be.
    own_broker.stop()
    own_broker.start()
    assert needy.process.wait(120) == 1
    assert needy.last_line().startswith("harmony worker stops (")
    assert "the limit of open files is reached" in needy.last_line()

    needy.begin()
    needy.decides()
    assert stop(needy.process) == 0


@pytest.mark.faults
def test_a_full_state_dir_stops_no_worker(needy: Needy, tmp_path: Path) -> None:
    stop(needy.process)
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=16", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        (small / "instances").mkdir()
        fill(small)
        needy.begin(small)
        needy.decides()
        assert needy.probed() == 200
        assert stop(needy.process) == 0
        assert "Traceback" not in needy.log_of()
        assert not list((small / "instances").iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)


def fill(directory: Path) -> None:
    """Until there is room for neither a byte nor a file."""
    try:
        for number in range(1_000_000):
            (directory / f"filler-{number}").write_bytes(bytes(8192))
    except OSError:
        pass
    try:
        for number in range(1_000_000):
            (directory / f"empty-{number}").touch()
    except OSError:
        return


@pytest.mark.faults
def test_a_settings_file_that_goes_bad_changes_nothing_before_the_next_start(needy: Needy) -> None:
    good = needy.config.read_text()
    needy.config.write_text("partitions: many\nepsilom: 0.01\n")
    needy.decides()

    assert stop(needy.process) == 0
    said = len(needy.log_of())
    needy.begin()
    assert needy.process.wait(120) == 2
    lines = needy.log_of()[said:].strip().splitlines()
    assert f"{needy.config}:1: partitions" in lines[0]
    assert f"{needy.config}:2: unknown key epsilom" in lines[1]
    assert len(lines) == 2

    needy.config.write_text(good)
    needy.begin()
    needy.decides()
    assert stop(needy.process) == 0
