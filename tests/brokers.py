"""A real broker for as long as a test, a module or a session needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.console.errors import HarmonyError
from infra.kafka.embedded import EmbeddedKafka


@contextmanager
def started_broker(data_dir: Path) -> Iterator[EmbeddedKafka]:
    """Fails the test, with the reason in a sentence, where Kafka does not start."""
    kafka = EmbeddedKafka(data_dir, quiet=True)
    try:
        kafka.start()
    except HarmonyError as error:
        pytest.fail(error.message, pytrace=False)
    yield kafka
    kafka.stop()
