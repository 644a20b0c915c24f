"""An actuator in any language under the kit: a program that reads one JSON object per line and answers each with one.

    {"do": "start", "memory": DIR, "replicas": {"w": 3}, "caps": {...}}   -> {"abilities": ["changes", ...]}
    {"do": "restart", "memory": DIR, "replicas": {"w": 5}, "caps": {...}} -> {}      in a new process, after kill -9
    {"do": "deliver", "now_ms": T, "command": {...}}                      -> {"replicas": 5}
    {"do": "change", "workload": "w", "replicas": 9}                      -> {}
    {"do": "words", "now_ms": T, "words": {"stopped": null, "pins": {}}}  -> {"replicas": {"w": 9}}
    {"do": "answer", "now_ms": T, "workload": "w"}                        -> {"replicas": 5} or {"replicas": null}

The program plays its target too; the kit remembers the counts it tells and hands them back after a restart. What must
outlive a restart goes into the directory DIR.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import orjson

from agents.actuation.guard import RateCaps, Words
from agents.records import Command
from infra.actuate.conformance.kit import ABILITIES, Ability, Violation
from infra.console.text import printable


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
        said = self._begin("start").get("abilities", [])
        self.abilities = frozenset(cast(Ability, a) for a in said if a in ABILITIES)

    def restart(self) -> None:
        self._begin("restart")

    def deliver(self, command: Command, now_ms: int) -> None:
        self._take(command.workload, self._ask(do="deliver", now_ms=now_ms, command=msgspec.to_builtins(command)))

    def change(self, workload: str, replicas: int) -> None:
        self._counts[workload] = replicas
        self._ask(do="change", workload=workload, replicas=replicas)

    def words(self, words: Words, now_ms: int) -> None:
        said = self._ask(do="words", now_ms=now_ms, words=msgspec.to_builtins(words)).get("replicas") or {}
        for workload, count in said.items():
            self._take(workload, {"replicas": count})

    def replicas(self, workload: str, now_ms: int) -> int:  # noqa: ARG002 - told with every delivery
        return self._counts[workload]

    def answer(self, workload: str, now_ms: int) -> int | None:
        said = self._ask(do="answer", now_ms=now_ms, workload=workload).get("replicas")
        return None if said is None else int(said)

    def close(self) -> None:
        self._kill()
        shutil.rmtree(self._memory, ignore_errors=True)

    def _take(self, workload: str, said: Mapping[str, Any]) -> None:
        count = said.get("replicas")
        if type(count) is not int:
            raise Violation(f"the program did not say how many replicas {workload} has: {printable(str(said), 80)}")
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
