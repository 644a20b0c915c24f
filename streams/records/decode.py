"""Decodes one Kafka record into one telemetry record, or into a dead letter that says why not.

Each record is decoded alone, and no value is converted to another type. First come the functions for fleet facts,
queued batch work, SLO counts, outcomes and controls. `RecordDecoder` reads the samples and calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NoReturn, get_args

import msgspec
from msgspec import UNSET

from streams.catalogue import DEFAULT_CATALOGUE, Indicator, Source, of_source
from streams.log import UNREADABLE
from streams.records import strict_json
from streams.records.binary import MAGIC, BinarySamples, read_binary
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
from streams.records.limits import (
    MAX_TEXT_CHARS,
    RATIO_TOLERANCE,
    LabelCheck,
    bounds_of,
    histogram,
    instant,
    is_count,
    is_plain,
    number_within,
    refuse_instant,
    replicas,
)
from streams.records.schema import (
    CONTROL_ACTIONS,
    KINDS,
    MAX_CLASSES,
    MAX_JOBS,
    MAX_NUMBER,
    OUTCOME_STATUSES,
    VERSION,
    BatchWire,
    ControlRecord,
    ControlWire,
    DeadLetter,
    Decoded,
    FleetRecord,
    FleetWire,
    GpuTopicWire,
    HistogramWire,
    OutcomeRecord,
    OutcomeWire,
    RequestsTopicWire,
    Sample,
    SampleRecord,
    SamplesWire,
    SloWire,
    SourceRecord,
    TickRecord,
    TickWire,
    Tombstone,
)
from streams.records.strict_json import HugeInt, MalformedError
from streams.records.unknown_names import UnknownNames

CheckLabel = Callable[[str, str], None]

_REQUIRED = ("replicas_ready", "replicas_pending", "replicas_draining")
_DESIRED = "replicas_desired"
_FLEET_NAMES = frozenset({*_REQUIRED, _DESIRED})
# Of the names that a refusal names.
_MAX_NAMES, _MAX_NAME_CHARS = 3, 32


def fleet_record(wire: FleetWire, stamp_ms: int | None, check_label: CheckLabel) -> FleetRecord:
    """Replica counts, single or packed. A missing count is not 0: the three that planning needs are required.

    Raises:
        MalformedError: `schema`, `labels`, `range` or `future`.
    """
    plain_record = _plain_fleet_record(wire, stamp_ms, check_label)
    if plain_record is not None:
        return plain_record
    single = isinstance(wire.source, str)
    sources, instants = _column(wire.source), _column(wire.ts_ms)
    size = len(sources)
    if size == 0:
        raise MalformedError("schema", "a packed record needs at least one sample")
    if isinstance(wire.ts_ms, list) == single or len(instants) != size:
        raise MalformedError("schema", "ts_ms must be an array exactly when source is one, and as long")
    for label in sources:
        check_label("source", label)
    times = [instant(t, stamp_ms if single else None) for t in instants]
    columns: dict[str, list[int | None]] = {}
    unknown: list[str] = []
    for name, column in wire.values.items():
        if isinstance(column, list) == single or len(_column(column)) != size:
            raise MalformedError("schema", f"values {name!r} does not have the shape of source")
        if name in _REQUIRED or name == _DESIRED:
            columns[name] = [replicas(name, count) for count in _column(column)]
        else:
            unknown.append(name)
    required = [_required_counts(columns.get(name), name, unknown) for name in _REQUIRED]
    desired = columns.get(_DESIRED, [None] * size)
    facts = [FleetFacts(*row) for row in zip(times, *required, desired, strict=True)]
    return FleetRecord(wire.workload, list(zip(sources, facts, strict=True)), len(unknown))


def _plain_fleet_record(wire: FleetWire, stamp_ms: int | None, check_label: CheckLabel) -> FleetRecord | None:
    """The record in the usual case of one source with valid counts; None in every other case."""
    source: Any = wire.source
    values: dict[str, Any] = wire.values
    ts_ms = stamp_ms if wire.ts_ms is UNSET else wire.ts_ms
    if type(source) is not str or type(ts_ms) is not int or not 0 <= ts_ms < MAX_NUMBER:
        return None
    counts: list[Any] = [values.get(name) for name in _REQUIRED]
    ready, pending, draining = counts
    desired: Any = values.get(_DESIRED)
    if not all(map(is_count, counts)) or not (desired is None or is_count(desired)):
        return None
    if len(values) > len(_REQUIRED) + (_DESIRED in values):
        return None
    check_label("source", source)
    return FleetRecord(wire.workload, [(source, FleetFacts(ts_ms, ready, pending, draining, desired))])


def batch_queue(wire: BatchWire, stamp_ms: int | None, check_label: CheckLabel) -> BatchQueue:
    """The queued work of a source, in order of deadlines; jobs due at the same instant are merged.

    Raises:
        MalformedError: `schema`, `labels`, `range` or `future`.
    """
    check_label("source", wire.source)
    if len(wire.jobs) > MAX_JOBS:
        raise MalformedError("schema", f"{len(wire.jobs)} jobs, the limit is {MAX_JOBS}: add up those due together")
    tokens: dict[int, float] = {}
    for job in wire.jobs:
        if not 0 <= job.tokens < MAX_NUMBER:
            raise MalformedError("range", f"tokens is {job.tokens:g}, not a number of tokens")
        due_ts_ms = instant(job.due_ts_ms, None)
        tokens[due_ts_ms] = tokens.get(due_ts_ms, 0.0) + job.tokens
    jobs = tuple(BatchJob(due_ts_ms, tokens[due_ts_ms] + 0.0) for due_ts_ms in sorted(tokens))
    return BatchQueue(wire.source, instant(wire.ts_ms, stamp_ms), jobs)


def slo_counts(wire: SloWire, stamp_ms: int | None, check_label: CheckLabel) -> SloCounts:
    """The requests that a source has counted, by SLO class.

    Raises:
        MalformedError: `schema`, `labels`, `range` or `future`.
    """
    check_label("source", wire.source)
    if len(wire.classes) > MAX_CLASSES:
        raise MalformedError("schema", f"{len(wire.classes)} classes, the limit is {MAX_CLASSES}")
    for name, counts in wire.classes.items():
        check_label("class", name)
        if not 0 <= counts.good_total <= counts.total < MAX_NUMBER:
            raise MalformedError("range", f"class {name!r}: good_total must lie between 0 and total")
    by_name = sorted(wire.classes.items())
    classes = tuple(ClassCounts(name, counts.good_total + 0.0, counts.total + 0.0) for name, counts in by_name)
    return SloCounts(wire.source, instant(wire.ts_ms, stamp_ms), classes)


def outcome_fact(wire: OutcomeWire, stamp_ms: int | None, check_label: CheckLabel) -> OutcomeFact:
    """The outcome of a command.

    Raises:
        MalformedError: `schema`, `labels`, `range` or `future`.
    """
    check_label("source", wire.source)
    check_label("command_id", wire.command_id)
    if wire.status not in OUTCOME_STATUSES:
        raise MalformedError("schema", f"status {wire.status[:32]!r} is none of {', '.join(OUTCOME_STATUSES)}")
    lead_time_s = wire.lead_time_s
    if lead_time_s is not None and not 0 <= lead_time_s < MAX_NUMBER:
        raise MalformedError("range", f"lead_time_s {lead_time_s:g} is not a duration")
    return OutcomeFact(
        ts_ms=instant(wire.ts_ms, stamp_ms),
        command_id=wire.command_id,
        status=wire.status,
        replicas_ready=replicas("replicas_ready", wire.replicas_ready),
        lead_time_s=None if lead_time_s is None else lead_time_s + 0.0,
    )


def control(wire: ControlWire, stamp_ms: int | None, check_label: CheckLabel) -> Control:
    """A control of an operator, with all fields that its action needs.

    Raises:
        MalformedError: `schema`, `labels`, `range` or `future`.
    """
    check_label("control_id", wire.control_id)
    for name, text in (("by", wire.by), ("reason", wire.reason)):
        if text and not is_plain(text, MAX_TEXT_CHARS):
            raise MalformedError("labels", f"{name} is not 1 to {MAX_TEXT_CHARS} printable characters without markup")
    if wire.action not in CONTROL_ACTIONS:
        raise MalformedError("schema", f"action {wire.action[:32]!r} is none of {', '.join(CONTROL_ACTIONS)}")
    if wire.workload is not None:
        check_label("workload", wire.workload)
    elif wire.action in ("mode", "pin", "unpin"):
        raise MalformedError("schema", f"action {wire.action} needs a workload")
    if wire.mode not in ("observe", "act") and (wire.action == "mode" or wire.mode is not None):
        raise MalformedError("schema", "mode is neither observe nor act")
    if wire.action == "pin" and wire.replicas is None:
        raise MalformedError("schema", "action pin needs replicas")
    return Control(
        control_id=wire.control_id,
        ts_ms=instant(wire.ts_ms, stamp_ms),
        action=wire.action,
        workload=wire.workload,
        mode=wire.mode,
        replicas=replicas("replicas", wire.replicas),
        until_ts_ms=None if wire.until_ts_ms is None else instant(wire.until_ts_ms, None),
        by=wire.by,
        reason=wire.reason,
    )


def _column(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _required_counts(column: list[int | None] | None, name: str, unknown: Sequence[str]) -> list[int]:
    if column is None or None in column:
        names = ", ".join(repr(other[:_MAX_NAME_CHARS]) for other in unknown[:_MAX_NAMES])
        instead = f"; {names} not known" if unknown else ""
        raise MalformedError("schema", f"{name} is missing (say 0 where there are none){instead}")
    return [count for count in column if count is not None]


def explain_refusal(value: bytes, complaint: Exception, source: Source) -> NoReturn:
    """Find out why the fast parser refused a record.

    Args:
        complaint: the fast parser's; the last resort.
        source: the topic's, which takes only some kinds.

    Raises:
        MalformedError: always, with the code and a detail for the publisher of the record.
    """
    body = strict_json.read(value)
    if not isinstance(body, dict):
        raise MalformedError("schema", f"a record is a JSON object, this is {_type_name(body)}")
    version, kind = body.get("v"), body.get("kind")
    if type(version) is int and version != VERSION:
        raise MalformedError("version", f"v is {version}, this reader knows {VERSION}")
    kinds = KINDS[source]
    if isinstance(kind, str) and not isinstance(kind, HugeInt) and kind not in kinds:
        raise MalformedError("kind", f"kind {kind[:32]!r} is not for this topic, which takes {', '.join(kinds)}")
    times = body.pop("ts_ms", None)
    for ts_ms in times if isinstance(times, list) else [times]:
        if isinstance(ts_ms, HugeInt):
            refuse_instant(ts_ms)
    if _has_huge_int(body):
        raise MalformedError("range", "an integer has more digits than any measurement")
    # The fast parser refuses some JSON that the slow one accepts, such as half of a surrogate pair.
    raise MalformedError("schema" if isinstance(complaint, msgspec.ValidationError) else "decode", str(complaint))


def _has_huge_int(body: Any) -> bool:
    if isinstance(body, HugeInt):
        return True
    children = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return any(_has_huge_int(child) for child in children)


def _type_name(body: Any) -> str:
    if body is None:
        return "null"
    for kind, name in ((bool, "a boolean"), (list, "an array"), (HugeInt, "a number"), (str, "a string")):
        if isinstance(body, kind):
            return name
    return "a number"


_MAX_DETAIL_CHARS = 200
# Code of a refusal whose reason was not determined; only counters show it.
UNEXPLAINED = "flood"
_NOT_EXPLAINED = DeadLetter(UNEXPLAINED, "")
_NO_HISTS: dict[str, HistogramState] = {}
# Fields of each kind of record, by its layout.
_FIELDS = {
    wire: frozenset({"kind", *wire.__struct_fields__})
    for wire in (*get_args(RequestsTopicWire), *get_args(GpuTopicWire))
}


class RecordDecoder:
    """Decodes the records of one telemetry topic.

    Args:
        catalogue: indicators; their fields are the known names, their bounds the legal ranges.
        source: which telemetry topic.
        max_bytes: longer values are refused unread.

    Attributes:
        unknown: names of accepted records that are not known; for people only.
    """

    def __init__(self, catalogue: Sequence[Indicator], source: Source, max_bytes: int) -> None:
        self._source = source
        self._max_bytes = max_bytes
        wire: Any = RequestsTopicWire if source == "requests" else GpuTopicWire
        self._parse = msgspec.json.Decoder(wire).decode
        own = of_source(tuple(catalogue), source)
        self._hist_names = frozenset(f for i in own if i.rule == "p95" for f in i.fields)
        self._bounds = bounds_of(own)
        self._parts = tuple(i.fields for i in own if i.rule == "ratio")
        self._check_label = LabelCheck()
        self._known = frozenset(self._bounds) | self._hist_names
        self.unknown = UnknownNames()

    def decode(
        self, value: bytes | None, key: bytes | None, stamp_ms: int | None = None, explain: bool = True
    ) -> Decoded:
        """Decode one record.

        Args:
            value, key: as Kafka holds them.
            stamp_ms: the broker's stamp; stands in for a missing `ts_ms` of a record that is not packed.
            explain: False = the detail is not published, so where finding it out takes long the code is
                `UNEXPLAINED`.

        Returns:
            The typed record, or a `DeadLetter`; never raises for what a publisher wrote.
        """
        if value is None:
            return Tombstone()
        if len(value) > self._max_bytes:
            return DeadLetter("oversize", f"{len(value)} bytes, the limit is {self._max_bytes}")
        if stamp_ms is not None:
            self.unknown.newest_ms = stamp_ms
        try:
            if value.startswith(MAGIC):
                return self._binary(read_binary(value), key)
            try:
                wire = self._parse(value)
            except UNREADABLE as error:
                if not explain:
                    return _NOT_EXPLAINED
                explain_refusal(value, error, self._source)
            if wire.v != VERSION:
                raise MalformedError("version", f"v is {wire.v}, this reader knows {VERSION}")
            # The fast parser skips unknown fields unread and keeps the last of two equal keys.
            body: dict[str, Any] = {}
            if _colons_of(wire) != value.count(b":") or b"\\" in value:
                body = strict_json.read(value)
            decoded = self._typed(wire, key, stamp_ms)
            known = _FIELDS[type(wire)]
            if not body.keys() <= known and not isinstance(wire, TickWire | ControlWire):
                source = wire.source if isinstance(wire.source, str) else wire.source[0]
                self._note(type(wire).__struct_config__.tag, wire.workload, source, body.keys() - known, body, known)
            return decoded
        except MalformedError as error:
            return DeadLetter(error.code, ascii(error.detail)[1:-1][:_MAX_DETAIL_CHARS])

    def _typed(self, wire: Any, key: bytes | None, stamp_ms: int | None) -> Decoded:
        if isinstance(wire, SamplesWire):
            self._check_workload(wire.workload, key)
            return self._single(wire, stamp_ms) if type(wire.source) is str else self._packed(wire)
        return self._facts(wire, key, stamp_ms)

    def _note(
        self, kind: str, workload: str, source: str, names: Iterable[str], present: Iterable[str], known: frozenset[str]
    ) -> int:
        """Keep the unknown names of a record; returns how many they are."""
        unknown = tuple(names)
        if unknown:
            self.unknown.add((kind, workload), source, unknown, known.difference(present))
        return len(unknown)

    def _single(self, wire: SamplesWire, stamp_ms: int | None) -> SampleRecord:
        source: Any = wire.source
        values: Any = wire.values
        self._check_label("source", source)
        unknown = self._check_values(values)
        hists = _NO_HISTS
        if wire.hist:
            hists = {}
            for name, state in wire.hist.items():
                if type(state) is list:
                    raise MalformedError("schema", f"hist {name!r} is an array, but source is not")
                if name not in self._hist_names:
                    unknown.append(name)
                elif isinstance(state, HistogramWire):
                    hists[name] = histogram(name, state)
        sample = Sample(source, instant(wire.ts_ms, stamp_ms), values, hists)
        present = chain(values, hists)
        num_unknown = self._note(self._source, wire.workload, source, unknown, present, self._known)
        return SampleRecord(wire.workload, (sample,), num_unknown)

    def _check_values(self, values: dict[str, Any]) -> list[str]:
        """Check a single sample's values in place; drops those of unknown names, and returns these names."""
        unknown: list[str] = []
        for name, number in values.items():
            if type(number) is list:
                raise MalformedError("schema", f"values {name!r} is an array, but source is not")
            bounds = self._bounds.get(name)
            if bounds is None:
                unknown.append(name)
            elif number is not None and not bounds[0] < number < bounds[1]:
                values[name] = number_within(name, number, bounds)
        for name in unknown:
            del values[name]
        if self._parts:
            self._check_parts(values)
        return unknown

    def _packed(self, wire: SamplesWire) -> SampleRecord:
        size = len(wire.source)
        if size == 0:
            raise MalformedError("schema", "a packed record needs at least one sample")
        if not isinstance(wire.ts_ms, list) or len(wire.ts_ms) != size:
            raise MalformedError("schema", f"ts_ms is not an array of {size}, as source is")
        for label in wire.source:
            self._check_label("source", label)
        unknown: list[str] = []
        columns: dict[str, list[float | None]] = {}
        for name, column in wire.values.items():
            if not isinstance(column, list) or len(column) != size:
                raise MalformedError("schema", f"values {name!r} is not an array of {size}, as source is")
            bounds = self._bounds.get(name)
            if bounds is None:
                unknown.append(name)
            else:
                columns[name] = [number_within(name, number, bounds) for number in column]
        hists = self._packed_hists(wire, size, unknown)
        names = tuple(columns)
        rows = zip(*columns.values(), strict=True) if names else ((),) * size
        samples = [
            Sample(source, instant(ts_ms, None), dict(zip(names, row, strict=True)), sample_hists)
            for source, ts_ms, row, sample_hists in zip(wire.source, wire.ts_ms, rows, hists, strict=True)
        ]
        if self._parts:
            for sample in samples:
                self._check_parts(sample.values)
        present = chain(columns, wire.hist or ())
        num_unknown = self._note(self._source, wire.workload, wire.source[0], unknown, present, self._known)
        return SampleRecord(wire.workload, samples, num_unknown)

    def _packed_hists(self, wire: SamplesWire, size: int, unknown: list[str]) -> list[dict[str, HistogramState]]:
        """Histograms of each sample; names that are unknown are appended to `unknown`."""
        hists: list[dict[str, HistogramState]] = [{} for _ in range(size)]
        for name, states in (wire.hist or {}).items():
            if not isinstance(states, list) or len(states) != size:
                raise MalformedError("schema", f"hist {name!r} is not an array of {size}, as source is")
            if name not in self._hist_names:
                unknown.append(name)
                continue
            for sample_hists, state in zip(hists, states, strict=True):
                if state is not None:
                    sample_hists[name] = histogram(name, state)
        return hists

    def _binary(self, record: BinarySamples, key: bytes | None) -> SampleRecord:
        header = record.header
        kinds = KINDS[self._source]
        if header.kind != self._source:
            raise MalformedError("kind", f"kind {header.kind[:32]!r} has no binary form here, only {kinds[0]} has")
        self._check_workload(header.workload, key)
        for label in header.sources:
            self._check_label("source", label)
        columns: dict[str, list[float | None]] = {}
        for name, column in zip(header.names, record.values.tolist(), strict=True):
            bounds = self._bounds.get(name)
            if bounds is not None:
                columns[name] = [None if cell != cell else number_within(name, cell, bounds) for cell in column]
        rows = zip(*columns.values(), strict=True) if columns else ((),) * header.n
        samples = [
            Sample(header.sources[source], ts_ms, dict(zip(columns, row, strict=True)), _NO_HISTS)
            for source, ts_ms, row in zip(record.source_of.tolist(), record.ts_ms.tolist(), rows, strict=True)
        ]
        if self._parts:
            for sample in samples:
                self._check_parts(sample.values)
        unknown = [name for name in header.names if name not in columns]
        num_unknown = self._note(self._source, header.workload, header.sources[0], unknown, columns, self._known)
        return SampleRecord(header.workload, samples, num_unknown)

    def _check_parts(self, values: dict[str, float | None]) -> None:
        for part, total_name in self._parts:
            used, total = values.get(part), values.get(total_name)
            if used is not None and total is not None and used > total * (1 + RATIO_TOLERANCE):
                raise MalformedError("range", f"{part} {used:g} is more than {total_name} {total:g}")

    def _facts(self, wire: Any, key: bytes | None, stamp_ms: int | None) -> Decoded:
        if isinstance(wire, TickWire):
            return TickRecord(instant(wire.ts_ms, None))
        if isinstance(wire, ControlWire):
            return ControlRecord(control(wire, stamp_ms, self._check_label))
        self._check_workload(wire.workload, key)
        if isinstance(wire, BatchWire):
            return SourceRecord(wire.workload, batch_queue(wire, stamp_ms, self._check_label))
        if isinstance(wire, SloWire):
            return SourceRecord(wire.workload, slo_counts(wire, stamp_ms, self._check_label))
        if isinstance(wire, OutcomeWire):
            return OutcomeRecord(wire.workload, outcome_fact(wire, stamp_ms, self._check_label))
        record = fleet_record(wire, stamp_ms, self._check_label)
        if record.unknown_names:
            names = wire.values.keys() - _FLEET_NAMES
            self._note("fleet", wire.workload, record.facts[0][0], names, wire.values, _FLEET_NAMES)
        return record

    def _check_workload(self, workload: str, key: bytes | None) -> None:
        self._check_label("workload", workload)
        if key is None:
            raise MalformedError("key", f"the record has no key, its workload is {workload!r}")
        if key != workload.encode():
            raise MalformedError("key", f"key {key[:64]!r} is not the workload {workload!r}")


