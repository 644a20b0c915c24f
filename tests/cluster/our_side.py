"""Our side of an HPA: a controller that commands are handed to, and its external scaler, on a loop of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agents.actuation.guard import ApplyGuard
from agents.records import Command, Target
from infra.actuate.controller import CommandController
from infra.actuate.keda import KedaScaler, Lookup
from infra.actuate.pull import Answers
from tests.cluster.external_metrics import asked_by_grpc

WORKLOAD, NAME = "prod/llm/chat-70b", "chat-70b"
Result = TypeVar("Result")


@dataclass
class Side:
    """Attributes: now_ms, the time as we see it unless `clock` says another; lease_ms of each command."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    now_ms: int = 1_763_636_400_000
    clock: Callable[[], int] | None = None
    lease_ms: int = 600_000
    sequence: int = 0

    def __post_init__(self) -> None:
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.controller = CommandController(Answers("keda"), ApplyGuard(), self._now_ms)

        async def start() -> KedaScaler:
            scaler = KedaScaler(Lookup(self.controller.answer, lambda: self.controller.targets), port=0)
            await scaler.start()
            return scaler

        self.scaler = self.do(start())

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Something on our loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def order(self, replicas: int, expected: int) -> None:
        """A new command."""
        self.sequence += 1
        now_ms = self._now_ms()
        target = Target("apps/v1", "Deployment", "prod", NAME)
        command = Command(
            f"c{self.sequence}", f"d{self.sequence}", WORKLOAD, target, replicas, expected, 1, self.sequence,
            now_ms, now_ms + self.lease_ms, "cheapest", 0.001, 0.01,
        )  # fmt: skip
        event = self.do(self.controller.handle(command))
        assert self.controller.answer(WORKLOAD) == replicas, event

    def value(self) -> float | None:
        return asked_by_grpc(self.scaler.port, WORKLOAD)

    def close(self) -> None:
        self.do(self.scaler.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _now_ms(self) -> int:
        return self.clock() if self.clock is not None else self.now_ms
