"""A bounded part of `make fuzz`: no reader raises, whatever the bytes; and what is broken is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import thread_time

import pytest

from infra.collect.points import Point
from tests.fuzz.mutation import Mutator
from tests.fuzz.run import fuzz, report
from tests.fuzz.targets import Target, sourced, targets
from tests.fuzz.telemetry import Grammar, numbers_in_json, numbers_in_request, numbers_in_text
from tests.infra.collect.test_remote_write import written

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


def test_a_value_that_stands_nowhere_in_the_input_is_found() -> None:
    def generous(value: bytes) -> list[Point]:
        return [Point("a", {}, 0, float(value.count(b" ") * 1_000 + 0.125))]

    target = sourced("generous", generous, numbers_in_text, Grammar.exposition)
    tally = fuzz(target, 300, seed=1)
    assert tally.crashes
    assert "stands nowhere in the input" in tally.crashes[0][1]


@pytest.mark.parametrize(
    ("numbers", "value", "found", "absent"),
    [
        (numbers_in_text, b'a{le="0.5"} 4.25 17 # {x="3"} 9\n', {4.25, 17.0, 9.0}, {0.5, 13.25}),
        (numbers_in_json, b'{"a":[1,"2.5"],"bucketCounts":["1",2]}\n{"b":7}', {1.0, 2.5, 3.0, 7.0}, {3.5, 8.0}),
        (numbers_in_json, b'{"buckets":[{"count":1},{"count":2},{"count":3}]}', {1.0, 3.0, 6.0}, {5.0}),
        (numbers_in_request, written([Point("a", {}, 5, 4.25)]), {4.25, 0.0}, {5.0}),
    ],
)
def test_the_numbers_of_an_input(
    numbers: Callable[[bytes], set[float]], value: bytes, found: set[float], absent: set[float]
) -> None:
    assert found <= numbers(value)
    assert absent.isdisjoint(numbers(value))


def test_most_drawn_inputs_are_read() -> None:
    """Where a grammar is odd in every input, its readers refuse all of them at the door."""
    for target in targets():
        if target.draw is not None:
            grammar = Grammar(random.Random(3))
            outcomes = [target.run(target.draw(grammar)) for _ in range(200)]
            assert sum(outcome.startswith("read") for outcome in outcomes) > 40, (target.name, outcomes[:20])
