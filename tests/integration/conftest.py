"""A real Kafka for the tests in this directory, started once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka.embedded import EmbeddedKafka
from tests.brokers import started_broker

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A running broker in a directory of its own, the same for the whole session; `.bootstrap` is its address."""
    with started_broker(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for topic names that no other test uses, dot included."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", request.node.name)[:60].strip("-")
    return f"{name}-{os.urandom(3).hex()}."
