"""The rarer records: fleet facts, queued batch work, outcomes of commands, operators' control records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from streams.pages.page import BatchJob, BatchQueue, ClassCounts, Control, FleetFacts, OutcomeFact, SloCounts
from streams.records.limits import MAX_TEXT_CHARS, instant, is_count, is_plain, replicas
from streams.records.schema import CONTROL_ACTIONS, MAX_CLASSES, MAX_JOBS, MAX_NUMBER, OUTCOME_STATUSES, FleetRecord
from streams.records.strict_json import MalformedError
from streams.wire import BatchWire, ControlWire, FleetWire, OutcomeWire, SloWire

CheckLabel = Callable[[str, str], None]

_REQUIRED = ("replicas_ready", "replicas_pending", "replicas_draining")
_DESIRED = "replicas_desired"


def fleet_record(wire: FleetWire, stamp_ms: int | None, check_label: CheckLabel) -> FleetRecord:
    """Replica counts, single or packed. A count that is not told is not 0: the three that planning needs are required.

    Raises:
        MalformedError: `schema`, `labels`, `range` or `future`.
    """
    found = _nothing_but_counts(wire, stamp_ms, check_label)
    if found is not None:
        return found
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
    unknown = 0
    for name, column in wire.values.items():
        if isinstance(column, list) == single or len(_column(column)) != size:
            raise MalformedError("schema", f"values {name!r} does not have the shape of source")
        if name in _REQUIRED or name == _DESIRED:
            columns[name] = [replicas(name, count) for count in _column(column)]
        else:
            unknown += 1
    told = [_whole(columns.get(name), name) for name in _REQUIRED]
    desired = columns.get(_DESIRED, [None] * size)
    facts = [FleetFacts(*row) for row in zip(times, *told, desired, strict=True)]
    return FleetRecord(wire.workload, list(zip(sources, facts, strict=True)), unknown)


def _nothing_but_counts(wire: FleetWire, stamp_ms: int | None, check_label: CheckLabel) -> FleetRecord | None:
    """The record if it is as nearly all of them are: one source, its counts, and nothing to find fault with."""
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
    """What a source has queued; jobs due at the same instant are one, in order of their deadlines.

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
    """Requests by SLO class, as a source has counted them.

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
    told = sorted(wire.classes.items())
    classes = tuple(ClassCounts(name, counts.good_total + 0.0, counts.total + 0.0) for name, counts in told)
    return SloCounts(wire.source, instant(wire.ts_ms, stamp_ms), classes)


def outcome_fact(wire: OutcomeWire, stamp_ms: int | None, check_label: CheckLabel) -> OutcomeFact:
    """What became of a command.

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
    """An operator's word, complete enough to be carried out.

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


def _whole(column: list[int | None] | None, name: str) -> list[int]:
    if column is None or None in column:
        raise MalformedError("schema", f"{name} is missing (say 0 where there are none)")
    return [count for count in column if count is not None]
