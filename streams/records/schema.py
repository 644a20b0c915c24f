"""Telemetry records: what a decoded one is, and the encoders that publishers use. The wire is `docs/formats`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from streams.catalogue import Source
from streams.log import UNREADABLE
from streams.records.facts import (
    BatchJob,
    BatchQueue,
    ClassCounts,
    Control,
    FleetFacts,
    HistogramState,
    OutcomeFact,
    SloCounts,
)

VERSION = 1
# Largest magnitude of a number: beyond it a float64 cannot represent every integer.
MAX_NUMBER = 2.0**53
MAX_LABEL_CHARS = 128
MAX_JOBS = 64
MAX_CLASSES = 16

OUTCOME_STATUSES = ("accepted", "applied", "ready", "refused", "expired", "failed")
CONTROL_ACTIONS = ("mode", "pin", "unpin", "pause", "resume")
FleetName = Literal["replicas_desired", "replicas_ready", "replicas_pending", "replicas_draining"]


class Sample(msgspec.Struct, frozen=True, gc=False):
    """What one source measured at one instant. `values` may hold None: the cell is missing."""

    source: str
    ts_ms: int
    values: dict[str, float | None]
    hists: dict[str, HistogramState] = {}


class SampleRecord(msgspec.Struct, frozen=True, gc=False):
    """One accepted record of kind requests or gpu; a single sample is a pack of one."""

    workload: str
    samples: Sequence[Sample]
    unknown_names: int = 0


class FleetRecord(msgspec.Struct, frozen=True, gc=False):
    """Replica counts of one workload, each with its source."""

    workload: str
    facts: Sequence[tuple[str, FleetFacts]]
    unknown_names: int = 0


class OutcomeRecord(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one command."""

    workload: str
    fact: OutcomeFact


class SourceRecord(msgspec.Struct, frozen=True, gc=False):
    """What one source reports of a workload as a whole: it replaces the earlier report of that source.

    The golden records name the field `word`.
    """

    workload: str
    word: BatchQueue | SloCounts


class TickRecord(msgspec.Struct, frozen=True, gc=False):
    """Event time has reached `ts_ms` on this partition, whether or not anything was measured."""

    ts_ms: int


