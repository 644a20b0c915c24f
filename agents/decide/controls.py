"""Control records of operators, from their own topic into the `plans` log.

    controls ─▶ ControlKernel ─▶ plans (records without workloads) ─▶ DecideKernel

The decide stage folds one log, so the order of control records and plans is fixed there once, and a replay decides the
same. Nobody but operators needs the right to write `controls`.

The stage has no commit record: the decide stage commits the offset of the last control record that it has applied. What
is copied again after a restart is dropped by its offset.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import msgspec

from agents.decide.state import STAGE as DECIDE
from agents.decide.state import DecideCommit
from agents.planning.codec import CONTROLS_PARTITION, encode_plan, plan_key
from agents.records import PlanRecord
from streams.catalogue import DEFAULT_CATALOGUE
from streams.log import UNREADABLE, ContractBroken, Emission, LogRecord, OutRecord, batched
from streams.meter import Meter
from streams.records.dead_letters import DeadLetterBox
from streams.records.decode import RecordDecoder
from streams.records.facts import Control
from streams.records.schema import ControlRecord, DeadLetter, Tombstone
from streams.runtime.app import StageHost
from streams.runtime.commits import newest_commit
from streams.runtime.restore import LogReader
from streams.topics import CONTROL_BYTES, Topics

STAGE: Final = "controls"
MINUTE_MS: Final = 60_000
# Control records accepted per minute of the broker's clock. The fleet's kill switch has a budget of its own, so that no
# number of pins keeps it from being heard.
MAX_CONTROLS_PER_MINUTE: Final = 1_000
MAX_FLEET_CONTROLS_PER_MINUTE: Final = 60
_CONTROLS_PER_RECORD: Final = 256  # at most some 3 kB each


class ControlKernel:
    """Copies the control records of one partition into `plans`, at most so many per minute; the rest are dead letters.

    The count starts anew with each minute of the broker's stamps. Reading starts where a minute starts, so every run
    accepts the same records.

    Args:
        step_ms: slot length, which every record of `plans` names.
        meter: gets `dead_letters_total`.
        resume_offset: where to read on; None = at the first record.
    """

    def __init__(self, topics: Topics, step_ms: int, meter: Meter, resume_offset: int | None = None) -> None:
        self.resume_offset = resume_offset
        self._topics = topics
        self._step_ms = step_ms
        self._meter = meter
        self._box = DeadLetterBox(topics.dead_letters, topics.controls, 0)
        self._decode = RecordDecoder(DEFAULT_CATALOGUE, "requests", CONTROL_BYTES).decode
        self._minute = -1
        self._num_accepted = {True: 0, False: 0}  # of this minute, those for the fleet and those for a workload

    async def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        accepted: list[tuple[LogRecord, Control]] = []
        before = dict(self._box.counts)
        for record in records:
            found = self._read(record)
            if isinstance(found, Control):
                accepted.append((record, found))
            elif found is not None:
                self._box.add(record, found, published_before=False)
        for code, number in self._box.counts.items():
            self._meter.count("dead_letters_total", number - before.get(code, 0), code=code)
        # One is acknowledged before the next is sent: the decide stage takes a record for proof of those before it.
        plans = [[self._plan(group)] for group in batched(accepted, _CONTROLS_PER_RECORD)]
        yield Emission([*plans, self._box.take()], (), records[-1].offset + 1, urgent=True)

    def _read(self, record: LogRecord) -> Control | DeadLetter | None:
        minute = record.stamp_ms // MINUTE_MS
        if minute != self._minute:
            self._minute, self._num_accepted = minute, {True: 0, False: 0}
        if all(self._is_over(for_fleet) for for_fleet in (True, False)):
            return self._one_too_many(for_fleet=False)  # not worth reading
        decoded = self._decode(record.value, record.key, record.stamp_ms)
        if isinstance(decoded, DeadLetter | Tombstone):
            return decoded if isinstance(decoded, DeadLetter) else None
        if not isinstance(decoded, ControlRecord):
            return DeadLetter("kind", "only control records are read here; telemetry has its own topics")
        for_fleet = decoded.control.workload is None
        if self._is_over(for_fleet):
            return self._one_too_many(for_fleet)
        self._num_accepted[for_fleet] += 1
        return decoded.control

    def _is_over(self, for_fleet: bool) -> bool:
        return self._num_accepted[for_fleet] >= _limit(for_fleet)

    @staticmethod
    def _one_too_many(for_fleet: bool) -> DeadLetter:
        return DeadLetter("limit", f"more than {_limit(for_fleet)} control records within a minute")

    def _plan(self, group: Sequence[tuple[LogRecord, Control]]) -> OutRecord:
        newest, _ = group[-1]
        record = PlanRecord(
            partition=CONTROLS_PARTITION,
            slot=newest.offset,
            origin_ts_ms=0,
            step_ms=self._step_ms,
            model_fingerprint="",
            policy_fingerprint="",
            workloads=(),
            controls=tuple(control for _, control in group),
            end_stamp_ms=newest.stamp_ms,
        )
        return OutRecord(self._topics.plans, plan_key(CONTROLS_PARTITION), encode_plan(record), 0)


def _limit(for_fleet: bool) -> int:
    return MAX_FLEET_CONTROLS_PER_MINUTE if for_fleet else MAX_CONTROLS_PER_MINUTE


class ControlStage:
    """Restores the kernel from what the decide stage has committed."""

    name = STAGE
    batch_rule = None

    def __init__(self, topics: Topics, step_ms: int, meter: Meter) -> None:
        self._topics = topics
        self._step_ms = step_ms
        self._meter = meter

    @property
    def input_topics(self) -> tuple[str, ...]:
        return (self._topics.controls,)

    async def restore(self, topic: str, partition: int, reader: LogReader) -> ControlKernel:
        self._topics.check_partition(topic, partition)
        commit = await newest_commit(reader, self._topics.commits, DECIDE, 0)
        start = None
        if commit is not None:
            try:
                state = msgspec.msgpack.decode(commit.body, type=DecideCommit).state
            except UNREADABLE as error:
                raise ContractBroken(
                    f"the decide stage's commit record cannot be read ({error}): run the release that wrote it, or "
                    "accept a new start with `harmony state reset`"
                ) from error
            if state.controls_offset is not None:
                minute_ms = state.controls_stamp_ms // MINUTE_MS * MINUTE_MS
                start = await reader.offset_at(topic, partition, minute_ms)
        return ControlKernel(self._topics, self._step_ms, self._meter, start)


def register_control_agent(host: StageHost, stage: ControlStage) -> Any:
    """Declare the agent over the controls topic."""

    async def controls(stream: Any) -> None:
        async for batch in stream:
            await host.accept(batch)

    return host.app.agent(host.batch_topic(stage.input_topics[0]), name="controls")(controls)
