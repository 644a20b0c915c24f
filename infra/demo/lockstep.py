"""Lockstep with the workers over Kafka: publish a slot, then wait for its decisions and commands."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event
from time import monotonic
from typing import Any, Self

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from agents.decide.records import decode_command, decode_decision
from agents.records import Command, Decision
from infra.console.errors import HarmonyError
from infra.kafka.clients import close_producer
from infra.kafka.readable import read_within_bounds
from infra.simulator.telemetry import SlotTelemetry
from streams.records.schema import encode_tick, record_key
from streams.topics import Topics

POLL_MS = 100
# Until the first answer: a worker's first start compiles, a minute of an idle core and many of a slow and busy one.
# One that ends meanwhile is noticed at once.
FIRST_ANSWER_S = 900.0
# A workload's newest decisions are kept for so many slots: more than may be outstanding.
MAX_SLOTS = 1_024


class Interrupted(Exception):
    """The run was asked to stop while it waited."""


class SlotPublisher:
    """Publishes samples by key and ticks to every partition of both telemetry topics.

    Args:
        brokers: `host:port`, several separated by commas.
        security: keyword arguments of kafka-python's clients.
    """

    def __init__(self, brokers: str, topics: Topics, security: Mapping[str, Any] | None = None) -> None:
        self._topics = topics
        # Idempotent, so that a retry neither doubles nor reorders; the default partitioner is murmur2 of the key.
        self._producer = KafkaProducer(
            bootstrap_servers=brokers.split(","),
            client_id="harmony-fleet",
            acks="all",
            enable_idempotence=True,
            linger_ms=1,
            **dict(security or {}),
        )

    def publish(self, samples: Mapping[str, SlotTelemetry], tick_ts_ms: int) -> None:
        """Publish one slot and await the broker: first the samples, then the ticks that close it.

        Raises:
            HarmonyError: the broker did not take a record.
        """
        topics = self._topics
        sent: list[tuple[str, Any]] = []
        try:
            for workload, slot in samples.items():
                key = record_key(workload)
                for topic, values in ((topics.telemetry_requests, slot.requests), (topics.telemetry_gpu, slot.gpu)):
                    sent += [(topic, self._producer.send(topic, key=key, value=value)) for value in values]
            tick = encode_tick(tick_ts_ms)
            for topic in (topics.telemetry_requests, topics.telemetry_gpu):
                for partition in range(topics.partitions):
                    sent.append((topic, self._producer.send(topic, value=tick, partition=partition)))
            self._producer.flush(timeout=60)
            for _, future in sent:
                future.get(timeout=0)
        except KafkaError as error:
            where = sent[-1][0] if sent else topics.telemetry_requests
            raise HarmonyError(
                f"The broker did not take the fleet's telemetry on {where} ({type(error).__name__}: {error}); "
                "check that it runs and that the topics exist (`harmony topics check`)."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        close_producer(self._producer, 5.0)


def reader_from_now(
    brokers: str, topics: Iterable[str], num_partitions: int, security: Mapping[str, Any] | None = None
) -> KafkaConsumer:
    """A consumer in no group that reads what is appended from now on to all partitions of these topics."""
    read_within_bounds()
    consumer = KafkaConsumer(
        bootstrap_servers=brokers.split(","),
        client_id="harmony-fleet",
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **dict(security or {}),
    )
    partitions = [TopicPartition(topic, p) for topic in topics for p in range(num_partitions)]
    consumer.assign(partitions)
    consumer.seek_to_end(*partitions)
    for partition in partitions:
        # The seek is lazy: only asking for the position pins it before the first slot is published.
        consumer.position(partition)
    return consumer


class DecisionFeed:
    """Reads decisions and commands from the ends of their topics on, in no consumer group.

    Args:
        workloads: ids to listen for; records of others are passed over.
    """

    def __init__(
        self, brokers: str, topics: Topics, workloads: Iterable[str], security: Mapping[str, Any] | None = None
    ) -> None:
        self._topics = topics
        self._consumer = reader_from_now(brokers, (topics.decisions, topics.commands), topics.partitions, security)
        self.inbox = Inbox(workloads)

    def wait(
        self,
        origin_ts_ms: int,
        step_ms: int,
        timeout_s: float,
        stop: Event,
        check_alive: Callable[[], None] | None = None,
    ) -> None:
        """Return once every workload has a decision at `origin_ts_ms` or later, and the commands they order.

        Raises:
            Interrupted: `stop` was set.
            HarmonyError: nothing came in time; says what is missing.
        """
        started_s = monotonic()
        while missing := self.inbox.missing(origin_ts_ms, step_ms):
            if stop.is_set():
                raise Interrupted
            if check_alive is not None:
                check_alive()
            if monotonic() - started_s > timeout_s:
                raise HarmonyError(self._complaint(missing, origin_ts_ms, timeout_s))
            self.poll(POLL_MS)

    def poll(self, timeout_ms: int = 0) -> None:
        """Take in what has arrived."""
        try:
            batches = self._consumer.poll(timeout_ms=timeout_ms)
        except KafkaError as error:
            raise HarmonyError(
                f"Decisions cannot be read ({type(error).__name__}: {error}); check that the broker runs and that "
                f"{self._topics.decisions} may be read."
            ) from error
        for partition, records in batches.items():
            take = self.inbox.take_decision if partition.topic == self._topics.decisions else self.inbox.take_command
            for record in records:
                if record.value is not None:
                    take(record.value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _complaint(self, missing: Sequence[str], origin_ts_ms: int, timeout_s: float) -> str:
        named = "; ".join(missing[:5]) + (f"; and {len(missing) - 5} more" if len(missing) > 5 else "")
        return (
            f"No answer to the slot that ended at {origin_ts_ms} within {timeout_s:g} s: {named}. "
            "The fleet waits for every slot's decisions: check that workers of all three roles run (`harmony status`)."
        )


class Inbox:
    """Decisions and commands read so far, and what a slot still lacks. The first decision of an origin stands."""

    def __init__(self, workloads: Iterable[str]) -> None:
        self._decisions: dict[str, dict[int, Decision]] = {w: {} for w in workloads}
        self._newest: dict[str, int] = {}
        self._commands: dict[str, Command] = {}
        self._arrived: deque[Decision] = deque()

    def take_decision(self, value: bytes) -> None:
        """A record of the decisions topic; anything else there is passed over."""
        try:
            decision = decode_decision(value)
        except msgspec.MsgspecError:
            return
        by_origin = self._decisions.get(decision.workload)
        if by_origin is None or decision.origin_ts_ms in by_origin or decision.action == "retired":
            return
        by_origin[decision.origin_ts_ms] = decision
        self._newest[decision.workload] = max(self._newest.get(decision.workload, 0), decision.origin_ts_ms)
        self._arrived.append(decision)
        while len(by_origin) > MAX_SLOTS:
            del by_origin[min(by_origin)]

    def take_command(self, value: bytes) -> None:
        """A record of the commands topic; only the newest of a workload is kept, anything else is passed over."""
        try:
            command = decode_command(value)
        except msgspec.MsgspecError:
            return
        previous = self._commands.get(command.workload)
        if previous is None or (command.epoch, command.sequence) >= (previous.epoch, previous.sequence):
            self._commands[command.workload] = command

    def missing(self, origin_ts_ms: int, step_ms: int) -> list[str]:
        """What the slot ending at `origin_ts_ms` lacks, in words; empty when it is answered."""
        lacking = []
        for workload, decisions in self._decisions.items():
            newest = self._newest.get(workload)
            if newest is None:
                lacking.append(f"no decision yet for {workload}")
            elif newest < origin_ts_ms:
                lacking.append(f"the decision for {workload} (its newest is of {newest})")
            else:
                decision = decisions.get(origin_ts_ms)
                if (
                    decision is not None
                    and decision.command_id is not None
                    and not self._has_command(decision, step_ms)
                ):
                    lacking.append(f"the command {decision.command_id} for {workload}")
        return lacking

    def decision(self, workload: str, origin_ts_ms: int) -> Decision | None:
        """The decision of one origin, None when there was none."""
        return self._decisions[workload].get(origin_ts_ms)

    def command(self, decision: Decision) -> Command | None:
        """The newest command of the decision's workload when it is the one that the decision orders."""
        command = self._commands.get(decision.workload)
        return command if command is not None and command.command_id == decision.command_id else None

    def take_arrived(self) -> list[Decision]:
        """Decisions read since the last call, each once."""
        arrived = list(self._arrived)
        self._arrived.clear()
        return arrived

    def _has_command(self, decision: Decision, step_ms: int) -> bool:
        command = self._commands.get(decision.workload)
        # A lease is published again at every origin; an older one of the same id is not this slot's answer.
        return command is not None and command.sequence >= decision.origin_ts_ms // step_ms