class ControlRecord(msgspec.Struct, frozen=True, gc=False):
    """A control of an operator."""

    control: Control


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    """A record without value: ignored and counted."""


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A refused record: `code` from the fixed set `DEAD_LETTER_CODES`, `detail` for people, printable and bounded."""

    code: str
    detail: str


Facts = FleetRecord | SourceRecord | OutcomeRecord
Decoded = SampleRecord | Facts | TickRecord | ControlRecord | Tombstone | DeadLetter

DEAD_LETTER_CODES = (
    "decode",
    "schema",
    "non_finite",
    "range",
    "version",
    "future",
    "key",
    "oversize",
    "nesting",
    "labels",
    "kind",
    "control",
    "limit",
)

_encoder = msgspec.json.Encoder()


def record_key(workload: str) -> bytes:
    """Kafka key of every record of a workload; ticks and control records may go without one."""
    return workload.encode()


def encode_sample(
    kind: Source,
    workload: str,
    source: str,
    ts_ms: int,
    values: Mapping[str, float | None],
    hist: Mapping[str, HistogramState] | None = None,
) -> bytes:
    """One sample as a record value; None is a missing cell.

    Raises:
        ValueError: a number that is not finite (JSON has none; say None where nothing was measured).
    """
    _check_finite(values.values())
    body: dict[str, object] = {
        "v": VERSION,
        "kind": kind,
        "workload": workload,
        "source": source,
        "ts_ms": ts_ms,
        "values": values,
    }
    if hist:
        body["hist"] = {name: _histogram(h) for name, h in hist.items()}
    return _encoder.encode(body)


def encode_packed(
    kind: Source,
    workload: str,
    sources: Sequence[str],
    ts_ms: Sequence[int],
    values: Mapping[str, Sequence[float | None]],
    hist: Mapping[str, Sequence[HistogramState | None]] | None = None,
) -> bytes:
    """Many samples of one workload as one record value: columns aligned with `sources` and `ts_ms`.

    Raises:
        ValueError: columns of different lengths, no sample, or a number that is not finite.
    """
    columns: list[Sequence[object]] = [ts_ms, *values.values(), *(hist or {}).values()]
    if not sources or any(len(column) != len(sources) for column in columns):
        raise ValueError(f"a packed record needs a sample and equally long columns, got {len(sources)} sources")
    for column in values.values():
        _check_finite(column)
    body: dict[str, object] = {
        "v": VERSION,
        "kind": kind,
        "workload": workload,
        "source": sources,
        "ts_ms": ts_ms,
        "values": values,
    }
    if hist:
        body["hist"] = {name: [h and _histogram(h) for h in column] for name, column in hist.items()}
    return _encoder.encode(body)


def encode_fleet(workload: str, source: str, facts: FleetFacts) -> bytes:
    """Replica counts as a record value."""
    values = {
        "replicas_ready": facts.ready,
        "replicas_pending": facts.pending,
        "replicas_draining": facts.draining,
    }
    if facts.desired is not None:
        values["replicas_desired"] = facts.desired
    return _encoder.encode(
        {
            "v": VERSION,
            "kind": "fleet",
            "workload": workload,
            "source": source,
            "ts_ms": facts.ts_ms,
            "values": values,
        }
    )


def encode_batch(workload: str, source: str, ts_ms: int, jobs: Sequence[BatchJob]) -> bytes:
    """The queued batch work of a source as a record value.

    Raises:
        ValueError: a number of tokens that is not finite.
    """
    _check_finite([job.tokens for job in jobs])
    body = [{"due_ts_ms": job.due_ts_ms, "tokens": job.tokens} for job in jobs]
    head = {"v": VERSION, "kind": "batch", "workload": workload, "source": source, "ts_ms": ts_ms}
    return _encoder.encode(head | {"jobs": body})


def encode_slo(workload: str, source: str, ts_ms: int, classes: Sequence[ClassCounts]) -> bytes:
    """The request counts of a source by SLO class as a record value.

    Raises:
        ValueError: a count that is not finite.
    """
    _check_finite([number for counts in classes for number in (counts.good, counts.total)])
    body = {counts.name: {"good_total": counts.good, "total": counts.total} for counts in classes}
    head = {"v": VERSION, "kind": "slo", "workload": workload, "source": source, "ts_ms": ts_ms}
    return _encoder.encode(head | {"classes": body})


def encode_outcome(workload: str, source: str, fact: OutcomeFact) -> bytes:
    """The outcome of a command as a record value."""
    if fact.status not in OUTCOME_STATUSES:
        raise ValueError(f"status must be one of {', '.join(OUTCOME_STATUSES)}, got {fact.status!r}")
    head = {"v": VERSION, "kind": "outcome", "workload": workload, "source": source}
    return _encoder.encode(head | _present(fact))


def encode_tick(ts_ms: int) -> bytes:
    """A tick as a record value; written to every partition, key null."""
    return _encoder.encode({"v": VERSION, "kind": "tick", "ts_ms": ts_ms})


def encode_control(control: Control) -> bytes:
    """A control record's value, for the `controls` topic, key null."""
    if control.action not in CONTROL_ACTIONS:
        raise ValueError(f"action must be one of {', '.join(CONTROL_ACTIONS)}, got {control.action!r}")
    return _encoder.encode({"v": VERSION, "kind": "control"} | _present(control))


def _present(record: msgspec.Struct) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(record).items() if value is not None}


def _histogram(h: HistogramState) -> dict[str, object]:
    _check_finite((*h.le, *h.cumulative, h.count, h.sum))
    return {"le": h.le, "cumulative": h.cumulative, "count": h.count, "sum": h.sum}


def _check_finite(numbers: Iterable[float | None]) -> None:
    for number in numbers:
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{number} has no place in telemetry; use None where nothing was measured")


# Layout of telemetry records on the wire, as the decoders read it. Single and packed records share one layout.


class HistogramWire(msgspec.Struct, gc=False):
    """A cumulative histogram: finite ascending upper bounds, counts at or below each, all counts, sum of values."""

    le: tuple[float, ...]
    cumulative: tuple[float, ...]
    count: float
    sum: float


