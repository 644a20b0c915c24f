"""Random histories, and the laws that hold in each: an oracle of its own, which shares nothing with our guard."""

from __future__ import annotations

import random

import msgspec

from agents.actuation.guard import Overrides, RateCaps
from agents.records import Command, Pin
from infra.actuate.conformance.kit import LEASE_MS, Bench, Case, Violation

_STEPS = 60
_WORKLOADS = ("w", "v")
_MINUTE_MS = 60_000


class RandomHistory:
    """One random history on a bench, and what must be true after each step of it.

    Laws, per delivery: the count moves only towards the command's, only for the newest command in time, not while
    stopped, not over somebody else's change, not faster than the caps; a pin is the count; and a healthy command whose
    expectation is met is carried out.
    """

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self._b, self._rng = bench, rng
        self._caps = rng.choice([RateCaps(), RateCaps(max_added=3, max_removed=2, max_removed_fleet=3)])
        bench.start(caps=self._caps, replicas=dict.fromkeys(_WORKLOADS, 5))
        if not (bench.can("caps") and bench.can("changes")):
            # Who does not see the target can cap only what it believes to change.
            self._caps = RateCaps()
            bench.start(replicas=dict.fromkeys(_WORKLOADS, 5))
        self._overrides = Overrides()
        self._newest: dict[str, tuple[int, int]] = {}
        self._sent: list[Command] = []
        self._ordered: dict[str, set[int]] = {w: set() for w in _WORKLOADS}
        self._obeyed: set[tuple[str, tuple[int, int]]] = set()
        self._lost: list[tuple[int, str, int]] = []
        self._sequence, self._epoch = 0, 1
        self._delivered_epoch = 0
        self._log: list[str] = []

    def step(self) -> None:
        """Something happens. Raises Violation when a law is broken; it carries the history."""
        kinds = {self._new: 8, self._old: 3, self._later: 4, self._restart: 1, self._change: 2, self._speak: 2}
        try:
            self._rng.choices(list(kinds), list(kinds.values()))[0]()
        except Violation as violation:
            raise Violation(f"{violation}; after: {'; '.join(self._log[-12:])}") from None

    def _new(self) -> None:
        workload, rng = self._rng.choice(_WORKLOADS), self._rng
        self._sequence += rng.randint(1, 2)
        # Of two new epochs in a row, unheard between, the second one would be a jump.
        if rng.random() < 0.05 and self._delivered_epoch == self._epoch:
            self._epoch, self._sequence = self._epoch + 1, 1
        count = self._b.count(workload)
        expected = count if rng.random() < 0.8 else rng.randint(0, 12)
        replicas = rng.randint(0, 12)
        command = self._b.command(
            self._sequence,
            replicas,
            expected,
            workload=workload,
            epoch=self._epoch,
            command_id=f"c{self._epoch}-{self._sequence}",
            reason="pin" if rng.random() < 0.05 else "cheapest",
        )
        self._sent.append(command)
        if rng.random() < 0.75:
            self._deliver(command)

    def _old(self) -> None:
        if self._sent:
            self._deliver(self._rng.choice(self._sent))

    def _later(self) -> None:
        ms = self._rng.choice([1, 5_000, 30_000, LEASE_MS - 1, LEASE_MS, 90_000])
        self._b.later(ms)
        self._log.append(f"{ms} ms later")
        self._check_pins()

    def _restart(self) -> None:
        self._log.append("restart")
        self._b.restart()
        self._check_pins()

    def _change(self) -> None:
        if self._b.can("changes") and not self._overrides.pins:
            workload, replicas = self._rng.choice(_WORKLOADS), self._rng.randint(0, 12)
            self._log.append(f"somebody sets {workload} to {replicas}")
            self._b.change(replicas, workload)

    def _draw_overrides(self) -> Overrides:
        stopped = "stopped by the kit" if self._rng.random() < 0.4 else None
        pins = {}
        if self._rng.random() < 0.4:
            until = self._b.now_ms + self._rng.choice([10_000, 10 * LEASE_MS])
            pins[self._rng.choice(_WORKLOADS)] = Pin(self._rng.randint(0, 12), until, "kit", "test")
        return Overrides(stopped, pins)

    def _speak(self) -> None:
        if not self._b.can("words"):
            return
        self._overrides = self._draw_overrides()
        self._log.append(f"words {msgspec.to_builtins(self._overrides)}")
        self._b.set_overrides(self._overrides)
        self._check_pins()

    def _check_pins(self) -> None:
        for workload in self._overrides.pins:
            pin = self._overrides.pin(workload, self._b.now_ms)
            if pin is not None:
                self._b.expect(pin.replicas, "pinned", workload)

    def _deliver(self, command: Command) -> None:
        workload, place, now_ms = command.workload, (command.epoch, command.sequence), self._b.now_ms
        before = {w: self._b.count(w) for w in _WORKLOADS}
        self._log.append(
            f"{workload} has {before[workload]}, command {place} wants {command.replicas} of "
            f"{command.expected_current}, {command.reason}, runs out in {command.valid_until_ts_ms - now_ms} ms"
        )
        self._b.deliver(command)
        self._delivered_epoch = max(self._delivered_epoch, command.epoch)
        after = {w: self._b.count(w) for w in _WORKLOADS}
        for other in _WORKLOADS:
            if other != workload and after[other] != before[other]:
                raise Violation(f"{other} changed from {before[other]} to {after[other]} by a command of {workload}")
        was, now = before[workload], after[workload]
        newest = place >= self._newest.get(workload, (-1, -1))
        self._newest[workload] = max(place, self._newest.get(workload, place))
        if self._overrides.pin(workload, now_ms) is not None:
            self._check_pins()
            return
        in_log, in_time = command.reason == "pin", now_ms < command.valid_until_ts_ms
        stopped = self._overrides.stopped is not None and not in_log
        is_expected = was in {command.expected_current, command.replicas} | self._ordered[workload] or in_log
        if now != was:
            for broken, law in (
                (not newest, "an older command was obeyed"),
                (not in_time, "a command was obeyed that had run out"),
                (stopped, "a command was obeyed while stopped"),
                (self._b.can("changes") and not is_expected, "somebody else's change was overwritten"),
                (not min(was, command.replicas) <= now <= max(was, command.replicas), "the count moved elsewhere"),
            ):
                if broken:
                    raise Violation(f"{law}: {workload} went from {was} to {now}")
            self._check_caps(workload, was, now, in_log)
        # Acted upon once and undone by a pin, a command that comes again is no news: who knows its id need not obey.
        again = (workload, place) in self._obeyed
        healthy = newest and in_time and not stopped and not again and was == command.expected_current
        uncapped = in_log or self._caps == RateCaps()
        if healthy and uncapped and now != command.replicas:
            raise Violation(f"a healthy command was not obeyed: {workload} stayed at {now}")
        if now != was or now == command.replicas:
            self._obeyed.add((workload, place))
        if newest:
            self._ordered[workload] |= {command.replicas, now}

    def _check_caps(self, workload: str, was: int, now: int, in_log: bool) -> None:
        now_ms = self._b.now_ms
        self._lost = [x for x in self._lost if x[0] > now_ms - _MINUTE_MS] + [(now_ms, workload, now - was)]
        if in_log:
            return  # counts, but may exceed
        gained = sum(n for _, w, n in self._lost if w == workload and n > 0)
        lost = -sum(n for _, w, n in self._lost if w == workload and n < 0)
        lost_by_all = -sum(n for _, _, n in self._lost if n < 0)
        for value, cap, what, moved in (
            (gained, self._caps.max_added, "gained", now > was),
            (lost, self._caps.max_removed, "lost", now < was),
            (lost_by_all, self._caps.max_removed_fleet, "lost by all", now < was),
        ):
            if moved and cap is not None and value > cap:
                raise Violation(f"{value} replicas {what} within a minute, {cap} are allowed ({workload})")


def random_case(seed: int) -> Case:
    """A case of sixty random steps."""

    def run(bench: Bench) -> None:
        history = RandomHistory(bench, random.Random(seed))
        for _ in range(_STEPS):
            history.step()

    return run
