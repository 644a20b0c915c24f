"""The kit's subject for actuators that stand on our core: a controller, a clock, a directory, and a world to act on."""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar, cast

import msgspec
import orjson

from agents.actuation.guard import Overrides, RateCaps
from agents.policy import TargetRef, WorkloadSpec
from agents.records import Command, Target
from infra.actuate.actuator import Actuator, ReplicaChange
from infra.actuate.assembly import MAX_AHEAD_MS
from infra.actuate.conformance.kit import ABILITIES, START_MS, Ability, Violation
from infra.actuate.controller import CommandController
from infra.actuate.store import OverridesFile, Store
from infra.console.text import printable

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

    async def settle(self, controller: CommandController) -> None:
        """Let those who ask us ask, and do as they are told."""
        ...

    async def replicas(self, workload: str) -> int: ...

    async def change(self, workload: str, replicas: int) -> None: ...

    async def close(self) -> None: ...


class ControllerSubject:
    """A `conformance.Subject`.

    Args:
        world: new for each case.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = asyncio.new_event_loop()
        self._directory = Path(tempfile.mkdtemp(prefix="harmony-check-"))
        self._overrides = OverridesFile(self._directory / "words.json")
        self._now_ms = START_MS
        self._caps = RateCaps()
        self._store: Store | None = None
        self._controller: CommandController | None = None
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
        controller = self.controller
        self._do(controller.handle(command))
        self._do(self._world.settle(controller))

    def change(self, workload: str, replicas: int) -> None:
        self._do(self._world.change(workload, replicas))

    def set_overrides(self, overrides: Overrides, now_ms: int) -> None:
        self._now_ms = now_ms
        self._overrides.change(lambda _: overrides)
        for workload in overrides.pins:
            self._do(self.controller.apply_pin(workload))
        self._do(self._world.settle(self.controller))

    def replicas(self, workload: str, now_ms: int) -> int:
        self._now_ms = now_ms
        return self._do(self._world.replicas(workload))

    def answer(self, workload: str, now_ms: int) -> int | None:
        self._now_ms = now_ms
        return self.controller.answer(workload)

    def close(self) -> None:
        if self._opened:
            self._do(self._world.close())
        if self._store is not None:
            self._store.__exit__()
        self._loop.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def controller(self) -> CommandController:
        """Of this life."""
        assert self._controller is not None, "start it first"
        return self._controller

    def _begin(self) -> None:
        """A life begins with what the disk holds; the former life ended without a word."""
        if self._store is not None:
            self._store.__exit__()
        self._store = Store(self._directory / "subject").__enter__()
        self._controller = CommandController(
            self._world.actuator(self._clock),
            self._store.guard(_MAX_REPLICAS, self._caps, MAX_AHEAD_MS),
            self._clock,
            store=self._store,
            overrides=self._overrides,
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

    async def settle(self, controller: CommandController) -> None:
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

    async def apply(self, change: ReplicaChange) -> str:
        self._counts[change.workload] = change.replicas
        return ""


class PullWorld(_Counts):
    """A scaler that asks us and does as it is told, and leaves the count alone where it gets an error (an HPA)."""

    abilities: frozenset[Ability] = frozenset(ABILITIES) - {"changes"}

    def actuator(self, clock: Callable[[], int]) -> Actuator:  # noqa: ARG002
        from infra.actuate.pull import Answers

        return Answers("pull")

    async def settle(self, controller: CommandController) -> None:
        for workload in self._counts:
            count = await self.ask(controller, workload)
            if count is not None:
                self._counts[workload] = count

    async def ask(self, controller: CommandController, workload: str) -> int | None:
        """What the scaler is told; None = an error."""
        return controller.answer(workload)


# An actuator in any language under the kit: a program that reads one JSON object per line and answers each with one.
#
#     {"do": "start", "memory": DIR, "replicas": {"w": 3}, "caps": {...}}   -> {"abilities": ["changes", ...]}
#     {"do": "restart", "memory": DIR, "replicas": {"w": 5}, "caps": {...}} -> {}      in a new process, after kill -9
#     {"do": "deliver", "now_ms": T, "command": {...}}                      -> {"replicas": 5}
#     {"do": "change", "workload": "w", "replicas": 9}                      -> {}
#     {"do": "words", "now_ms": T, "words": {"stopped": null, "pins": {}}}  -> {"replicas": {"w": 9}}
#     {"do": "answer", "now_ms": T, "workload": "w"}                        -> {"replicas": 5} or {"replicas": null}
#
# The program plays its target too; the kit remembers the counts it tells and hands them back after a restart. What must
# outlive a restart goes into the directory DIR.


class ExecSubject:
    """A `conformance.Subject` around a program.

    Args:
        command: its argument list.
        timeout_s: how long one answer may take.
    """

    def __init__(self, command: Sequence[str], timeout_s: float = 10.0) -> None:
        self._command, self._timeout_s = list(command), timeout_s
        self._memory = Path(tempfile.mkdtemp(prefix="harmony-check-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._counts: dict[str, int] = {}
        self._caps = RateCaps()
        self.abilities: frozenset[Ability] = frozenset()

    def start(self, replicas: Mapping[str, int], caps: RateCaps) -> None:
        self._counts, self._caps = dict(replicas), caps
        shutil.rmtree(self._memory, ignore_errors=True)
        self._memory.mkdir(parents=True)
        abilities = self._begin("start").get("abilities", [])
        self.abilities = frozenset(cast(Ability, a) for a in abilities if a in ABILITIES)

    def restart(self) -> None:
        self._begin("restart")

    def deliver(self, command: Command, now_ms: int) -> None:
        self._take(command.workload, self._ask(do="deliver", now_ms=now_ms, command=msgspec.to_builtins(command)))

    def change(self, workload: str, replicas: int) -> None:
        self._counts[workload] = replicas
        self._ask(do="change", workload=workload, replicas=replicas)

    def set_overrides(self, overrides: Overrides, now_ms: int) -> None:
        counts = self._ask(do="words", now_ms=now_ms, words=msgspec.to_builtins(overrides)).get("replicas") or {}
        for workload, count in counts.items():
            self._take(workload, {"replicas": count})

    def replicas(self, workload: str, now_ms: int) -> int:  # noqa: ARG002 - told with every delivery
        return self._counts[workload]

    def answer(self, workload: str, now_ms: int) -> int | None:
        replicas = self._ask(do="answer", now_ms=now_ms, workload=workload).get("replicas")
        return None if replicas is None else int(replicas)

    def close(self) -> None:
        self._kill()
        shutil.rmtree(self._memory, ignore_errors=True)

    def _take(self, workload: str, reply: Mapping[str, Any]) -> None:
        count = reply.get("replicas")
        if type(count) is not int:
            raise Violation(f"the program did not say how many replicas {workload} has: {printable(str(reply), 80)}")
        self._counts[workload] = count

    def _begin(self, do: str) -> dict[str, Any]:
        self._kill()
        self._lines = queue.Queue()
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise Violation(f"the program {self._command[0]} does not start: {error.strerror}") from error
        assert self._process.stdout is not None
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        caps = msgspec.to_builtins(self._caps)
        return self._ask(do=do, memory=str(self._memory), replicas=self._counts, caps=caps)

    def _ask(self, **question: Any) -> dict[str, Any]:
        process = self._process
        assert process is not None, "start it first"
        assert process.stdin is not None
        try:
            process.stdin.write(orjson.dumps(question) + b"\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self._timeout_s)
            return dict(orjson.loads(line))
        except queue.Empty:
            raise Violation(f"no answer to {question['do']} within {self._timeout_s:g} s") from None
        except (OSError, ValueError, TypeError) as error:
            raise Violation(f"no JSON object in answer to {question['do']}: {printable(str(error), 120)}") from error

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                # What could not be written any more need not be.
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()


def _read(pipe: IO[bytes], lines: queue.Queue[bytes]) -> None:
    try:
        for line in pipe:
            lines.put(line)
    except (OSError, ValueError):
        return  # closed: the process was ended
    lines.put(b"")
