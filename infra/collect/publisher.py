"""Where telemetry records go: to Kafka, or to the terminal in a dry run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, TextIO

from infra.console.errors import HarmonyError
from infra.settings.brokers import bootstrap_servers
from streams.log import OutRecord

_SEND_TIMEOUT_S = 30.0


class Publisher(Protocol):
    """Takes telemetry records."""

    def publish(self, records: Sequence[OutRecord]) -> None:
        """Send them and return when they are safe.

        Raises:
            HarmonyError: one of them was not taken.
        """

    def close(self) -> None:
        """Let go of what is held."""


class KafkaPublisher:
    """Sends records by key, as every publisher of this project does: murmur2 of the workload.

    Args:
        brokers: `host:port`, several separated by commas.
        security: keyword arguments of kafka-python's clients.

    Raises:
        HarmonyError: no broker answers.
    """

    def __init__(self, brokers: str, security: Mapping[str, Any] | None = None) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        self._brokers = brokers
        self._error = KafkaError
        servers = bootstrap_servers(brokers, security, "; --dry-run needs none")
        try:
            # Idempotent, so that a retry neither doubles nor reorders.
            self._producer = KafkaProducer(
                bootstrap_servers=servers,
                client_id="harmony-collect",
                acks="all",
                enable_idempotence=True,
                linger_ms=5,
                compression_type="gzip",
                **dict(security or {}),
            )
        except (KafkaError, ValueError, OSError) as error:
            raise HarmonyError(f"Cannot connect to Kafka at {brokers}: {str(error).rstrip('.')}.") from error

    def publish(self, records: Sequence[OutRecord]) -> None:
        try:
            futures = [self._producer.send(r.topic, key=r.key, value=r.value, headers=list(r.headers)) for r in records]
            self._producer.flush(timeout=_SEND_TIMEOUT_S)
            for future in futures:
                future.get(timeout=_SEND_TIMEOUT_S)
        except self._error as error:
            raise HarmonyError(
                f"Kafka at {self._brokers} did not take telemetry ({type(error).__name__}: {error}); check that it "
                "runs and that the topics exist (`harmony topics check`)."
            ) from error

    def close(self) -> None:
        from infra.producers import close_producer

        close_producer(self._producer, 5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DryRun:
    """Prints what would be sent, one JSON object a line."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def publish(self, records: Sequence[OutRecord]) -> None:
        for record in records:
            key, value = (record.key or b"").decode("utf-8", "replace"), json.loads(record.value or b"null")
            line = {"topic": record.topic, "key": key, "value": value}
            print(json.dumps(line), file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()
