"""The one machine that all three stages share: per partition a lane that folds, publishes, commits, in that order.

A lane reads its partition's batches in order and gives them to a kernel. For each emission of the kernel it publishes
the outputs, awaits the broker, publishes the commit record, awaits, and marks the resume offset safe. Any exception
ends the process: the log, not a retry loop, is what makes the next life right.
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

_MAX_QUEUED_BATCHES = 2
_MAX_GROUPED_EMISSIONS = 4
_MAX_DEFERRED_RECORDS = 16


class Kernel(Protocol):
    """State of one partition: a pure function of its log (given the same forecasters)."""

    @property
    def resume_offset(self) -> int | None:
        """Where reading starts in this life; None = the partition has no state yet."""
        ...

    def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        """Fold records in log order; yield what must be published before anything later is."""
        ...


@runtime_checkable
class LossTolerantKernel(Kernel, Protocol):
    """A kernel that can go on where retention has removed what it had not read yet."""

    def skip_lost(self, first_offset: int) -> None:
        """Go on at this offset; what lay before it is lost, and somebody says so."""
        ...


@runtime_checkable
class DeferringKernel(Kernel, Protocol):
    """A kernel that puts off what nobody waits for, its commit records among it, while there are records to fold.

    After a crash what has no commit record is read again, and adopted as far as it was published.
    """

    @property
    def put_off(self) -> int:
        """Grows by at most one with each record that is folded; 0 = nothing is put off."""
        ...

    async def quiet(self) -> None:
        """Wait for a good moment; cancelled when there are records to fold."""
        ...

    def settle(self) -> AsyncGenerator[Emission, None]:
        """Do what was put off."""
        ...


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How small batches are folded together: each fold costs a millisecond, however few records it has.

    Attributes:
        urgent: whether a record is not waited with, nor what came before it.
        enough: records that are not waited with.
        enough_bytes: nor are as many bytes of values; a packed record holds hundreds of samples.
        longest_s: how long the first of them may wait.
    """

    urgent: Callable[[LogRecord], bool]
    enough: int = 1024
    enough_bytes: int = 1 << 19
    longest_s: float = 0.1


class Lane:
    """One partition's queue, kernel and task.

    `marks` grows with everything that the lane gets done, and `waits_for` says who has the word: nobody (it is idle),
    the kernel that folds, or Kafka, which has not acknowledged yet. `full` says that its agent waits for room in it,
    with whatever else the agent was given behind that. Watchdogs live on them.
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
        gathering: BatchRule | None = None,
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
        self._gathering = gathering
        self._queue: asyncio.Queue[list[LogRecord]] = asyncio.Queue(_MAX_QUEUED_BATCHES)
        self._arrived = asyncio.Event()
        self._left: list[LogRecord] = []  # of a batch with more than may be put off
        self._task = asyncio.create_task(self._run(), name=f"lane-{stage}")

    async def put(self, records: list[LogRecord]) -> None:
        """Hand over the next contiguous records; waits while the lane is behind (this is the back-pressure).

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

    def skip_lost(self, wanted: int, first: int) -> None:
        """Of a forgiving kernel: the offsets from `wanted` on are lost, and the log goes on at `first`."""
        # Later on a gap is as good as a marker's. The first record of this life is where the kernel says.
        if self.next_offset == wanted == self.kernel.resume_offset and isinstance(self.kernel, LossTolerantKernel):
            self.kernel.skip_lost(first)
            self.next_offset = self.kernel.resume_offset

    def _gap_allowed(self, first: int) -> bool:
        # Offsets inside a log may be missing (transaction markers); missing before the very first record is retention.
        return self.next_offset != self.kernel.resume_offset and first > (self.next_offset or 0)

    async def close(self) -> None:
        """Stop without finishing; what was not committed is read again by the next owner."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # The agent may wait in `put` for room that nobody makes any more, and with it the partition's next lane.
        while not self._queue.empty():
            self._queue.get_nowait()

    async def _run(self) -> None:
        try:
            while True:
                emissions = await self._next()
                self.waits_for = "kernel"
                self.marks += 1
                # A lane that is closed while it publishes ends its kernel's work too: others may give way to that, and
                # nobody collects garbage in time to tell them that it is over.
                async with aclosing(emissions):
                    await self._publish_all(emissions)
                self.waits_for = ""
                self.marks += 1
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - crash-only: whatever it is, this life is over
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
        """What the kernel says to the next records, or, while there are none, what it had put off."""
        patient = self.kernel if isinstance(self.kernel, DeferringKernel) else None
        if patient is not None and patient.put_off and await self._quiet(patient):
            return patient.settle()
        records = self._left or await self._gathered(await self._queue.get())
        if patient is not None:
            room = _MAX_DEFERRED_RECORDS - patient.put_off
            records, self._left = records[:room], records[room:]
        self._meter.observe("stage_batch_records", len(records), stage=self.stage)
        return self.kernel.fold(records)

    async def _quiet(self, kernel: DeferringKernel) -> bool:
        """Whether what was put off is due: at a good moment, if no records come before it, and not beyond a bound."""
        if kernel.put_off >= _MAX_DEFERRED_RECORDS:
            return True
        if self._left or not self._queue.empty():
            return False
        self._arrived.clear()
        waiting = [asyncio.create_task(kernel.quiet()), asyncio.create_task(self._arrived.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        return self._queue.empty()

    async def _gathered(self, records: list[LogRecord]) -> list[LogRecord]:
        """These records and those that come while they may wait."""
        rule, newest = self._gathering, records
        if rule is None:
            return records
        deadline = monotonic() + rule.longest_s
        num_bytes = _num_bytes(records)
        while len(records) < rule.enough and num_bytes < rule.enough_bytes and not any(map(rule.urgent, newest)):
            try:
                async with asyncio.timeout(deadline - monotonic()):
                    newest = await self._queue.get()
            except TimeoutError:
                break
            records = records + newest
            num_bytes += _num_bytes(newest)
        return records

    async def _deliver(self, records: Sequence[OutRecord]) -> None:
        self.waits_for = "kafka"
        await self._send(records)
        self.waits_for = "kernel"
        self.marks += 1

    async def _publish(self, group: list[Emission]) -> None:
        """All outputs of the group, then its commit records: a crash in between repeats outputs and loses none."""
        started = monotonic()
        depth = max(len(emission.outputs) for emission in group)
        for level in range(depth):
            records = [r for e in group if level < len(e.outputs) for r in e.outputs[level]]
            if records:
                self._fail_point(f"{self.stage}.before_outputs")
                await self._deliver(records)
                self._fail_point(f"{self.stage}.after_outputs")
        commits = [r for e in group for r in e.commits]
        if commits:
            self._fail_point(f"{self.stage}.before_commit")
            await self._deliver(commits)
            self._fail_point(f"{self.stage}.after_commit")
            # Without a commit record there is no state behind an offset: the group must not remember it.
            self._mark_safe(group[-1].resume_offset)
        self._meter.observe("stage_seconds", monotonic() - started, stage=self.stage)
        for emission in group:
            if emission.closed_stamp_ms is not None:
                seconds = max(0.0, (self._now_ms() - emission.closed_stamp_ms) / 1000)
                self._meter.observe("telemetry_to_command_seconds", seconds, stage=self.stage)


def _num_bytes(records: Sequence[LogRecord]) -> int:
    return sum(len(record.value) for record in records if record.value)
