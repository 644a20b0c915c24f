"""Operators' words: checked as a worker will, and written to the controls topic."""

from __future__ import annotations

import getpass
import re
import uuid
from collections.abc import Mapping
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from infra.console.errors import HarmonyError
from infra.console.text import parse_units_s
from infra.kafka.clients import close_producer
from infra.settings.brokers import bootstrap_servers
from streams.catalogue import DEFAULT_CATALOGUE
from streams.records.decode import RecordDecoder
from streams.records.facts import Control
from streams.records.schema import DeadLetter, encode_control

_SEND_TIMEOUT_S = 20.0


def parse_duration_ms(text: str) -> int:
    """Milliseconds of what `--for` was given: `2h`, `90m`, `1d12h`, `30s`.

    Raises:
        HarmonyError: anything else, or nothing at all.

    >>> parse_duration_ms("1h30m")
    5400000
    """
    try:
        duration_ms = round(1000 * parse_units_s(text))
    except ValueError as error:
        raise HarmonyError(f"--for: {error}.", 2) from None
    if duration_ms < 1:
        raise HarmonyError(f"--for: {text!r} is shorter than a millisecond.", 2)
    return duration_ms


def word(action: str, workload: str | None, now_ms: int, **settings: Any) -> Control:
    """A control record with a fresh id, by the user of this shell.

    Args:
        now_ms: event time; a pin's end counts on it.
        settings: the other fields of Control.
    """
    return Control(uuid.uuid4().hex[:16], now_ms, action, workload, by=_user(), **settings)


def encode_checked(control: Control) -> bytes:
    """The record's bytes.

    Raises:
        HarmonyError: a worker would refuse it; says why.
    """
    value = encode_control(control)
    answer = RecordDecoder(DEFAULT_CATALOGUE, "requests", len(value)).decode(value, None, control.ts_ms)
    if isinstance(answer, DeadLetter):
        raise HarmonyError(f"This cannot be ordered: {answer.detail}.", 2)
    return value


def publish(control: Control, brokers: str, topic: str, security: Mapping[str, Any] | None = None) -> None:
    """Write a control record to the controls topic and wait for the acknowledgement.

    Raises:
        HarmonyError: refused, or not acknowledged; the same word may simply be given again.
    """
    value = encode_checked(control)
    servers = bootstrap_servers(brokers, security, "; nothing was ordered")
    try:
        producer = KafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            client_id="harmony-operate",
            allow_auto_create_topics=False,
            **(security or {}),
        )
    except (KafkaError, ValueError, OSError) as error:
        raise HarmonyError(f"The brokers at {brokers} refuse: {str(error).rstrip('.')}.") from error
    try:
        if not producer.partitions_for(topic):
            raise HarmonyError(
                f"There is no topic {topic} at {brokers}, nothing was ordered. Check the prefix in harmony.yaml, "
                "or create the topics with `harmony topics create`."
            )
        producer.send(topic, value=value, partition=0).get(timeout=_SEND_TIMEOUT_S)
    except KafkaError as error:
        raise HarmonyError(
            f"The order {control.action} was not acknowledged by {topic} ({str(error).rstrip('.')}). Give it again."
        ) from error
    finally:
        close_producer(producer, 5.0)


def _user() -> str:
    try:
        return re.sub(r"[^\w.@-]", "_", getpass.getuser())[:64]
    except (OSError, KeyError, ImportError):
        return ""
