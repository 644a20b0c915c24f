"""Dead letters: what was refused and why, and sending them again once the cause is gone."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError
from rich.text import Text

from infra.console.errors import HarmonyError
from infra.console.output import FittedTable, TableColumn
from infra.console.text import printable
from infra.kafka.clients import close_producer
from infra.kafka.tail import TailRecord
from infra.settings.brokers import bootstrap_servers

_SEND_TIMEOUT_S = 20.0
_BYTES_WIDTH = 40
REPLAYED = "replayed"
# Reason of a notice: a record without a value, on telemetry that was accepted and cannot be used.
UNUSED = "unused"
# Time after which a notice is repeated while its cause lasts.
NOTICE_EVERY_S = 300.0


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """One dead letter. `topic`, `partition`, `offset` say where it was refused; `place` where it lies now.

    `cut_from` is the size of a record of which only the beginning was kept; None = it is whole.
    """

    place: str
    stamp_ms: int
    topic: str
    partition: int | None
    offset: int | None
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    cut_from: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """For scripts; bytes that are not UTF-8 come as base64."""
        return {
            "place": self.place,
            "stamp_ms": self.stamp_ms,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "reason": self.reason,
            "detail": self.detail,
            **_bytes_field("key", self.key),
            **_bytes_field("value", self.value),
            **({} if self.cut_from is None else {"cut_from": self.cut_from}),
        }


def read_letter(record: TailRecord) -> DeadLetterView:
    """A dead letter from its record; what a header does not say stays empty."""
    headers = {name: value.decode("utf-8", "replace") for name, value in record.headers}
    return DeadLetterView(
        place=f"{record.partition}:{record.offset}",
        stamp_ms=record.stamp_ms,
        topic=headers.get("topic", ""),
        partition=_number(headers.get("partition")),
        offset=_number(headers.get("offset")),
        reason=headers.get("reason", "unknown"),
        detail=headers.get("detail", ""),
        key=record.key,
        value=record.value,
        cut_from=_number(headers.get("cut")),
    )


def chosen(letters: Iterable[DeadLetterView], reason: str | None, topic: str | None) -> list[DeadLetterView]:
    """Those of a reason and of an origin topic (its full name, or what follows the prefix); notices only by reason."""
    return [
        x
        for x in letters
        if (x.reason != UNUSED if reason is None else x.reason == reason)
        and (topic is None or x.topic == topic or x.topic.endswith("." + topic))
    ]


@dataclass(frozen=True, slots=True)
class Notice:
    """Telemetry of a workload that cannot be used, as a worker has reported it. `text` has no full stop."""

    workload: str
    stamp_ms: int
    text: str

    def sentence(self) -> str:
        """The notice with its workload, without a full stop."""
        return f"{self.workload}: {self.text}"


def notices(letters: Iterable[DeadLetterView], now_ms: int) -> list[Notice]:
    """The notices whose cause still lasts, the newest of each workload and kind, ascending by workload."""
    since_ms = now_ms - 2 * NOTICE_EVERY_S * 1000
    newest: dict[tuple[str, str, str], Notice] = {}
    for letter in sorted(letters, key=lambda x: x.stamp_ms):
        if letter.reason == UNUSED and letter.stamp_ms >= since_ms:
            workload = printable((letter.key or b"").decode("utf-8", "replace"))
            kind = letter.detail.partition(":")[0]
            newest[workload, letter.topic, kind] = Notice(workload, letter.stamp_ms, printable(letter.detail, 500))
    return [newest[key] for key in sorted(newest)]


def refusals(letters: Iterable[DeadLetterView]) -> str:
    """How many records were refused, by reason, and the newest of them; "" for none. Without a full stop."""
    refused = [x for x in letters if x.reason != UNUSED]
    if not refused:
        return ""
    reasons = ", ".join(f"{printable(reason, 32)} {count}" for reason, count in by_reason(refused))
    newest = max(refused, key=lambda x: x.stamp_ms)
    where = printable(f"{newest.topic}/{newest.partition}@{newest.offset}")
    why = f"{printable(newest.reason, 32)}, {printable(newest.detail, 120)}"
    return f"{len(refused)} ({reasons}), the newest at {where}: {why}"


def by_reason(letters: Iterable[DeadLetterView]) -> list[tuple[str, int]]:
    """How many letters there are of each reason, the most frequent first."""
    return Counter(x.reason for x in letters).most_common()


def letters_table(letters: Sequence[DeadLetterView]) -> FittedTable:
    """A row per letter: when, where and why it was refused, and its first bytes where the terminal has room."""
    columns = [
        TableColumn("when", 2), TableColumn("refused at", 1), TableColumn("reason"), TableColumn("detail", wraps=True),
        TableColumn("bytes", 3), TableColumn("place", 4),
    ]  # fmt: skip
    table = FittedTable(columns)
    for x in letters:
        first_bytes = printable((x.value or b"")[:120].decode("utf-8", "replace"), _BYTES_WIDTH)
        table.rows.append(
            (
                datetime.fromtimestamp(x.stamp_ms / 1000, UTC).strftime("%m-%d %H:%M:%S"),
                printable(f"{x.topic}/{x.partition}@{x.offset}"),
                Text(printable(x.reason), style="bold"),
                printable(x.detail, 200),
                Text(first_bytes, style="dim"),
                Text(x.place, style="dim"),
            )
        )
    if not letters:
        table.caption = "no dead letters"
    return table


def replay(
    letters: Sequence[DeadLetterView],
    allowed_topics: Sequence[str],
    brokers: str,
    security: Mapping[str, Any] | None = None,
) -> int:
    """Send the original bytes to where they were refused, keyed as before; returns how many.

    Letters that name no telemetry topic of ours are never sent, nor those of which only the beginning was kept.

    Raises:
        HarmonyError: a broker refuses, or does not acknowledge.
    """
    sendable = [x for x in letters if x.topic in allowed_topics and x.value is not None and x.cut_from is None]
    if not sendable:
        return 0
    servers = bootstrap_servers(brokers, security, "; nothing was sent")
    try:
        producer = KafkaProducer(bootstrap_servers=servers, acks="all", client_id="harmony-operate", **(security or {}))
        try:
            futures = [
                producer.send(x.topic, value=x.value, key=x.key, headers=[(REPLAYED, x.place.encode())])
                for x in sendable
            ]
            for future in futures:
                future.get(timeout=_SEND_TIMEOUT_S)
        finally:
            close_producer(producer, 5.0)
    except (KafkaError, ValueError, OSError) as error:
        raise HarmonyError(
            f"Sending again failed: {str(error).rstrip('.')}. Nothing was removed; try again."
        ) from error
    return len(sendable)


def _number(text: str | None) -> int | None:
    # Not every digit of Unicode is one of int's, and JSON has no whole numbers of any length.
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


def _bytes_field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