def decode(
    value: bytes | None,
    key: bytes | None,
    source: Source,
    max_bytes: int = 65_536,
    stamp_ms: int | None = None,
) -> Decoded:
    """Decode one record with the default catalogue; see `RecordDecoder.decode`."""
    return _default_decoder(source, max_bytes).decode(value, key, stamp_ms)


@lru_cache(maxsize=8)
def _default_decoder(source: Source, max_bytes: int) -> RecordDecoder:
    return RecordDecoder(DEFAULT_CATALOGUE, source, max_bytes)


def _colons_of(wire: Any) -> int:
    """Colons of the record's text if no key is repeated or unknown; -1 where that number is not determined.

    Any repeated or unknown key adds colons (escaped characters aside), so equality proves that there is none.
    """
    if isinstance(wire, TickWire):
        return 3
    if isinstance(wire, OutcomeWire | ControlWire):
        return -1  # of their fields any may be left out
    source = wire.source
    colons: int = 5 + wire.workload.count(":")
    colons += source.count(":") if type(source) is str else sum([s.count(":") for s in source])
    if wire.ts_ms is not UNSET:
        colons += 1
    if isinstance(wire, BatchWire):
        return colons + 2 * len(wire.jobs)
    if isinstance(wire, SloWire):
        return colons + sum([3 + name.count(":") for name in wire.classes])
    colons += len(wire.values)
    if isinstance(wire, SamplesWire) and wire.hist is not None:
        colons += 1 + len(wire.hist)
        for states in wire.hist.values():
            if type(states) is list:
                colons += 4 * (len(states) - states.count(None))
            elif states is not None:
                colons += 4
    return colons
