"""Every `harmony bench` command runs, in its smallest form, and stores what it measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.kafka.embedded import EmbeddedKafka
from infra.lab.bench.cli import app
from tests.brokers import started_broker

ALONE = {
    "plan": ("--workloads", "100", "--rounds", "1", "--paths", "16"),
    "inference": ("--batches", "1", "--rounds", "1"),
    "scale": ("--workloads", "10", "--slots", "1"),
}
WITH_KAFKA = {
    "ingest": ("--samples", "1", "--rounds", "1", "--no-rivals", "--form", "packed"),
    "latency": ("--workloads", "1", "--slots", "1", "--samples-per-s", "1"),
    "recovery": ("--workloads", "1"),
    "workers": ("--workloads", "4", "--slots", "1", "--samples-per-s", "1"),
}
LONG = {"workers": pytest.param("workers", marks=pytest.mark.faults)}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that the commands of this module share."""
    with started_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def stored(where: Path, name: str, *options: str) -> dict[str, Any]:
    """The document of a run, as it stands in the file of `--json`."""
    file = where / f"{name}.json"
    done = CliRunner().invoke(app, [name, *options, "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    document: dict[str, Any] = json.loads(file.read_bytes())
    assert document["bench"] == name
    assert document["machine"]["cores"] >= 1
    return document


def test_every_command_is_run_here() -> None:
    assert {command.callback.__name__ for command in app.registered_commands} == {*ALONE, *WITH_KAFKA}


@pytest.mark.parametrize("name", ALONE)
def test_a_command_without_kafka_measures(name: str, tmp_path: Path) -> None:
    assert stored(tmp_path, name, *ALONE[name])["results"]


@pytest.mark.kafka
def test_ingest_reads_the_whole_topic_and_refuses_nothing(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    found = stored(tmp_path, "ingest", *WITH_KAFKA["ingest"], "--brokers", kafka.bootstrap)
    (run,) = found["results"]["packed"]["subjects"]["harmony"]["runs"]
    assert (run["samples"], run["refused"]) == (found["job"]["samples"], 0)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [LONG.get(name, name) for name in WITH_KAFKA if name != "ingest"])
def test_a_live_command_measures(name: str, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    found = stored(tmp_path, name, *WITH_KAFKA[name], "--brokers", kafka.bootstrap)["results"]
    assert all(run["decisions"] == run["expected"] for run in found if "expected" in run)
