"""A lane: the queue, kernel and task of one partition, shared by all three stages.

A lane reads the batches of its partition in order and gives them to a kernel. For each emission of the kernel it
publishes the outputs and awaits the broker, publishes the commit record and awaits the broker, and marks the resume
offset safe. On any exception the process exits, and its replacement rebuilds the state from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic, time
from typing import Literal, Protocol, runtime_checkable

from streams.log import ContractBroken, Emission, LogRecord, OutRecord
from streams.meter import Meter

SendGroup = Callable[[Sequence[OutRecord]], Awaitable[None]]
FailPoint = Callable[[str], None]
WaitsFor = Literal["", "kernel", "kafka"]

# Batches that wait in a lane before its agent must wait.
_MAX_QUEUED_BATCHES = 2
# Emissions that are published together.
_MAX_GROUPED_EMISSIONS = 4
# Records whose work a kernel may defer.
_MAX_DEFERRED_RECORDS = 16


class Kernel(Protocol):
    """State of one partition: a pure function of its log and of the forecasters."""

    @property
    def resume_offset(self) -> int | None:
        """Offset where reading starts; None = the partition has no state yet."""
        ...

    def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        """Fold records in log order; yield emissions in the order of publication."""
        ...


@runtime_checkable
class LossTolerantKernel(Kernel, Protocol):
    """A kernel that can continue after retention has removed records that it had not read."""

    def skip_lost(self, first_offset: int) -> None:
        """Continue at this offset; the records before it are lost. The caller reports the loss."""
        ...


@runtime_checkable
class DeferringKernel(Kernel, Protocol):
    """A kernel that defers work without urgency, such as its commit records, while there are records to fold.

    After a crash, records without a commit record are read again. The kernel adopts outputs that were published.
    """

    @property
    def num_deferred(self) -> int:
        """Records whose work is deferred; grows by at most one with each record that is folded."""
        ...

    async def wait_until_idle(self) -> None:
        """Wait until the deferred work delays nothing else; cancelled when there are records to fold."""
        ...

    def flush_deferred(self) -> AsyncGenerator[Emission, None]:
        """Do the deferred work."""
        ...


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How small batches are folded together; each fold costs a millisecond, however few records it has.

    Attributes:
        urgent: whether a record ends the wait, for itself and for the records before it.
        max_records: number of records that ends the wait.
        max_bytes: bytes of values that end the wait; a packed record holds hundreds of samples.
        max_wait_s: longest wait of the first record.
    """

    urgent: Callable[[LogRecord], bool]
    max_records: int = 1024
    max_bytes: int = 1 << 19
    max_wait_s: float = 0.1


