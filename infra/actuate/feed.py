"""The commands topic from its beginning and on: what an actuator that starts anew must have read before it acts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from kafka import TopicPartition

from agents.decide.records import decode_command
from agents.records import Command
from infra.kafka.tail import TailRecord, TopicTail


class Batch(NamedTuple):
    """The newest command of each workload among the records of one poll.

    Attributes:
        commands: at most one per workload.
        unreadable: records that are no commands.
        caught_up: everything that was in the topic at the start has been read. Compaction is lazy, so before that an
            old command may come without the newer one that replaced it, and must not be acted upon.
    """

    commands: dict[str, Command]
    unreadable: int
    caught_up: bool


def newest_of(records: Iterable[TailRecord]) -> tuple[dict[str, Command], int]:
    """The newest command per workload, by epoch and sequence, and how many records were no commands."""
    newest: dict[str, Command] = {}
    unreadable = 0
    for record in records:
        if record.value is None:
            continue
        try:
            command = decode_command(record.value)
        except msgspec.MsgspecError:
            unreadable += 1
            continue
        known = newest.get(command.workload)
        if known is None or (command.epoch, command.sequence) >= (known.epoch, known.sequence):
            newest[command.workload] = command
    return newest, unreadable


class CommandFeed(TopicTail):
    """Reads the commands topic outside any group: every actuator sees every command, and nothing is committed."""

    def batches(self) -> Iterator[Batch]:
        """For ever, one per poll (a quarter of a second when nothing comes), empty ones included.

        Raises:
            HarmonyError: the topic cannot be read, or has got partitions that are not read.
        """
        bounds = self.bounds()
        self._position({partition: begin for partition, (begin, _) in bounds.items()})
        behind = {tp: end for tp in self._tps for begin, end in (bounds[tp.partition],) if begin < end}
        first = True
        while True:
            self._refuse_new_partitions()
            # The first batch comes without a poll where there is nothing to read: a new fleet is caught up at once.
            polled = {} if first and not behind else self._poll()
            first = False
            with self._explained():
                behind = {tp: end for tp, end in behind.items() if self._reached(tp) < end}
            commands, unreadable = newest_of(
                TailRecord(r.partition, r.offset, r.timestamp, r.key, r.value, ())
                for records in polled.values()
                for r in records
            )
            yield Batch(commands, unreadable, not behind)

    def _reached(self, tp: TopicPartition) -> int:
        return int(self._consumer.position(tp))
