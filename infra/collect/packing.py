"""From readings to the records of the telemetry topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from infra.collect.mapping.readings import Reading
from streams.log import OutRecord
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_packed, record_key
from streams.topics import Topics

# Half of what a record may weigh by default, for readers with a lower limit.
_MOST_BYTES = 32_768
_MOST_ROWS = 500


def pack(readings: Iterable[Reading], topics: Topics) -> list[OutRecord]:
    """Packed records, each of one workload and kind, in the order of the readings; fleet facts one by one."""
    groups: dict[tuple[str, str], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.kind, reading.workload), []).append(reading)
    return [record for group in groups.values() for record in _records(group, topics)]


def _records(group: Sequence[Reading], topics: Topics) -> Iterator[OutRecord]:
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


def _fitting(rows: Sequence[Reading]) -> Iterator[bytes]:
    value = _packed(rows)
    if len(value) <= _MOST_BYTES or len(rows) == 1:
        yield value
        return
    half = len(rows) // 2
    yield from _fitting(rows[:half])
    yield from _fitting(rows[half:])


def _packed(rows: Sequence[Reading]) -> bytes:
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


def fleet_facts(reading: Reading) -> FleetFacts:
    """The counts of a reading of kind fleet."""
    counts = {name: int(value) for name, value in reading.values.items()}
    return FleetFacts(
        reading.ts_ms,
        ready=counts["replicas_ready"],
        pending=counts["replicas_pending"],
        draining=counts["replicas_draining"],
        desired=counts.get("replicas_desired"),
    )


def replicas_from_sources(readings: Iterable[Reading], source: str) -> list[Reading]:
    """Fleet facts where nobody else tells them: a replica is ready when its engine answers.

    Args:
        source: name of this collector in the facts.
    """
    heard: dict[str, dict[str, int]] = {}
    for reading in readings:
        if reading.kind == "requests":
            replicas = heard.setdefault(reading.workload, {})
            replicas[reading.replica] = max(reading.ts_ms, replicas.get(reading.replica, 0))
    counts = {"replicas_pending": 0.0, "replicas_draining": 0.0}
    return [
        Reading("fleet", w, source, source, max(replicas.values()), {"replicas_ready": float(len(replicas)), **counts})
        for w, replicas in heard.items()
    ]
