"""Stage 3 as a Faust agent: the one partition of plans goes into the decide lane."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from agents.decide.kernel import STAGE, DecideKernel
from agents.priority import PriorityGate
from streams.log import Emission, LogRecord
from streams.runtime.app import StageHost
from streams.runtime.commits import Commit, newest_commit
from streams.runtime.restore import LogReader
from streams.topics import Topics

_CLOCK_SLACK_MS = 60_000  # Largest difference between the clocks of two brokers.
_MAX_UNOBSERVED = 16  # Number of emissions, of a thousand decisions at most, that the observer may be behind.

EmissionObserver = Callable[[Emission], None]


class DecideLane:
    """The decide kernel as a lane: decisions first, for all plans at hand; commit records and metrics when idle.

    Args:
        observe: called with every emission, some time after it is out.
        gate: holds up other work on the loop from a plan to its decisions.
    """

    def __init__(self, kernel: DecideKernel, observe: EmissionObserver, gate: PriorityGate | None = None) -> None:
        self.kernel = kernel
        self._observe = observe
        self._gate = gate or PriorityGate()
        self._resume_offsets: list[int] = []  # of the plans decided whose commit record is still to be written
        self._unobserved: list[Emission] = []

    @property
    def resume_offset(self) -> int | None:
        return self.kernel.resume_offset

    @property
    def num_deferred(self) -> int:
        """Plans whose commit record is still to be written."""
        return len(self._resume_offsets)

    async def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        with self._gate.urgent():
            for record in records:
                for piece in self.kernel.decide(record):
                    last = piece.resume_offset > record.offset
                    if last:
                        self._resume_offsets.append(piece.resume_offset)
                    # A piece of a large plan leaves at once. The last plan brings the others along, and the way is free
                    # when they are out.
                    yield piece._replace(urgent=not last or record is records[-1])
                    self._unobserved.append(piece)
                    if len(self._unobserved) > _MAX_UNOBSERVED:
                        self._observe(self._unobserved.pop(0))
            for record in records:
                self._gate.settle(record.value)

    async def wait_until_idle(self) -> None:
        """Wait until nobody needs a plan or a decision."""
        await self._gate.wait()

    async def flush_deferred(self) -> AsyncGenerator[Emission, None]:
        """Emit the commit records of all plans decided meanwhile, and call the observer."""
        offsets, self._resume_offsets = self._resume_offsets, []
        commits = self.kernel.seal()
        if commits:
            yield Emission((), commits, offsets[-1], urgent=True)
        unobserved, self._unobserved = self._unobserved, []
        for emission in unobserved:
            self._observe(emission)


class DecideStage:
    """Restores the one decide kernel from its commit record and the decisions published after it."""

    name = STAGE
    batch_rule = None

    def __init__(
        self,
        topics: Topics,
        restore_kernel: Callable[[Commit | None, Sequence[bytes]], DecideKernel],
        observe: EmissionObserver = lambda _emission: None,
        gate: PriorityGate | None = None,
    ) -> None:
        self._topics = topics
        self._restore_kernel = restore_kernel
        self._observe = observe
        self._gate = gate

    @property
    def input_topics(self) -> tuple[str, ...]:
        return (self._topics.plans,)

    async def restore(self, topic: str, partition: int, reader: LogReader) -> DecideLane:
        self._topics.check_partition(topic, partition)
        commit = await newest_commit(reader, self._topics.commits, STAGE, partition)
        published: list[bytes] = []
        if commit is not None:
            for p in range(self._topics.partitions):
                since = await reader.offset_at(self._topics.decisions, p, commit.stamp_ms - _CLOCK_SLACK_MS)
                _, end = await reader.bounds(self._topics.decisions, p)
                published += [r.value async for r in reader.read(self._topics.decisions, p, since, end) if r.value]
        return DecideLane(self._restore_kernel(commit, published), self._observe, self._gate)


def register_decide_agent(host: StageHost, stage: DecideStage) -> Any:
    """Declare the agent over the plans topic."""

    async def decide(stream: Any) -> None:
        async for batch in stream:
            await host.accept(batch)

    return host.app.agent(host.batch_topic(stage.input_topics[0]), name="decide")(decide)
