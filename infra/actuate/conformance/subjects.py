"""The kit's subject for actuators that stand on our core: a desk, a clock, a directory, and a world to act on."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from agents.actuation.guard import RateCaps, Words
from agents.policy import TargetRef, WorkloadSpec
from agents.records import Command, Target
from infra.actuate.actuator import Actuator, Order
from infra.actuate.assembly import MAX_AHEAD_MS
from infra.actuate.conformance.kit import ABILITIES, START_MS, Ability
from infra.actuate.controller import Desk
from infra.actuate.store import Store, WordsFile

_MAX_REPLICAS = 1_000
T = TypeVar("T")


class World(Protocol):
    """Where replicas are. `actuator` is asked for anew after each restart."""

    @property
    def abilities(self) -> frozenset[Ability]: ...

    async def open(self, replicas: Mapping[str, int]) -> None:
        """Targets with these counts."""
        ...

    def actuator(self, clock: Callable[[], int]) -> Actuator:
        """A new one; the former is gone."""
        ...

    async def settle(self, desk: Desk) -> None:
        """Let those who ask us ask, and do as they are told."""
        ...

    async def replicas(self, workload: str) -> int: ...

    async def change(self, workload: str, replicas: int) -> None: ...

    async def close(self) -> None: ...


class DeskSubject:
    """A `conformance.Subject`.

    Args:
        world: new for each case.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = asyncio.new_event_loop()
        self._directory = Path(tempfile.mkdtemp(prefix="harmony-check-"))
        self._words = WordsFile(self._directory / "words.json")
        self._now_ms = START_MS
        self._caps = RateCaps()
        self._store: Store | None = None
        self._desk: Desk | None = None
        self._opened = False
        self._declared: dict[str, WorkloadSpec] = {}

    @property
    def abilities(self) -> frozenset[Ability]:
        return self._world.abilities

    def start(self, replicas: Mapping[str, int], caps: RateCaps) -> None:
        self._caps = caps
        if self._opened:
            self._do(self._world.close())
        self._opened = True
        self._declared = {
            w: WorkloadSpec(w, TargetRef("apps/v1", "Deployment", "prod", w), 0, _MAX_REPLICAS) for w in replicas
        }
        self._do(self._world.open(replicas))
        self._begin()

    def restart(self) -> None:
        self._begin()

    def deliver(self, command: Command, now_ms: int) -> None:
        self._now_ms = now_ms
        desk = self.desk
        self._do(desk.handle(command))
        self._do(self._world.settle(desk))

    def change(self, workload: str, replicas: int) -> None:
        self._do(self._world.change(workload, replicas))

    def words(self, words: Words, now_ms: int) -> None:
        self._now_ms = now_ms
        self._words.change(lambda _: words)
        for workload in words.pins:
            self._do(self.desk.hold(workload))
        self._do(self._world.settle(self.desk))

    def replicas(self, workload: str, now_ms: int) -> int:
        self._now_ms = now_ms
        return self._do(self._world.replicas(workload))

    def answer(self, workload: str, now_ms: int) -> int | None:
        self._now_ms = now_ms
        return self.desk.answer(workload)

    def close(self) -> None:
        if self._opened:
            self._do(self._world.close())
        if self._store is not None:
            self._store.__exit__()
        self._loop.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def desk(self) -> Desk:
        """Of this life."""
        assert self._desk is not None, "start it first"
        return self._desk

    def _begin(self) -> None:
        """A life begins with what the disk holds; the former life ended without a word."""
        if self._store is not None:
            self._store.__exit__()
        self._store = Store(self._directory / "subject").__enter__()
        self._desk = Desk(
            self._world.actuator(self._clock),
            self._store.guard(_MAX_REPLICAS, self._caps, MAX_AHEAD_MS),
            self._clock,
            store=self._store,
            words=self._words,
            declared=self._declared,
        )

    def _clock(self) -> int:
        return self._now_ms

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


class _Counts:
    """Replicas that are numbers in memory."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    async def open(self, replicas: Mapping[str, int]) -> None:
        self._counts = dict(replicas)

    async def replicas(self, workload: str) -> int:
        return self._counts[workload]

    async def change(self, workload: str, replicas: int) -> None:
        self._counts[workload] = replicas

    async def close(self) -> None:
        pass


class MemoryWorld(_Counts):
    """Counts in memory, seen and set without fail: what the core alone proves."""

    abilities: frozenset[Ability] = frozenset(ABILITIES) - {"answers"}

    def actuator(self, clock: Callable[[], int]) -> Actuator:  # noqa: ARG002
        return _Memory(self._counts)

    async def settle(self, desk: Desk) -> None:
        pass


class _Memory:
    name = "memory"
    done: Literal["applied"] = "applied"

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    async def observe(
        self,
        workload: str,
        target: Target,  # noqa: ARG002
        expected: int | None,  # noqa: ARG002
        in_force: int | None,  # noqa: ARG002
    ) -> int | None:
        return self._counts[workload]

    async def apply(self, order: Order) -> str:
        self._counts[order.workload] = order.replicas
        return ""


class PullWorld(_Counts):
    """A scaler that asks us and does as it is told, and leaves the count alone where it gets an error (an HPA)."""

    abilities: frozenset[Ability] = frozenset(ABILITIES) - {"changes"}

    def actuator(self, clock: Callable[[], int]) -> Actuator:  # noqa: ARG002
        from infra.actuate.pull import Answers

        return Answers("pull")

    async def settle(self, desk: Desk) -> None:
        for workload in self._counts:
            told = await self.ask(desk, workload)
            if told is not None:
                self._counts[workload] = told

    async def ask(self, desk: Desk, workload: str) -> int | None:
        """What the scaler is told; None = an error."""
        return desk.answer(workload)
