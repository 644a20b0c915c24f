"""Decisions and commands as they are published: bytes and headers that the log alone fixes, without wall time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from agents.decide.state import MAX_UNDECLARED_OVERRIDES
from agents.planning.codec import CONTROLS_PARTITION
from agents.records import Command, Decision, PlanOf
from streams.log import OutRecord
from streams.records.facts import Control
from streams.records.schema import encode_control
from streams.topics import Topics

_ENCODER = msgspec.json.Encoder()
_DECISIONS = msgspec.json.Decoder(Decision)
_COMMANDS = msgspec.json.Decoder(Command)
_Record = TypeVar("_Record", Decision, Command)


def encode_decision(decision: Decision) -> bytes:
    """The body of a decision: JSON, one field order."""
    return _ENCODER.encode(decision)


def decode_decision(value: bytes) -> Decision:
    """The decision that the bytes hold.

    Raises:
        msgspec.MsgspecError: they are not a decision of this version.
    """
    return _decode(_DECISIONS, value)


def encode_command(command: Command) -> bytes:
    """The body of a command: JSON, one field order."""
    return _ENCODER.encode(command)


def decode_command(value: bytes) -> Command:
    """The command that the bytes hold.

    Raises:
        msgspec.MsgspecError: they are not a command of this version.
    """
    return _decode(_COMMANDS, value)


def _decode(decoder: msgspec.json.Decoder[_Record], value: bytes) -> _Record:
    try:
        record = decoder.decode(value)
    except UnicodeDecodeError as error:  # of a string inside, which is none of msgspec's own errors
        raise msgspec.ValidationError(f"it is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise msgspec.ValidationError("it is nested too deep") from None
    if record.v != 1:
        # The same names may mean something else there, and nobody may obey what nobody here understands.
        raise msgspec.ValidationError(f"its version is {record.v}, this release reads 1")
    return record


def decision_record(topic: str, fleet: str, decision: Decision) -> OutRecord:
    """The Kafka record of a decision, keyed by its workload."""
    key = decision.workload.encode()
    headers = _headers("harmony.decision.v1", decision.decision_id, fleet, key, decision.origin_ts_ms)
    return OutRecord(topic, key, encode_decision(decision), headers=headers)


def command_record(topic: str, fleet: str, command: Command) -> OutRecord:
    """The Kafka record of a command, keyed by its workload; the key is what compaction keeps the newest of."""
    identity = f"{command.command_id}-{command.epoch}-{command.sequence}"
    key = command.workload.encode()
    headers = _headers("harmony.command.v1", identity, fleet, key, command.issued_ts_ms)
    return OutRecord(topic, key, encode_command(command), headers=headers)


def control_letter(topics: Topics, control: Control, plan: PlanOf[Any]) -> OutRecord:
    """The dead letter of a control record that would be one override of an undeclared workload too many."""
    of_telemetry = plan.partition != CONTROLS_PARTITION
    headers = (
        ("reason", b"limit"),
        ("detail", b"overrides of %d undeclared workloads are kept already" % MAX_UNDECLARED_OVERRIDES),
        ("topic", (topics.telemetry_requests if of_telemetry else topics.controls).encode()),
        ("partition", b"%d" % max(plan.partition, 0)),
    )
    return OutRecord(topics.dead_letters, None, encode_control(control), headers=headers)


def _headers(kind: str, identity: str, fleet: str, subject: bytes, ts_ms: int) -> tuple[tuple[str, bytes], ...]:
    """Headers of an event; the body stays plain JSON, and time is event time, so that a replay gives the same headers.

    Source: CloudEvents 1.0, Kafka protocol binding, binary content mode.
    """
    version, event_type, source, time, content_type = _shared_headers(kind, fleet, ts_ms)
    return version, event_type, ("ce_id", identity.encode()), source, ("ce_subject", subject), time, content_type


@lru_cache(64)
def _shared_headers(kind: str, fleet: str, ts_ms: int) -> tuple[tuple[str, bytes], ...]:
    """Headers that all workloads of a fleet share at one instant, kept so that a large fleet holds them once."""
    return (
        ("ce_specversion", b"1.0"),
        ("ce_type", kind.encode()),
        # A URI reference by the specification, so a fleet's name needs its odd characters escaped.
        ("ce_source", quote(f"harmony/{fleet}", safe="/-._~").encode()),
        ("ce_time", _rfc3339(ts_ms).encode()),
        ("content-type", b"application/json"),
    )


def _rfc3339(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
