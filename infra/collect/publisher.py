"""Where telemetry records go: to Kafka, or to the terminal in a dry run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TextIO

from infra.collect.mapping.readings import SourceReading
from infra.console.errors import HarmonyError
from infra.settings.brokers import bootstrap_servers
from streams.log import OutRecord
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_packed, record_key
from streams.topics import Topics

_SEND_TIMEOUT_S = 30.0


class RecordPublisher(Protocol):
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
            futures = [
                self._producer.send(r.topic, key=r.key, value=r.value, headers=list(r.headers), partition=r.partition)
                for r in records
            ]
            self._producer.flush(timeout=_SEND_TIMEOUT_S)
            for future in futures:
                future.get(timeout=_SEND_TIMEOUT_S)
        except self._error as error:
            raise HarmonyError(
                f"Kafka at {self._brokers} did not take telemetry ({type(error).__name__}: {error}); check that it "
                "runs and that the topics exist (`harmony topics check`)."
            ) from error

    def close(self) -> None:
        from infra.kafka.clients import close_producer

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


# From readings to the records of the telemetry topics.


# Half of what a record may weigh by default, for readers with a lower limit.
_MOST_BYTES = 32_768
_MOST_ROWS = 500


def pack(readings: Iterable[SourceReading], topics: Topics) -> list[OutRecord]:
    """Packed records, each of one workload and kind, in the order of the readings; fleet facts one by one."""
    groups: dict[tuple[str, str], list[SourceReading]] = {}
    for reading in readings:
        groups.setdefault((reading.kind, reading.workload), []).append(reading)
    return [record for group in groups.values() for record in _records(group, topics)]


def _records(group: Sequence[SourceReading], topics: Topics) -> Iterator[OutRecord]:
    kind, key = group[0].kind, record_key(group[0].workload)
    if kind == "fleet":
        for reading in group:
            value = encode_fleet(reading.workload, reading.source, fleet_facts(reading))
            yield OutRecord(topics.telemetry_requests, key, value)
        return
    topic = topics.telemetry_gpu if kind == "gpu" else topics.telemetry_requests
    for start in range(0, len(group), _MOST_ROWS):
        for value in _fitting(group[start : start + _MOST_ROWS]):
            yield OutRecord(topic, key, value)


def _fitting(rows: Sequence[SourceReading]) -> Iterator[bytes]:
    value = _packed(rows)
    if len(value) <= _MOST_BYTES or len(rows) == 1:
        yield value
        return
    half = len(rows) // 2
    yield from _fitting(rows[:half])
    yield from _fitting(rows[half:])


def _packed(rows: Sequence[SourceReading]) -> bytes:
    kind = "gpu" if rows[0].kind == "gpu" else "requests"
    names = sorted({name for reading in rows for name in reading.values})
    hists = sorted({name for reading in rows for name in reading.hists})
    return encode_packed(
        kind,  # type: ignore[arg-type]
        rows[0].workload,
        [reading.source for reading in rows],
        [reading.ts_ms for reading in rows],
        {name: [reading.values.get(name) for reading in rows] for name in names},
        {name: [reading.hists.get(name) for reading in rows] for name in hists},
    )


def fleet_facts(reading: SourceReading) -> FleetFacts:
    """The counts of a reading of kind fleet."""
    counts = {name: int(value) for name, value in reading.values.items()}
    return FleetFacts(
        reading.ts_ms,
        ready=counts["replicas_ready"],
        pending=counts["replicas_pending"],
        draining=counts["replicas_draining"],
        desired=counts.get("replicas_desired"),
    )


def replicas_from_sources(readings: Iterable[SourceReading], source: str) -> list[SourceReading]:
    """Fleet facts where nobody else tells them: a replica is ready when its engine answers.

    Args:
        source: name of this collector in the facts.
    """
    newest_ts_ms: dict[str, dict[str, int]] = {}
    for reading in readings:
        if reading.kind == "requests":
            replicas = newest_ts_ms.setdefault(reading.workload, {})
            replicas[reading.replica] = max(reading.ts_ms, replicas.get(reading.replica, 0))
    no_others = {"replicas_pending": 0.0, "replicas_draining": 0.0}
    return [
        SourceReading(
            "fleet", w, source, source, max(times.values()), {"replicas_ready": float(len(times)), **no_others}
        )
        for w, times in newest_ts_ms.items()
    ]
