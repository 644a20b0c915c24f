"""The conformance kit: whether an actuator, ours or anybody's, is safe to hand commands to.

    from infra.actuate.conformance.kit import run_kit
    results = run_kit(MySubject)          # one fresh subject per case

A subject wraps the actuator under test: the kit hands it commands as Kafka would, moves its clock, changes the target
behind its back, gives it the operator's words, kills it, and looks at the target's count. `harmony actuate check` does
the same from the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol

from agents.actuation.guard import Overrides, RateCaps
from agents.records import Command, Target

# What not every actuator can do; cases that need it are skipped, and said to be.
#   changes  sees the target's own count before it acts
#   answers  is asked for the replicas in force (pull)
#   caps     has rate caps
#   words    has a kill switch and pins of its own
#   clock    compares the command's time of issue with its own clock
Ability = Literal["changes", "answers", "caps", "words", "clock"]
ABILITIES: tuple[Ability, ...] = ("changes", "answers", "caps", "words", "clock")

START_MS = 1_763_636_400_000
LEASE_MS = 60_000


def target_of(workload: str) -> Target:
    """What the kit's commands scale: one Deployment per workload, of the same name."""
    return Target("apps/v1", "Deployment", "prod", workload)


class ActuatorSubject(Protocol):
    """An actuator under test. Every method returns when what it asks for is done."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do."""
        ...

    def start(self, replicas: Mapping[str, int], caps: RateCaps) -> None:
        """Begin with empty memory; the targets of these workloads have these counts."""
        ...

    def restart(self) -> None:
        """End without a word (kill -9) and begin again with the same memory; the targets keep their counts."""
        ...

    def deliver(self, command: Command, now_ms: int) -> None:
        """A command comes out of the log at this moment."""
        ...

    def change(self, workload: str, replicas: int) -> None:
        """Somebody else sets the target's count."""
        ...

    def set_overrides(self, overrides: Overrides, now_ms: int) -> None:
        """The operator gives these words, in place of earlier ones; pins are carried out before it returns."""
        ...

    def replicas(self, workload: str, now_ms: int) -> int:
        """The target's count now."""
        ...

    def answer(self, workload: str, now_ms: int) -> int | None:
        """What one who asks for the replicas in force is told now; None = an error."""
        ...

    def close(self) -> None:
        """The case is over."""
        ...


class Violation(AssertionError):
    """What the actuator did that it must not do, in words."""


class Needs(Exception):
    """The case asks for an ability that the subject does not have."""


class Result(NamedTuple):
    """One case. `outcome`: passed, failed, skipped."""

    case: str
    outcome: Literal["passed", "failed", "skipped"]
    detail: str


Case = Callable[["Bench"], None]


class Bench:
    """A subject and a clock, with the words in which the cases are written."""

    def __init__(self, subject: ActuatorSubject) -> None:
        self._subject = subject
        self.now_ms = START_MS

    def start(self, *needs: Ability, caps: RateCaps | None = None, replicas: Mapping[str, int] | None = None) -> None:
        """Begin, or skip the case; by default there is one workload `w` with 3 replicas."""
        self._subject.start(replicas or {"w": 3}, caps or RateCaps())
        missing = [n for n in needs if n not in self._subject.abilities]
        if missing:
            raise Needs(", ".join(missing))

    def can(self, ability: Ability) -> bool:
        """Whether the subject has it."""
        return ability in self._subject.abilities

    def command(self, sequence: int, replicas: int, expected: int = 3, **changes: object) -> Command:
        """A healthy command issued now; `changes` are fields of Command."""
        workload = str(changes.get("workload", "w"))
        fields: dict[str, object] = {
            "command_id": f"c{replicas}-{workload}",
            "decision_id": f"d{sequence}",
            "workload": workload,
            "target": target_of(workload),
            "replicas": replicas,
            "expected_current": expected,
            "epoch": 1,
            "sequence": sequence,
            "issued_ts_ms": self.now_ms,
            "valid_until_ts_ms": self.now_ms + LEASE_MS,
            "reason": "cheapest",
            "p_miss": 0.001,
            "epsilon": 0.01,
        }
        return Command(**{**fields, **changes})  # type: ignore[arg-type]

    def deliver(self, *commands: Command) -> None:
        """One after the other."""
        for command in commands:
            self._subject.deliver(command, self.now_ms)

    def send(self, sequence: int, replicas: int, expected: int = 3, **changes: object) -> None:
        """`deliver` a `command`."""
        self.deliver(self.command(sequence, replicas, expected, **changes))

    def later(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms

    def restart(self) -> None:
        self._subject.restart()

    def change(self, replicas: int, workload: str = "w") -> None:
        self._subject.change(workload, replicas)

    def set_overrides(self, overrides: Overrides) -> None:
        self._subject.set_overrides(overrides, self.now_ms)

    def count(self, workload: str = "w") -> int:
        return self._subject.replicas(workload, self.now_ms)

    def expect(self, replicas: int, because: str, workload: str = "w") -> None:
        """The target has this count now.

        Raises:
            Violation: it has another.
        """
        count = self.count(workload)
        if count != replicas:
            raise Violation(f"{because}: {replicas} replicas expected, {count} found")

    def expect_answer(self, replicas: int | None, because: str, workload: str = "w") -> None:
        """Whoever asks is told this; nothing is checked where nobody can ask.

        Raises:
            Violation: something else is said.
        """
        if "answers" in self._subject.abilities:
            answer = self._subject.answer(workload, self.now_ms)
            if answer != replicas:
                expected = "an error" if replicas is None else str(replicas)
                raise Violation(
                    f"{because}: {expected} expected as the answer, {'an error' if answer is None else answer} given"
                )
