"""A hostile pipeline whose workers come and go."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

import yaml

from infra.worker.fail_points import ALL_POINTS, hit_line
from streams.config import StreamConfig
from tests.faults.exactness import Proof
from tests.faults.hostile import HostilePipeline
from tests.faults.logs import Progress
from tests.faults.nursery import Nursery
from tests.integration.pipeline import STREAM, Running, stop

WAIT_S = 180.0
SETTLE_S = 240.0
SESSION_S = 6.0
# Far enough behind to be at work when the next fault comes, near enough for leases and rings.
_MOST_BEHIND = 10
_INFRA = ("infra",)


class Hunted(HostilePipeline):
    """Starts, ends and watches workers; publishes telemetry while it waits.

    Attributes:
        running: workers by name.
        in_table: False for a history that must fail its comparison.
        restarts_left: workers that end with code 1 may be started again so often.
        proof: what was compared at the end; None until it was.
        kills: kill -9 by the test; fail points are counted from the logs.
        recoveries_s: from a kill to the first decision record after it.
    """

    def __init__(
        self, bootstrap: str, prefix: str, home: Path, seed: int, nursery: Nursery, stream: StreamConfig = STREAM
    ) -> None:
        super().__init__(bootstrap, prefix, home, seed, stream)
        self.set_keys({"worker": {"session_timeout_s": SESSION_S}})
        self.progress = Progress(bootstrap, self.topics)
        self.running: dict[str, Running] = {}
        self._ports: dict[str, str] = {}
        self._nursery = nursery
        self.kills = 0
        self.restarts_left = 0
        self.in_table = True
        self.proof: Proof | None = None
        self.recoveries_s: list[float] = []
        self._died_s: float | None = None

    def set_keys(self, advanced: dict[str, dict[str, object]], **top: object) -> None:
        """Change keys of the settings file; workers that start from now on read them."""
        content = yaml.safe_load(self.config.read_text(encoding="utf-8")) | top
        for section, keys in advanced.items():
            content["advanced"].setdefault(section, {}).update(keys)
        self.config.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    # Workers.

    def begin(
        self, name: str = "w0", role: str = "all", fail_points: str = "", program: Sequence[str] = _INFRA
    ) -> None:
        """Start a worker in a process of its own."""
        command, environment = self.worker_call(name, role, fail_points, program)
        # The interpreter and its -m are the nursery's own.
        self.running[name] = self._nursery.start(command[2:], environment, self.home / f"{name}.log")

    def worker_call(
        self, name: str, role: str, fail_points: str, program: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        command, environment = super().worker_call(name, role, fail_points, program)
        self._ports[name] = command[command.index("--web-port") + 1]
        return command, environment

    def wait_until_ready(self, name: str = "w0", timeout_s: float = WAIT_S) -> None:
        """Until the worker has its partitions and says so."""
        self.wait(lambda: self._ready(name), f"{name} is ready", timeout_s)

    def _ready(self, name: str) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._ports[name]}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def end(self, name: str = "w0", number: int = signal.SIGTERM) -> int:
        """Signal a worker and wait for its end; returns its exit code."""
        process = self.running.pop(name)
        assert process.poll() is None, f"{name} had ended already, with {process.returncode}\n{self.last_words()}"
        if number == signal.SIGKILL:
            self.kills += 1
            self._note_death()
        return stop(process, number)

    def kill_at_random(self, rng: random.Random, kills: int) -> None:
        """Kill -9 so many lives: mostly at work; now and then while one starts, restores, or has just begun."""
        self.begin()
        self.wait_for_work()
        wanted = self.kills + kills
        while self.kills < wanted:
            if rng.random() < 0.8:
                for _ in range(rng.randint(1, 6)):
                    self.publish_slot()
                    sleep(rng.uniform(0, 0.1))
                sleep(rng.uniform(0, 0.4))
            else:
                self.publish_slot()
                sleep(rng.uniform(0, 6))
            self.end(number=signal.SIGKILL)
            self.publish_slot()
            self.begin()
            if rng.random() < 0.8:
                self.wait_for_work()

    def pause(self, name: str = "w0") -> None:
        """Stop a worker in its tracks; it keeps its memory, its sockets and its plans."""
        self.running[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str = "w0") -> None:
        self.running[name].send_signal(signal.SIGCONT)

    def retire(self, name: str) -> None:
        """End a worker that may have ended by itself, with code 1, as one that woke up too late may."""
        process = self.running.pop(name)
        code = process.poll()
        assert code in (None, 1), f"{name} ended with {code}\n{self.last_words()}"
        if code is None:
            stop(process)

    def _note_death(self) -> None:
        if self._died_s is None:
            self._died_s = monotonic()

    def end_all(self) -> None:
        """Whatever the test did: no worker is left."""
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.running.clear()
        self.progress.close()
        self.producer.close(1)

    # Waiting. Telemetry goes on meanwhile: a stage that has nothing to do cannot show that it works.

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S, publish: bool = True) -> None:
        deadline = monotonic() + timeout_s
        while not condition():
            self._look_after_workers(what)
            assert monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}; at {self.where()}"
            if publish and self.behind() < _MOST_BEHIND:
                self.publish_slot()
            self.progress.poll(100)

    def _look_after_workers(self, what: str) -> None:
        for name, process in list(self.running.items()):
            code = process.poll()
            if code == 1 and self.restarts_left > 0:
                # As a supervisor does: crash-only stages end themselves when the broker fails them.
                self.restarts_left -= 1
                self.begin(name)
            elif code is not None:
                raise AssertionError(f"{name} ended with {code} while waiting for {what}\n{self.last_words()}")

    def wait_for_work(self, timeout_s: float = WAIT_S) -> None:
        """Until there is a decision that was not there when we were called."""
        self.progress.drain()
        before = self.progress.decisions
        self.wait(lambda: self.progress.decisions > before, "a new decision", timeout_s)
        if self._died_s is not None:
            self.recoveries_s.append(monotonic() - self._died_s)
            self._died_s = None

    def wait_for_death(self, name: str = "w0", code: int = -signal.SIGKILL, timeout_s: float = WAIT_S) -> None:
        """Until the worker has ended by itself, with this code."""
        process = self.running.pop(name)
        self.wait(lambda: process.poll() is not None, f"the end of {name}", timeout_s)
        assert process.returncode == code, f"{name} ended with {process.returncode}\n{self.last_words()}"
        self._note_death()

    def wait_for_log(self, name: str, text: str, timeout_s: float = WAIT_S) -> None:
        """Until the worker has said it."""
        path = self.home / f"{name}.log"
        self.wait(lambda: path.exists() and text in self.log_of(name), f"{name} says {text!r}", timeout_s)

    def finish(self, num_slots: int = 0) -> None:
        """Publish up to so many slots, wait until all stages have answered everything, end the workers."""
        self.wait(lambda: self.num_slots >= num_slots and not self.stalled, f"{num_slots} slots", SETTLE_S)
        self.settle()
        for name in list(self.running):
            self.end(name)

    def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Until every stage has committed everything that was published."""
        done = lambda: self.progress.reached(self.last_slot)  # noqa: E731
        self.wait(done, f"slot {self.last_slot}", timeout_s, publish=False)

    def behind(self) -> int:
        """Slots published and not decided."""
        done = [s for s in self.progress.slots(("decide",)).values() if s is not None]
        return self.last_slot - min(done) if done else self.num_slots

    # What was said.

    def where(self) -> str:
        return f"{self.progress.slots()} of {self.last_slot}\n{self.last_words()}"

    def last_words(self) -> str:
        paths = sorted(self.home.glob("*.log"))
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in paths)

    def fail_point_hits(self) -> Counter[str]:
        """How often each point was acted on, by what the workers said."""
        said = "".join(p.read_text(errors="replace") for p in self.home.glob("*.log"))
        return Counter({p: n for p in ALL_POINTS if (n := said.count(hit_line(p, "")))})
