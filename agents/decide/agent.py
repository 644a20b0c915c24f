"""Stage 3 as a Faust agent: the one partition of plans into the decide lane."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from agents.decide.kernel import STAGE, DecideKernel
from agents.priority import Precedence
from streams.log import Emission, LogRecord
from streams.runtime.app import StageHost
from streams.runtime.commits import Commit, newest_commit
from streams.runtime.restore import LogReader
from streams.topics import Topics

_CLOCK_SLACK_MS = 60_000
_MOST_UNTOLD = 16  # emissions, of a thousand decisions at most, that are kept until nobody waits

EmissionObserver = Callable[[Emission], None]


class DecideLane:
    """Gives the synchronous decide kernel the lane's shape: decisions first, for all plans at hand; what nobody waits
    for when nothing else is asked of it.

    Args:
        observe: told of all that is decided, some time after it is out.
        precedence: nobody else's work that can wait stands in the way from a plan to its decisions.
    """

    def __init__(self, kernel: DecideKernel, observe: EmissionObserver, precedence: Precedence | None = None) -> None:
        self.kernel = kernel
        self._observe = observe
        self._precedence = precedence or Precedence()
        self._unsealed: list[int] = []  # where each of these plans lets a later life resume
        self._untold: list[Emission] = []

    @property
    def resume_offset(self) -> int | None:
        return self.kernel.resume_offset

    @property
    def num_deferred(self) -> int:
        """Plans whose commit record is still to be written."""
        return len(self._unsealed)

    async def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        with self._precedence.ahead():
            for record in records:
                for piece in self.kernel.decide(record):
                    last = piece.resume_offset > record.offset
                    if last:
                        self._unsealed.append(piece.resume_offset)
                    # A piece of a large plan leaves at once. The last plan brings the others along, and the way is free
                    # when they are out.
                    yield piece._replace(urgent=not last or record is records[-1])
                    self._untold.append(piece)
                    if len(self._untold) > _MOST_UNTOLD:
                        self._observe(self._untold.pop(0))
            for record in records:
                self._precedence.answered(record.value)

    async def wait_until_idle(self) -> None:
        """Until nobody waits for a plan or a decision."""
        await self._precedence.clear()

    async def flush_deferred(self) -> AsyncGenerator[Emission, None]:
        """The commit records of all that was decided meanwhile, and what is told of it."""
        offsets, self._unsealed = self._unsealed, []
        commits = self.kernel.seal()
        if commits:
            yield Emission((), commits, offsets[-1], urgent=True)
        untold, self._untold = self._untold, []
        for emission in untold:
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
        precedence: Precedence | None = None,
    ) -> None:
        self._topics = topics
        self._restore_kernel = restore_kernel
        self._observe = observe
        self._precedence = precedence

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
        return DecideLane(self._restore_kernel(commit, published), self._observe, self._precedence)


def register_decide_agent(host: StageHost, stage: DecideStage) -> Any:
    """Declare the agent over the plans topic."""

    async def decide(stream: Any) -> None:
        async for batch in stream:
            await host.accept(batch)

    return host.app.agent(host.batch_topic(stage.input_topics[0]), name="decide")(decide)
