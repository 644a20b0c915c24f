"""`harmony state reset`: forget everything that the workers have learned and published between themselves.

Telemetry, forecasts, decisions and commands stay. The next workers start empty and fold the telemetry that is still
retained; a higher epoch lets actuators tell their commands from those of before. Telemetry goes as well where it is
asked for, so that a new start may begin with the past (`harmony collect prometheus --history`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    GroupIdNotFoundError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from agents.decide.state import STAGE as DECIDE
from agents.decide.state import DecideCommit
from infra.console.errors import HarmonyError
from infra.kafka.admin import create_topics, log_ends, patiently
from infra.kafka.readable import read_within_bounds
from infra.kafka.rights import workers_group
from infra.settings.brokers import bootstrap_servers
from streams.log import UNREADABLE, ContractBroken, LogRecord
from streams.runtime.commits import CommitAssembler
from streams.topics import Topics, TopicSpec

_TIMEOUT_MS = 30_000
_DELETED_WITHIN_S = 30.0
_EPOCH_LINE = re.compile(r"^(?P<before>\s+epoch:\s*)(?P<number>\d+)(?P<after>\s*(#.*)?)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Holding:
    """One internal topic as it stands. `partitions` 0 = it does not exist; `wanted` as the settings say."""

    name: str
    partitions: int
    wanted: int
    records: int


class StateReset:
    """A connection to the cluster for this one purpose; use as a context manager.

    Args:
        security: keyword arguments of kafka-python's clients.
        telemetry: empty the telemetry topics as well.

    Raises:
        HarmonyError: no broker answers.
    """

    def __init__(
        self, brokers: str, topics: Topics, security: Mapping[str, Any] | None = None, *, telemetry: bool = False
    ) -> None:
        servers = bootstrap_servers(brokers, security)
        self._brokers, self._topics, self._security = brokers, topics, dict(security or {})
        names = {topics.pages, topics.pages_coarse, topics.plans, topics.commits}
        if telemetry:
            names |= {topics.telemetry_requests, topics.telemetry_gpu}
        self._specs = [spec for spec in topics.specs() if spec.name in names]
        read_within_bounds()
        with self._explained():
            options = {"bootstrap_servers": servers, "request_timeout_ms": _TIMEOUT_MS, **self._security}
            self._admin = KafkaAdminClient(client_id="harmony-state-reset", **options)
            self._reader = KafkaConsumer(
                group_id=None, enable_auto_commit=False, isolation_level="read_committed", **options
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._admin.close()

    def holdings(self) -> list[Holding]:
        """What each internal topic holds now."""
        with self._explained():
            rows = []
            ends = log_ends(self._admin, [spec.name for spec in self._specs])
            for spec in self._specs:
                tps = self._partitions_of(spec.name)
                begins = self._reader.beginning_offsets(tps)
                records = sum(ends[tp].high_watermark - begins[tp] for tp in tps)
                rows.append(Holding(spec.name, len(tps), spec.partitions, records))
            return rows

    def members(self) -> list[str]:
        """Workers that Kafka counts as alive; one that was killed stays for a session."""
        group = workers_group(self._topics)
        with self._explained():
            described = patiently(lambda: self._admin.describe_groups([group]))
        members = described[group]["members"] if group in described else []
        return sorted(m.get("group_instance_id") or m["member_id"] for m in members)

    def newest_epoch(self) -> int | None:
        """The epoch of the newest commit record of the decide stage, where there is one that can be read.

        Raises:
            HarmonyError: an open transaction hides the newest records, or Kafka refuses.
        """
        with self._explained():
            end = log_ends(self._admin, [self._topics.commits]).get((self._topics.commits, 0))
        if end is not None and end.num_unstable:
            raise HarmonyError(
                f"{self._topics.commits}/0 has an open transaction from offset {end.last_stable} on, which hides the "
                "newest epoch; end it (`harmony doctor` gives the command), then run this command again."
            )
        assembler = CommitAssembler(DECIDE, 0, self._topics.commits)
        with self._explained():
            for record in self._log(TopicPartition(self._topics.commits, 0)):
                try:
                    assembler.feed(record)
                except ContractBroken:
                    assembler = CommitAssembler(DECIDE, 0, self._topics.commits)
        if assembler.newest is None:
            return None
        try:
            return msgspec.msgpack.decode(assembler.newest.body, type=DecideCommit).epoch
        except UNREADABLE:
            return None

    def reset(self) -> None:
        """Empty the internal topics, give them the partitions that the settings want, forget the group's offsets.

        Raises:
            HarmonyError: workers are alive, or Kafka refuses.
        """
        alive = self.members()
        if alive:
            raise HarmonyError(alive_message(alive))
        holdings = {h.name: h for h in self.holdings()}
        keep = [s for s in self._specs if holdings[s.name].partitions == s.partitions]
        anew = [s for s in self._specs if holdings[s.name].partitions not in (0, s.partitions)]
        with self._explained():
            everything = {tp: -1 for spec in keep for tp in self._partitions_of(spec.name)}
            if everything:
                self._admin.delete_records(everything, timeout_ms=_TIMEOUT_MS)
            self._create_anew(anew)
            with suppress(GroupIdNotFoundError):
                patiently(lambda: self._admin.delete_groups([workers_group(self._topics)]))

    def _create_anew(self, specs: Sequence[TopicSpec]) -> None:
        if not specs:
            return
        self._admin.delete_topics([spec.name for spec in specs], timeout_ms=_TIMEOUT_MS)
        deadline_s = monotonic() + _DELETED_WITHIN_S
        while True:
            # Deletion goes on after its answer.
            try:
                new_topics = create_topics(self._brokers, specs, security=self._security)
            except (HarmonyError, TopicAlreadyExistsError):
                new_topics = ()
            specs = [spec for spec in specs if spec.name not in new_topics]
            if not specs:
                return
            if monotonic() > deadline_s:
                raise HarmonyError(f"{specs[0].name} was deleted but cannot be created yet; run this command again.")
            sleep(0.5)

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, p) for p in sorted(self._reader.partitions_for_topic(topic) or ())]

    def _log(self, tp: TopicPartition) -> Iterator[LogRecord]:
        if tp not in self._partitions_of(tp.topic):
            return
        end = self._reader.end_offsets([tp])[tp]
        self._reader.assign([tp])
        self._reader.seek_to_beginning(tp)
        while self._reader.position(tp) < end:
            for records in self._reader.poll(timeout_ms=500).values():
                yield from (LogRecord(r.offset, r.timestamp, r.key, r.value) for r in records)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except UnknownTopicOrPartitionError as error:
            raise HarmonyError(f"A topic vanished meanwhile ({error}); run this command again.") from error
        except (KafkaError, OSError) as error:
            raise HarmonyError(f"The brokers at {self._brokers} refuse: {str(error).rstrip('.')}.") from error


def alive_message(alive: Sequence[str]) -> str:
    return (
        f"Workers are alive in the group: {', '.join(alive)}. Stop them first; one that was killed counts until its "
        "session is over (15 s by default)."
    )


def raise_epoch(path: Path | None, epoch: int) -> bool:
    """Write a higher epoch into the settings file where it names one already; False = a person must do it."""
    if path is None or not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    lines = list(_EPOCH_LINE.finditer(text))
    if len(lines) != 1:
        return False
    (line,) = lines
    path.write_text(f"{text[: line.start('number')]}{epoch}{text[line.end('number') :]}", encoding="utf-8")
    return True
