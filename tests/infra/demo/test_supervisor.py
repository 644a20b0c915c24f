"""The supervisor with real children and a hand clock: restarts, pauses, forgiveness, giving up, last words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.console.errors import HarmonyError
from infra.demo.supervisor import FORGIVEN_AFTER_S, MOST_RESTARTS, Supervisor

WAITS = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def fails(code: int, words: str = "") -> list[str]:
    return [sys.executable, "-S", "-c", f"import sys; sys.stderr.write({words!r}); sys.exit({code})"]


class Watched:
    """One child "w", a clock that only tests move, and jitter that is the middle of its range."""

    def __init__(self, command: list[str], log_dir: Path, jitter: Callable[[float, float], float]) -> None:
        self.now_s = 0.0
        self.ended: list[int] = []
        self.supervisor = Supervisor(
            {"w": command}, log_dir, lambda _name, code: self.ended.append(code), lambda: self.now_s, jitter
        )
        self.supervisor.start()

    def wait_for_end(self) -> None:
        process = self.supervisor._members["w"].process
        if process is not None:
            process.wait(20)

    def fail_once(self) -> float:
        """Let the child end; returns the seconds until it was started again."""
        self.wait_for_end()
        self.supervisor.check()
        began_s = self.now_s
        while not self.supervisor.pids():
            self.now_s += 0.25
            self.supervisor.check()
        return self.now_s - began_s


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(
        command: list[str], jitter: Callable[[float, float], float] = lambda low, high: (low + high) / 2
    ) -> Watched:
        made.append(Watched(command, tmp_path / "logs", jitter))
        return made[-1]

    yield make
    for watched in made:
        watched.supervisor.stop()


def test_pauses_double_up_to_a_limit_and_then_the_child_is_given_up(watch: Callable[..., Watched]) -> None:
    words = "harmony worker stops (watchdog broker): Kafka has not answered for 25 s\nnoise after it\n"
    watched = watch(fails(1, words))
    assert [watched.fail_once() for _ in range(MOST_RESTARTS)] == [1.0, 2.0, 4.0, 8.0, 10.0]
    watched.wait_for_end()
    with pytest.raises(HarmonyError) as gave_up:
        watched.supervisor.check()
    assert gave_up.value.message.startswith("w has ended 6 times in 25 s and is given up; last with exit code 1: ")
    assert "harmony worker stops (watchdog broker): Kafka has not answered for 25 s (log: " in gave_up.value.message
    assert watched.ended == [1] * MOST_RESTARTS


def test_jitter_spreads_the_pauses(watch: Callable[..., Watched]) -> None:
    assert watch(fails(1), lambda low, _high: low).fail_once() == 0.5
    assert watch(fails(1), lambda _low, high: high).fail_once() == 1.5


def test_a_child_that_lived_long_enough_is_forgiven(watch: Callable[..., Watched]) -> None:
    watched = watch(fails(1))
    for _ in range(3 * MOST_RESTARTS):
        assert watched.fail_once() == 1.0
        watched.now_s += FORGIVEN_AFTER_S + 1


def test_a_refusal_is_not_tried_again(watch: Callable[..., Watched]) -> None:
    watched = watch(fails(2, "\x1b[?25hharmony: harmony.yaml:3: step_s: not a number\n"))
    watched.wait_for_end()
    with pytest.raises(HarmonyError) as refused:
        watched.supervisor.check()
    assert refused.value.exit_code == 2
    assert refused.value.message.startswith("w cannot start: harmony: harmony.yaml:3: step_s: not a number (log: ")
    assert not watched.ended


def test_last_words_are_of_the_last_life(watch: Callable[..., Watched], tmp_path: Path) -> None:
    once = tmp_path / "once"
    script = (
        f"import pathlib, sys; p = pathlib.Path({str(once)!r}); first = not p.exists(); p.touch(); "
        "sys.stderr.write('harmony worker stops (x): old\\n' if first else 'killed by fate\\n'); "
        "sys.exit(1 if first else 2)"
    )
    watched = watch([sys.executable, "-S", "-c", script])
    watched.fail_once()
    watched.wait_for_end()
    with pytest.raises(HarmonyError, match="killed by fate"):
        watched.supervisor.check()


def test_a_child_that_a_signal_ended_is_started_again_and_stop_ends_all(watch: Callable[..., Watched]) -> None:
    watched = watch(WAITS)
    first = watched.supervisor.pids()["w"]
    watched.supervisor._members["w"].process.kill()  # type: ignore[union-attr]
    assert watched.fail_once() == 1.0
    assert watched.ended == [-9]
    assert watched.supervisor.pids()["w"] != first
    process = watched.supervisor._members["w"].process
    watched.supervisor.stop()
    assert process is not None
    assert process.poll() is not None