class Lane:
    """One partition's queue, kernel and task.

    Watchdogs read its attributes.

    Attributes:
        next_offset: offset of the next record that is accepted.
        marks: a counter that grows with every step of work.
        waits_for: "" while idle, `kernel` while it folds, `kafka` while an acknowledgement is outstanding.
        full: whether its agent waits for room in the queue, and with it all later batches of the agent.
    """

    def __init__(
        self,
        stage: str,
        kernel: Kernel,
        send: SendGroup,
        mark_safe: Callable[[int], None],
        meter: Meter,
        on_failure: Callable[[str, BaseException], None],
        fail_point: FailPoint,
        now_ms: Callable[[], float] = lambda: time() * 1000,
        batch_rule: BatchRule | None = None,
    ) -> None:
        self.stage = stage
        self.kernel = kernel
        self.next_offset = kernel.resume_offset
        self.marks = 0
        self.waits_for: WaitsFor = ""
        self.full = False
        self._send = send
        self._mark_safe = mark_safe
        self._meter = meter
        self._on_failure = on_failure
        self._fail_point = fail_point
        self._now_ms = now_ms
        self._batch_rule = batch_rule
        self._queue: asyncio.Queue[list[LogRecord]] = asyncio.Queue(_MAX_QUEUED_BATCHES)
        self._arrived = asyncio.Event()
        self._rest: list[LogRecord] = []  # the rest of a batch with more records than may be deferred
        self._task = asyncio.create_task(self._run(), name=f"lane-{stage}")

    async def put(self, records: list[LogRecord]) -> None:
        """Queue the next contiguous records; waits while the queue is full, which is the back-pressure.

        Raises:
            ContractBroken: the records do not follow on what was folded before.
        """
        first = records[0].offset
        if self.next_offset is not None and first != self.next_offset and not self._gap_allowed(first):
            raise ContractBroken(
                f"{self.stage}: the state wants offset {self.next_offset} but the log continues at {first}; "
                "retention removed what lies between (raise it, or accept a new start with `harmony state reset`)"
            )
        self.next_offset = records[-1].offset + 1
        self.full = self._queue.full()
        try:
            await self._queue.put(records)
            self._arrived.set()
        finally:
            self.full = False

    def skip_lost(self, expected_offset: int, first: int) -> None:
        """Tell a loss-tolerant kernel that the log continues at `first`, not at `expected_offset`."""
        # The kernel decides only where the first record is read. A later gap is treated like a transaction marker.
        if self.next_offset == expected_offset == self.kernel.resume_offset and isinstance(
            self.kernel, LossTolerantKernel
        ):
            self.kernel.skip_lost(first)
            self.next_offset = self.kernel.resume_offset

    def _gap_allowed(self, first: int) -> bool:
        # Transaction markers leave gaps inside a log. A gap before the first record is due to retention.
        return self.next_offset != self.kernel.resume_offset and first > (self.next_offset or 0)

    async def close(self) -> None:
        """Stop without finishing; the next owner of the partition reads uncommitted records again."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # The agent may still wait in `put` for room in this queue, and would block the next lane of the partition.
        while not self._queue.empty():
            self._queue.get_nowait()

    async def _run(self) -> None:
        try:
            while True:
                emissions = await self._next()
                self.waits_for = "kernel"
                self.marks += 1
                # A lane that is closed while it publishes must end its kernel's generator at once: other lanes may wait
                # for it, and the garbage collector would end it too late.
                async with aclosing(emissions):
                    await self._publish_all(emissions)
                self.waits_for = ""
                self.marks += 1
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - crash-only: every error ends the process
            self._on_failure(self.stage, error)

    async def _publish_all(self, emissions: AsyncGenerator[Emission, None]) -> None:
        group: list[Emission] = []
        async for emission in emissions:
            self.marks += 1
            group.append(emission)
            if emission.urgent or len(group) == _MAX_GROUPED_EMISSIONS:
                await self._publish(group)
                group = []
        if group:
            await self._publish(group)

    async def _next(self) -> AsyncGenerator[Emission, None]:
        """Emissions for the next records, or those of deferred work while there are none."""
        deferring = self.kernel if isinstance(self.kernel, DeferringKernel) else None
        if deferring is not None and deferring.num_deferred and await self._flush_is_due(deferring):
            return deferring.flush_deferred()
        records = self._rest or await self._batch(await self._queue.get())
        if deferring is not None:
            room = _MAX_DEFERRED_RECORDS - deferring.num_deferred
            records, self._rest = records[:room], records[room:]
        self._meter.observe("stage_batch_records", len(records), stage=self.stage)
        return self.kernel.fold(records)

    async def _flush_is_due(self, kernel: DeferringKernel) -> bool:
        """Whether to flush deferred work: at the limit, or when the kernel is idle and no record has arrived."""
        if kernel.num_deferred >= _MAX_DEFERRED_RECORDS:
            return True
        if self._rest or not self._queue.empty():
            return False
        self._arrived.clear()
        waiting = [asyncio.create_task(kernel.wait_until_idle()), asyncio.create_task(self._arrived.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        return self._queue.empty()

    async def _batch(self, records: list[LogRecord]) -> list[LogRecord]:
        """These records, and those that arrive while the batch rule lets them wait."""
        rule, newest = self._batch_rule, records
        if rule is None:
            return records
        deadline = monotonic() + rule.max_wait_s
        num_bytes = _num_bytes(records)
        while len(records) < rule.max_records and num_bytes < rule.max_bytes and not any(map(rule.urgent, newest)):
            try:
                async with asyncio.timeout(deadline - monotonic()):
                    newest = await self._queue.get()
            except TimeoutError:
                break
            records = records + newest
            num_bytes += _num_bytes(newest)
        return records

    async def _send_and_wait(self, records: Sequence[OutRecord]) -> None:
        self.waits_for = "kafka"
        await self._send(records)
        self.waits_for = "kernel"
        self.marks += 1

    async def _publish(self, group: list[Emission]) -> None:
        """Publish all outputs of the group, then its commits: a crash in between repeats outputs and loses none."""
        started = monotonic()
        depth = max(len(emission.outputs) for emission in group)
        for level in range(depth):
            records = [r for e in group if level < len(e.outputs) for r in e.outputs[level]]
            if records:
                self._fail_point(f"{self.stage}.before_outputs")
                await self._send_and_wait(records)
                self._fail_point(f"{self.stage}.after_outputs")
        commits = [r for e in group for r in e.commits]
        if commits:
            self._fail_point(f"{self.stage}.before_commit")
            await self._send_and_wait(commits)
            self._fail_point(f"{self.stage}.after_commit")
            # Only a commit record puts state behind an offset, so the group commits no offset without one.
            self._mark_safe(group[-1].resume_offset)
        self._meter.observe("stage_seconds", monotonic() - started, stage=self.stage)
        for emission in group:
            if emission.closed_stamp_ms is not None:
                seconds = max(0.0, (self._now_ms() - emission.closed_stamp_ms) / 1000)
                self._meter.observe("telemetry_to_command_seconds", seconds, stage=self.stage)


def _num_bytes(records: Sequence[LogRecord]) -> int:
    return sum(len(record.value) for record in records if record.value)
