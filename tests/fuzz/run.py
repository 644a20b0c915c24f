"""`python -m tests.fuzz.run`: a million inputs through the decoder, a million through all other readers; the slowest.

`--only files --each 200000` puts so many through every reader of tables.

No input may raise anything but a refusal, and none that strangers can send may take more than a millisecond of CPU.
What comes back new (another reader's word, another refusal) becomes a seed for what follows.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic, thread_time_ns

from tests.fuzz.targets import Target, targets
from tests.fuzz.telemetry import Grammar

LIMIT_US = 1_000.0
# A pause of the machine is no property of the input: one that is slow is tried again, and the best time counts.
_TRIES = 5
# Share of the inputs that a grammar makes, where there is one; the others are changed ones.
_BY_GRAMMAR = 0.7


@dataclass(slots=True)
class Tally:
    """What became of a target's inputs.

    Attributes:
        crashes: inputs with what they raised, at most a few.
        slow: inputs that took longer than the limit every time, with the best time in µs.
    """

    inputs: int = 0
    size: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    crashes: list[tuple[bytes, str]] = field(default_factory=list)
    slow: list[tuple[bytes, float]] = field(default_factory=list)
    slowest_us: float = 0.0
    total_us: float = 0.0


def fuzz(target: Target, count: int, seed: int) -> Tally:
    """Put so many inputs through a reader; the seeds themselves come first."""
    tally = Tally()
    rng = random.Random(f"{seed} {target.name}")
    mutator, grammar = target.mutator(target.seeds, rng), Grammar(rng)
    seeds = list(target.seeds)
    gc.collect()
    gc.disable()
    try:
        for number in range(count):
            if number < len(seeds):
                value = seeds[number]
            elif target.draw is not None and rng.random() < _BY_GRAMMAR:
                value = target.draw(grammar)
            else:
                value = mutator.draw()
            before = len(tally.outcomes)
            _try(target, value, tally)
            if len(tally.outcomes) > before:
                mutator.add(value)
            if number % 5_000 == 0:
                gc.collect()
    finally:
        gc.enable()
    return tally


def _try(target: Target, value: bytes, tally: Tally) -> None:
    tally.inputs += 1
    tally.size += len(value)
    try:
        us, outcome = _timed(target, value)
        limit_us = LIMIT_US + target.us_per_kib * len(value) / 1_024
        if target.timed and us > limit_us:
            us = min([us, *(_timed(target, value)[0] for _ in range(_TRIES))])
            if us > limit_us:
                tally.slow.append((value, us))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        tally.outcomes[f"crash: {type(error).__name__}"] += 1
        if len(tally.crashes) < 5:
            tally.crashes.append((value, "".join(traceback.format_exception(error, limit=-4))))
        return
    tally.outcomes[outcome] += 1
    tally.total_us += us
    tally.slowest_us = max(tally.slowest_us, us)


def _timed(target: Target, value: bytes) -> tuple[float, str]:
    started = thread_time_ns()
    outcome = target.run(value)
    return (thread_time_ns() - started) / 1_000, outcome


def report(target: Target, tally: Tally) -> str:
    said = ", ".join(f"{name} {n}" for name, n in tally.outcomes.most_common(8))
    verdict = f"{len(tally.crashes)} crashes" if tally.crashes else "no crash"
    verdict += f", {len(tally.slow)} too slow" if target.timed else ""
    return (
        f"{target.name:<24}{tally.inputs:>9} inputs{tally.size / 1e6:>8.0f} MB  "
        f"mean {tally.total_us / max(1, tally.inputs):>6.1f} µs  slowest {tally.slowest_us:>7.0f} µs  {verdict}: {said}"
    )


def main() -> int:
    """Returns the exit code: 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of the decoder, and of all others together")
    parser.add_argument("--each", action="store_true", help="so many of every reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="readers whose name holds this")
    chosen = parser.parse_args()
    found = [target for target in targets() if chosen.only in target.name]
    started, inputs, failed = monotonic(), 0, False
    for target in found:
        alike = 1 if chosen.each else sum(other.decoder == target.decoder for other in found)
        begun = monotonic()
        tally = fuzz(target, chosen.inputs // alike, chosen.seed)
        inputs += tally.inputs
        print(f"{report(target, tally)} ({monotonic() - begun:.0f} s)", flush=True)
        for value, what in tally.crashes:
            print(f"  crash on {value[:400]!r}\n{what}", flush=True)
        for value, us in sorted(tally.slow, key=lambda pair: -pair[1])[:5]:
            print(f"  {us:.0f} µs on {len(value)} bytes: {value[:300]!r}", flush=True)
        failed |= bool(tally.crashes or tally.slow)
    print(f"{inputs} inputs, seed {chosen.seed}, {monotonic() - started:.0f} s: {'FAILED' if failed else 'passed'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
