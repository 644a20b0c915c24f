"""Stage 3 as a Faust agent: the one partition of plans into the decide lane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agents.decide_kernel import STAGE, DecideKernel
from streams.commit_codec import Commit
from streams.log import Emission, LogRecord
from streams.log_reader import LogReader
from streams.newest_commit import newest_commit
from streams.stage_app import StageHost
from streams.topics import Topics

_CLOCK_SLACK_MS = 60_000

EmissionObserver = Callable[[Emission], None]


class DecideLane:
    """Gives the synchronous decide kernel the lane's shape."""

    def __init__(self, kernel: DecideKernel, observe: EmissionObserver) -> None:
        self.kernel = kernel
        self._observe = observe

    @property
    def resume_offset(self) -> int | None:
        return self.kernel.resume_offset

    async def fold(self, records: Sequence[LogRecord]) -> AsyncIterator[Emission]:
        for record in records:
            emission = self.kernel.fold(record)
            yield emission
            self._observe(emission)


class DecideStage:
    """Restores the one decide kernel from its commit record and the decisions published after it."""

    name = STAGE
    gathering = None

    def __init__(
        self,
        topics: Topics,
        restore_kernel: Callable[[Commit | None, Sequence[bytes]], DecideKernel],
        observe: EmissionObserver = lambda _emission: None,
    ) -> None:
        self._topics = topics
        self._restore_kernel = restore_kernel
        self._observe = observe

    @property
    def input_topics(self) -> tuple[str, ...]:
        return (self._topics.plans,)

    async def restore(self, topic: str, partition: int, reader: LogReader) -> DecideLane:  # noqa: ARG002 - one topic
        commit = await newest_commit(reader, self._topics.commits, STAGE, partition)
        published: list[bytes] = []
        if commit is not None:
            for p in range(self._topics.partitions):
                since = await reader.offset_at(self._topics.decisions, p, commit.stamp_ms - _CLOCK_SLACK_MS)
                _, end = await reader.bounds(self._topics.decisions, p)
                published += [r.value async for r in reader.read(self._topics.decisions, p, since, end) if r.value]
        return DecideLane(self._restore_kernel(commit, published), self._observe)


def register_decide_agent(host: StageHost, stage: DecideStage) -> Any:
    """Declare the agent over the plans topic."""

    async def decide(stream: Any) -> None:
        async for batch in stream:
            await host.accept(batch)

    return host.app.agent(host.batch_topic(stage.input_topics[0]), name="decide")(decide)
