"""A bounded part of `make fuzz`: no reader raises, whatever the bytes; and what is broken is found."""

from __future__ import annotations

import random
from time import thread_time

import pytest

from tests.fuzz.mutation import Mutator
from tests.fuzz.run import fuzz, report
from tests.fuzz.targets import Target, targets

COUNT = 1_500


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_no_bytes_make_a_reader_raise(target: Target) -> None:
    tally = fuzz(target, COUNT, seed=7)
    print(report(target, tally))
    assert tally.inputs == COUNT
    assert not tally.crashes, tally.crashes[0]
    assert len(tally.outcomes) > 1, "every input had the same fate: the seeds are no good"


def test_a_reader_that_raises_is_found() -> None:
    def broken(value: bytes) -> str:
        return str(value.index(b"{") if b"null" in value else 0)

    tally = fuzz(Target("broken", broken, (b'{"a":null}',)), 3_000, seed=1)
    assert tally.crashes
    assert "ValueError" in report(Target("broken", broken, ()), tally)


def test_a_reader_that_is_held_up_is_found() -> None:
    def slow(value: bytes) -> str:
        started = thread_time()
        while b"[[" in value and thread_time() - started < 0.003:
            pass
        return "read"

    tally = fuzz(Target("slow", slow, (b"[1,[2]]",)), 300, seed=1)
    assert tally.slow
    assert all(b"[[" in value for value, _ in tally.slow)
    assert not fuzz(Target("fine", slow, (b"{}",), timed=False), 300, seed=1).slow


def test_the_same_seed_gives_the_same_inputs() -> None:
    seeds = targets()[0].seeds

    def drawn(seed: int) -> list[bytes]:
        mutator = Mutator(seeds, random.Random(seed))
        return [mutator.draw() for _ in range(500)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert len(set(drawn(3))) > 450
