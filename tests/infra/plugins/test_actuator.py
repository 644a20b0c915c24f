"""An actuator of one's own: the example under the conformance kit, and what happens when one fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agents.records import Target
from infra.actuate.actuator import NotApplied, ReplicaChange
from infra.actuate.conformance.run import run_kit
from infra.actuate.plugin import PluginActuator
from infra.console.errors import HarmonyError
from infra.operate.plugins import examine
from infra.settings.limits import PluginLimits
from infra.settings.plugins import find

TARGET = Target("v1", "Fleet", "n", "x")
ORDER = ReplicaChange("w", TARGET, 4, 3, None, (1, 1), lambda: True)


@dataclass(frozen=True)
class _Made:
    """Stands for `Plugin`."""

    own: object
    kind: str = "actuator"
    name: str = "mine"

    def make(self, options: Mapping[str, Any]) -> object:
        return self.own


class Own:
    def __init__(self, count: Any = 3, error: BaseException | None = None) -> None:
        self.count, self.error, self.applied, self.closed = count, error, 0, False

    async def observe(self, *_: object) -> Any:
        if self.error is not None:
            raise self.error
        return self.count

    async def apply(self, change: ReplicaChange) -> str:
        if self.error is not None:
            raise self.error
        self.applied += 1
        return f"set {change.replicas}"

    async def close(self) -> None:
        self.closed = True


def made(own: object, limit_s: float = 60.0, failures: int = 2, pause: int = 3) -> PluginActuator:
    return PluginActuator(_Made(own), {}, PluginLimits(limit_s, failures, pause))  # type: ignore[arg-type]


def test_the_example_passes_the_conformance_kit(example: Path) -> None:
    from harmony_example_plugins.kit import subject

    results = run_kit(subject, runs=5)
    assert [r for r in results if r.outcome == "failed"] == []
    assert sum(r.outcome == "passed" for r in results) > 20
    assert [f for f in examine(find("actuator", "directory"), {"path": str(example)}) if not f.ok] == []


def test_what_it_observes_and_does_comes_through() -> None:
    async def scene() -> None:
        own = Own()
        actuator = made(own)
        assert await actuator.observe("w", TARGET, 3, None) == 3
        assert await actuator.apply(ORDER) == "set 4"
        await actuator.close()
        assert own.closed

    asyncio.run(scene())


@pytest.mark.parametrize("count", [-1, 2.5, True, "3", None, 10**9])
def test_what_is_no_count_is_no_observation(count: Any) -> None:
    async def scene() -> None:
        actuator = made(Own(count))
        with pytest.raises(NotApplied, match="no count") as refusal:
            await actuator.observe("w", TARGET, 3, None)
        assert refusal.value.sure
        await actuator.close()

    asyncio.run(scene())


def test_after_failures_it_is_left_alone_and_then_tried() -> None:
    async def scene() -> None:
        own = Own(error=RuntimeError("broken"))
        actuator = made(own)
        for _ in range(2):
            with pytest.raises(NotApplied, match="RuntimeError: broken") as failure:
                await actuator.apply(ORDER)
            assert not failure.value.sure  # nobody knows whether it was made
        own.error = None
        for _ in range(3):
            with pytest.raises(NotApplied, match="left alone") as skipped:
                await actuator.apply(ORDER)
            assert skipped.value.sure
        assert await actuator.apply(ORDER) == "set 4"
        assert own.applied == 1
        await actuator.close()

    asyncio.run(scene())


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
def test_whatever_it_raises_is_its_failure_and_the_next_call_is_made(error: BaseException) -> None:
    async def scene() -> None:
        own = Own(error=error)
        actuator = made(own)
        with pytest.raises(NotApplied, match=r"mine\.apply: ") as failure:
            await actuator.apply(ORDER)
        assert not failure.value.sure
        own.error = None
        assert await actuator.observe("w", TARGET, 3, None) == 3
        await actuator.close()

    asyncio.run(scene())


def test_one_that_takes_other_arguments_is_a_failure_and_no_end() -> None:
    class Strange(Own):
        async def observe(self, workload: str) -> int:  # type: ignore[override]
            return len(workload)

    async def scene() -> None:
        actuator = made(Strange())
        with pytest.raises(NotApplied, match=r"mine\.observe: TypeError") as failure:
            await actuator.observe("w", TARGET, 3, None)
        assert failure.value.sure
        await actuator.close()

    asyncio.run(scene())


def test_who_ends_the_actuator_is_obeyed_while_it_waits() -> None:
    class Waiting(Own):
        async def apply(self, change: ReplicaChange) -> str:
            await asyncio.Event().wait()
            return ""

    async def scene() -> None:
        actuator = made(Waiting())
        task = asyncio.create_task(actuator.apply(ORDER))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await actuator.close()

    asyncio.run(scene())


def test_not_applied_is_an_answer_and_not_a_failure() -> None:
    async def scene() -> None:
        actuator = made(Own(error=NotApplied("the fleet says no", refused=True)))
        for _ in range(5):
            with pytest.raises(NotApplied, match="the fleet says no") as answer:
                await actuator.apply(ORDER)
            assert answer.value.refused
        await actuator.close()

    asyncio.run(scene())


def test_code_that_blocks_is_cut_off_and_holds_up_nobody() -> None:
    go_on = threading.Event()

    class Blocking(Own):
        async def apply(self, change: ReplicaChange) -> str:
            while not go_on.is_set():
                time.sleep(0.01)  # noqa: ASYNC251
            return ""

    async def scene() -> None:
        actuator = made(Blocking(), limit_s=0.05)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while not go_on.is_set():
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        with pytest.raises(NotApplied, match=r"no answer within 0\.05 s") as late:
            await actuator.apply(ORDER)
        assert not late.value.sure
        assert turns > 0
        go_on.set()
        await beside
        await actuator.close()

    asyncio.run(scene())


def test_one_without_the_methods_is_refused() -> None:
    with pytest.raises(HarmonyError, match="no `async def observe`"):
        made(object())