class SamplesWire(msgspec.Struct, gc=False, tag_field="kind"):
    v: int
    workload: str
    source: str | list[str]
    values: dict[str, float | list[float | None] | None]
    ts_ms: int | list[int] | UnsetType = UNSET
    hist: dict[str, HistogramWire | list[HistogramWire | None] | None] | None = None


class RequestsWire(SamplesWire, gc=False, tag_field="kind", tag="requests"):
    """Samples of the request side."""


class GpuWire(SamplesWire, gc=False, tag_field="kind", tag="gpu"):
    """Samples of the device side."""


class FleetWire(msgspec.Struct, gc=False, tag_field="kind", tag="fleet"):
    v: int
    workload: str
    source: str | list[str]
    values: dict[str, int | list[int | None] | None]
    ts_ms: int | list[int] | UnsetType = UNSET


class OutcomeWire(msgspec.Struct, gc=False, tag_field="kind", tag="outcome"):
    v: int
    workload: str
    source: str
    command_id: str
    status: str
    ts_ms: int | UnsetType = UNSET
    replicas_ready: int | None = None
    lead_time_s: float | None = None


class BatchJobWire(msgspec.Struct, gc=False):
    due_ts_ms: int
    tokens: float


class BatchWire(msgspec.Struct, gc=False, tag_field="kind", tag="batch"):
    v: int
    workload: str
    source: str
    jobs: list[BatchJobWire]
    ts_ms: int | UnsetType = UNSET


class ClassCountsWire(msgspec.Struct, gc=False):
    good_total: float
    total: float


class SloWire(msgspec.Struct, gc=False, tag_field="kind", tag="slo"):
    v: int
    workload: str
    source: str
    classes: dict[str, ClassCountsWire]
    ts_ms: int | UnsetType = UNSET


class TickWire(msgspec.Struct, gc=False, tag_field="kind", tag="tick"):
    v: int
    ts_ms: int


class ControlWire(msgspec.Struct, gc=False, tag_field="kind", tag="control"):
    v: int
    control_id: str
    action: str
    ts_ms: int | UnsetType = UNSET
    workload: str | None = None
    mode: str | None = None
    replicas: int | None = None
    until_ts_ms: int | None = None
    by: str = ""
    reason: str = ""


RequestsTopicWire = RequestsWire | FleetWire | BatchWire | SloWire | OutcomeWire | TickWire | ControlWire
GpuTopicWire = GpuWire | FleetWire | OutcomeWire | TickWire
KINDS: dict[Source, tuple[str, ...]] = {
    "requests": ("requests", "fleet", "batch", "slo", "outcome", "tick", "control"),
    "gpu": ("gpu", "fleet", "outcome", "tick"),
}

# Errors that a parser raises for a text of another layout.
REFUSED = (*UNREADABLE, TypeError)
# Colons between the keys and values of a record without any name of its own: v, kind, workload, source, ts_ms, values.
FRAME_COLONS = 6

_MOST_TS_MS = 1 << 53
_Instant = Annotated[int, msgspec.Meta(ge=0, lt=_MOST_TS_MS)]


def sample_struct(name: str, kind: Source, fields: Sequence[str], value: Any, default: Any, many: bool) -> Any:
    """Layout of the ordinary samples of one topic, with its known fields as attributes, for the fast reader.

    Args:
        value, default: type of a field, and the value of an absent one.
        many: True for packed records, which have no histograms, False for single ones.
    """
    values = msgspec.defstruct(f"{name}Values", [(f, value, default) for f in fields], gc=False)
    layout: list[Any] = [
        ("v", Literal[1]),
        # Not a tag, because msgspec does not require the tag of a struct that is decoded on its own.
        ("kind", Literal[kind]),
        ("workload", str),
        ("source", list[str] if many else str),
        ("values", values),
        ("ts_ms", list[_Instant] if many else _Instant),
    ]
    if not many:
        layout.append(("hist", dict[str, HistogramWire] | None, None))
    return msgspec.defstruct(name, layout, gc=False)