# Pacing: event time against the wall clock.


class Pace:
    """Holds slots to the wall clock. Lost time is not caught up in a rush.

    Args:
        slot_s: wall seconds per slot; 0 = as fast as possible.
    """

    def __init__(self, slot_s: float) -> None:
        self._slot_s = slot_s
        self._due_s: float | None = None
        self.behind_s = 0.0

    def wait(self, stop: Event) -> bool:
        """Sleep until the next slot is due; False when asked to stop meanwhile."""
        now_s = monotonic()
        due_s = now_s if self._due_s is None else self._due_s
        self.behind_s = max(0.0, now_s - due_s) if self._slot_s else 0.0
        if due_s > now_s and stop.wait(due_s - now_s):
            return False
        self._due_s = max(due_s, now_s - 1.0) + self._slot_s
        return True


def check_pace(speed: float, duration_s: float | None) -> None:
    """Pass a speed (event seconds per second) and a duration (wall seconds) that go together.

    Raises:
        HarmonyError: they do not (exit code 2).
    """
    if speed < 0 or not math.isfinite(speed):
        raise HarmonyError(f"The speed must be a number >= 0, got {speed:g}.", 2)
    if duration_s is not None and (speed == 0 or not 0 < duration_s < math.inf):
        raise HarmonyError("A duration needs to be positive, and a speed above 0: at 0 the run goes as it can.", 2)


# Counts of the decisions of a run.


class DecisionTally:
    """Decisions by action, holds by reason, forecasts behind them by source, and distinct commands."""

    def __init__(self) -> None:
        self.by_action: Counter[str] = Counter()
        self.hold_reasons: Counter[str] = Counter()
        self.forecast_sources: Counter[str] = Counter()
        self.commands: set[str] = set()

    @property
    def total(self) -> int:
        return self.by_action.total()

    def add(self, decisions: Iterable[Decision]) -> None:
        """Decisions, each given once."""
        for decision in decisions:
            self.by_action[decision.action] += 1
            if decision.action == "hold":
                self.hold_reasons[decision.reason] += 1
            if decision.forecast.source is not None:
                self.forecast_sources[decision.forecast.source] += 1
            if decision.command_id is not None:
                self.commands.add(decision.command_id)
