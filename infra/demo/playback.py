"""A recording played through the telemetry topics: publish a slot, tick, wait for decisions, score the forecasts.

Nothing that was recorded obeys a decision, so a few slots may be under way; results do not depend on how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from threading import Event
from time import monotonic
from typing import Any

from infra.console.errors import HarmonyError
from infra.decision_tally import DecisionTally
from infra.demo.lockstep import FIRST_ANSWER_S, POLL_MS, DecisionFeed, Interrupted, SlotPublisher
from infra.demo.recordings import Recording
from infra.demo.scores import Scorecard
from infra.forecast_feed import ForecastFeed
from infra.pace import Pace, check_pace
from streams.config import StreamConfig
from streams.topics import Topics

# Slots published ahead of their decisions.
AHEAD = 16
_MOST_GRACE_MS = 1_000
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Played:
    """What a played recording came to."""

    samples: int
    slots: int
    tally: DecisionTally
    scorecard: Scorecard


def recording_stream(recording: Recording, step_s: float | None = None) -> StreamConfig:
    """How the recording's time is cut: by default into steps of its own interval.

    Slots are published one after the other, so nothing is late and the grace only has to be legal.

    Raises:
        HarmonyError: the step is shorter than the interval (exit code 2).
    """
    step_ms = recording.interval_ms if step_s is None else round(step_s * 1000)
    if step_ms < recording.interval_ms:
        raise HarmonyError(
            f"--step {step_s:g} is shorter than the {recording.interval_ms / 1000:g} s between two samples of "
            f"{recording.name}: most steps would be empty; use {recording.interval_ms / 1000:g} or more.",
            2,
        )
    grace_ms = min(step_ms, _MOST_GRACE_MS)
    return StreamConfig(step_ms=step_ms, grace_ms=grace_ms, skew_ms=grace_ms)


class RecordingRunner:
    """Plays a recording against the workers of a Kafka cluster.

    Args:
        brokers: `host:port`, several separated by commas; the topics exist.
        stream: what the workers run with.
        speed: recorded seconds per second; 0 = as fast as possible.
        duration_s: wall seconds at that speed; None = the whole recording.
        on_update: called after every slot with the number of slots played and of forecasts read.
        check_alive: called while waiting; may raise to end the run (a worker process died).
        decision_timeout_s: how long one slot may take.
        first_timeout_s: how long the first answer may: workers join their group, restore, and load the model.
        security: keyword arguments of kafka-python's clients.

    Raises:
        HarmonyError: speed and duration contradict each other (exit code 2).
    """

    def __init__(
        self,
        brokers: str,
        topics: Topics,
        stream: StreamConfig,
        recording: Recording,
        *,
        speed: float = 0.0,
        duration_s: float | None = None,
        on_update: Callable[[int, int], None] | None = None,
        check_alive: Callable[[], None] | None = None,
        decision_timeout_s: float = 60.0,
        first_timeout_s: float = FIRST_ANSWER_S,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        check_pace(speed, duration_s)
        self._brokers, self._topics, self._stream, self._security = brokers, topics, stream, security
        self._recording, self._speed = recording, speed
        self._on_update, self._check_alive = on_update, check_alive
        self._timeout_s, self._first_timeout_s = decision_timeout_s, first_timeout_s
        self.num_slots = len(recording.slot_numbers(stream.step_ms, stream.context_steps))
        if duration_s is not None:
            self.num_slots = min(self.num_slots, math.ceil(duration_s * speed * 1000 / stream.step_ms))
        self._stop = Event()
        self._samples = self._slots = 0
        self._tally = DecisionTally()

    def stop(self) -> None:
        """Ask the run to end after what it is doing; callable from a signal handler or another thread."""
        self._stop.set()

    def run(self) -> Played:
        """Play to the end, or until stopped, and score what was forecast.

        Raises:
            HarmonyError: the broker or the workers do not answer.
        """
        workload = self._recording.workload
        with (
            DecisionFeed(self._brokers, self._topics, [workload], self._security) as decisions,
            ForecastFeed(self._brokers, self._topics, self._stream, workload, self._security) as forecasts,
            SlotPublisher(self._brokers, self._topics, self._security) as publisher,
        ):
            try:
                self._play(publisher, decisions, forecasts)
            except (Interrupted, KeyboardInterrupt):
                self._stop.set()
            forecasts.drain(_DRAIN_S, answered=not self._stop.is_set())
        return Played(self._samples, self._slots, self._tally, forecasts.scorecard)

    def _play(self, publisher: SlotPublisher, decisions: DecisionFeed, forecasts: ForecastFeed) -> None:
        step_ms = self._stream.step_ms
        pace = Pace(step_ms / 1000 / self._speed if self._speed > 0 else 0.0)
        origins: list[int] = []
        for slot, telemetry in islice(self._recording.slots(step_ms, self._stream.context_steps), self.num_slots):
            if not origins:
                self._begin(publisher, forecasts, slot)
            if self._stop.is_set() or not pace.wait(self._stop):
                break
            origin_ts_ms = self._stream.slot_end_ms(slot)
            publisher.publish({self._recording.workload: telemetry}, origin_ts_ms + self._stream.grace_ms)
            origins.append(origin_ts_ms)
            self._slots += 1
            self._samples += telemetry.num_samples
            if len(origins) > AHEAD:
                self._await(decisions, origins[-1 - AHEAD])
            else:
                decisions.poll()
            self._take(decisions, forecasts)
        if origins and not self._stop.is_set():
            self._await(decisions, origins[-1])
        self._take(decisions, forecasts)

    def _begin(self, publisher: SlotPublisher, forecasts: ForecastFeed, first_slot: int) -> None:
        """Close the empty slot before the first one everywhere, and wait for its pages.

        A source without a page counts as absent, so otherwise the first slots might be joined without their requests.
        """
        for slot in (first_slot - 2, first_slot - 1):
            publisher.publish({}, self._stream.slot_end_ms(slot) + self._stream.grace_ms)
        deadline_s = monotonic() + self._first_timeout_s
        while not forecasts.closed_everywhere():
            if self._stop.is_set():
                raise Interrupted
            if self._check_alive is not None:
                self._check_alive()
            if monotonic() > deadline_s:
                raise HarmonyError(
                    f"No worker closed a slot within {self._first_timeout_s:g} s: check that workers of all roles "
                    "run (`harmony status`)."
                )
            forecasts.poll(POLL_MS)

    def _await(self, decisions: DecisionFeed, origin_ts_ms: int) -> None:
        timeout_s = self._timeout_s if self._tally.total else self._first_timeout_s
        decisions.wait(origin_ts_ms, self._stream.step_ms, timeout_s, self._stop, self._check_alive)

    def _take(self, decisions: DecisionFeed, forecasts: ForecastFeed) -> None:
        self._tally.add(decisions.inbox.take_arrived())
        forecasts.poll()
        if self._on_update is not None:
            self._on_update(self._slots, sum(forecasts.scorecard.forecasts_by_source.values()))
