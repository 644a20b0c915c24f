"""Each kind of standstill, for real: noticed in time, said in one last line, and the process is gone with exit code 1.

`pytest -s` prints how long each took to be noticed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from infra.console.host import free_port
from infra.kafka.embedded import EmbeddedKafka
from tests.integration.pipeline import Pipeline, stop, workload_names

NOTICED_S = 30.0
SLACK_S = 6.0  # between the fault and the moment when the test sees the process gone, on a loaded machine
SICK = Path(__file__).with_name("sick_worker.py")
ROOT = SICK.parents[2]


class Patient(Pipeline):
    """A worker with an illness to come."""

    process: subprocess.Popen[bytes]

    def start_sick(self, illness: str, *, settings: str = "") -> None:
        if settings:
            self.config.write_text(self.config.read_text() + settings)
        self.mark = self.home / "ill"
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [
            sys.executable, str(SICK), illness, str(self.mark), "worker", "--config", str(self.config),
            "--brokers", self.bootstrap, "--instance-id", "w0", "--web-port", str(port), "--no-ticks", "--accelerated",
            "--end-with-parent",
        ]  # fmt: skip
        environment = {**os.environ, "HARMONY_STATE_DIR": str(self.home), "PYTHONPATH": str(ROOT)}
        with (self.home / "w0.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def fall_ill(self) -> float:
        self.mark.touch()
        return monotonic()

    def get_well(self) -> None:
        self.mark.unlink()

    def noticed(self, since_s: float, within_s: float = NOTICED_S) -> tuple[float, str]:
        """Seconds until the process was gone, and its last line."""
        try:
            code = self.process.wait(within_s + SLACK_S - (monotonic() - since_s))
        except subprocess.TimeoutExpired:
            pytest.fail(f"still runs after {monotonic() - since_s:.0f} s\n{self.log_of()[-3000:]}")
        seconds = monotonic() - since_s
        last = self.log_of().rstrip().rsplit("\n", 1)[-1]
        print(f"noticed after {seconds:.1f} s: {last}")
        assert code == 1, last
        return seconds, last

    def live(self) -> bool | None:
        """What /livez says; None = it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/livez", timeout=2) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code == 200
        except (urllib.error.URLError, OSError):
            return None


@pytest.fixture
def patient(own_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Patient]:
    patient = Patient(own_broker.bootstrap, "patient.", tmp_path / "patient", workload_names(2))
    yield patient
    if patient.process.poll() is None:
        patient.process.send_signal(signal.SIGCONT)
        stop(patient.process, signal.SIGKILL)
    patient.producer.close(1)


def begin(patient: Patient, illness: str, settings: str = "") -> None:
    patient.start_sick(illness, settings=settings)
    patient.wait_for_decisions(patient.publish_slots(3), 240)


@pytest.mark.faults
def test_a_blocked_event_loop_is_noticed(patient: Patient) -> None:
    begin(patient, "loop")
    since = patient.fall_ill()
    patient.publish_slot()
    sleep(2)
    assert patient.live() is None, "a blocked loop answers no probe"
    seconds, last = patient.noticed(since)
    assert seconds < 5 + SLACK_S
    assert "watchdog event_loop" in last
    assert "sick_worker.py" in last, "it says where the loop is"


@pytest.mark.faults
def test_commits_that_do_not_advance_are_noticed(patient: Patient) -> None:
    begin(patient, "commit")
    since = patient.fall_ill()
    patient.publish_slot()
    _, last = patient.noticed(since)
    assert "watchdog commit" in last
    assert "although offset" in last


@pytest.mark.faults
def test_a_consumer_that_fetches_nothing_is_noticed(patient: Patient) -> None:
    begin(patient, "fetch")
    since = patient.fall_ill()
    patient.publish_slot()
    _, last = patient.noticed(since)
    assert "watchdog progress" in last
    assert "records wait" in last


@pytest.mark.faults
def test_a_restore_that_hangs_is_noticed(patient: Patient) -> None:
    patient.start_sick("restore")
    patient.fall_ill()
    deadline = monotonic() + 180
    while patient.live() is None:
        assert monotonic() < deadline, patient.log_of()
        sleep(0.1)
    _, last = patient.noticed(monotonic(), 45)
    assert "watchdog restore" in last
    assert "read nothing for" in last


@pytest.mark.faults
def test_a_dead_producer_is_noticed_at_once(patient: Patient) -> None:
    begin(patient, "producer")
    since = patient.fall_ill()
    patient.publish_slot()
    seconds, last = patient.noticed(since)
    assert seconds < SLACK_S
    assert last.startswith("harmony worker stops (")


@pytest.mark.faults
def test_a_crash_of_the_framework_is_exit_code_1_with_its_reason(patient: Patient) -> None:
    begin(patient, "crash")
    _, last = patient.noticed(patient.fall_ill())
    assert last == "harmony worker stops (crash): RuntimeError: the consumer is ill"


@pytest.mark.faults
def test_a_long_fit_is_forgiven_and_an_endless_one_is_not(patient: Patient) -> None:
    begin(patient, "forecast", "  watchdogs: {stall_s: 5, forecast_s: 20}\n")
    since = patient.fall_ill()
    patient.publish_slots(3)
    seconds, last = patient.noticed(since)
    assert seconds > 20
    assert "has worked on one batch for" in last


@pytest.mark.faults
def test_a_broker_that_pauses_is_waited_for_and_one_that_stays_silent_is_not(
    patient: Patient, own_broker: EmbeddedKafka
) -> None:
    begin(patient, "loop")
    broker = broker_pid(own_broker)
    os.kill(broker, signal.SIGSTOP)
    sleep(15)
    assert patient.process.poll() is None
    os.kill(broker, signal.SIGCONT)
    patient.wait_for_decisions(patient.publish_slots(2), 240)
    os.kill(broker, signal.SIGSTOP)
    since = monotonic()
    try:
        _, last = patient.noticed(since)
    finally:
        os.kill(broker, signal.SIGCONT)
    assert "harmony worker stops (watchdog " in last
    assert "check the brokers" in last


@pytest.mark.faults
def test_a_paused_process_and_an_idle_topic_are_no_standstill(patient: Patient) -> None:
    begin(patient, "loop")
    patient.process.send_signal(signal.SIGSTOP)
    sleep(40)
    patient.process.send_signal(signal.SIGCONT)
    sleep(35)
    assert patient.process.poll() is None, patient.log_of()[-3000:]
    assert patient.live()
    patient.wait_for_decisions(patient.publish_slots(2), 240)


def broker_pid(kafka: EmbeddedKafka) -> int:
    """Of the JVM; what the broker object started is its guardian."""
    assert kafka._process is not None
    guardian = kafka._process.pid
    (jvm,) = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
    return int(jvm)
