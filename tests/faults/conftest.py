"""Fault tests: real broker, real workers, real signals; a table at the end says what was counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Protocol

import pytest

from infra.kafka.embedded import EmbeddedKafka
from streams.config import StreamConfig
from tests.brokers import started_broker
from tests.faults.exactness import Proof
from tests.faults.hunted import Hunted
from tests.faults.kept_state import Change, Copy, copied, kept
from tests.faults.nursery import Nursery
from tests.faults.tally import Row, note, table, take
from tests.integration.pipeline import STREAM, Pipeline

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            if "memory" not in item.path.name:
                item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1800))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    take(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = table()
    if lines:
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """HARMONY_TEST_SEED, printed so that a failure can be run again."""
    value = int(os.environ.get("HARMONY_TEST_SEED", "1"))
    print(f"seed {value}; again: make faults SEED={value} ARGS='-k {request.node.name}'")
    return value


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker of the test's own, which may be stopped and killed."""
    with started_broker(tmp_path / "kafka") as kafka:
        yield kafka


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Forks workers that have imported everything."""
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


class Hunt(Protocol):
    def __call__(self, stream: StreamConfig = STREAM) -> Hunted: ...


@pytest.fixture
def hunt(
    own_broker: EmbeddedKafka, nursery: Nursery, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> Iterator[Hunt]:
    """Makes the pipeline of hostile telemetry; its workers are gone after the test, what it counted is in the table."""
    made: list[Hunted] = []
    started = monotonic()

    def make(stream: StreamConfig = STREAM) -> Hunted:
        made.append(Hunted(own_broker.bootstrap, "hunted.", tmp_path / "hunted", seed, nursery, stream))
        return made[-1]

    yield make
    for hunted in made:
        hunted.end_all()
        if hunted.in_table:
            note(request.node, row_of(request.node.name, seed, hunted, monotonic() - started))


def row_of(name: str, seed: int, hunted: Hunted, seconds: float) -> Row:
    """A line of the table for a history that is over."""
    row = Row(name, seed, hunted.kills, dict(hunted.fail_point_hits()), hunted.recoveries_s, slots=hunted.num_slots)
    row.seconds = seconds
    proof: Proof | None = hunted.proof
    if proof is not None:
        row.checked = True
        row.telemetry, row.decisions = proof.telemetry, proof.compared["decisions"]
        row.compared, row.repeats = sum(proof.compared.values()), sum(proof.repeats.values())
    return row


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """State of 44 slots on a broker of the module's own, made once: a test that must change a log works on a copy."""
    with started_broker(tmp_path_factory.mktemp("kept") / "kafka") as kafka:
        yield kept(kafka.bootstrap, tmp_path_factory.mktemp("state"))


@pytest.fixture
def copy(state: Pipeline, tmp_path: Path) -> Copy:
    """Makes the copy; a change may be made to the records of some topics, which are named as in `Topics`."""

    def make(**changes: Change) -> Pipeline:
        return copied(state, tmp_path / "copy", changes)

    return make
