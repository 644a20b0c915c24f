"""Telemetry of the past, published in the order of its time, before that of now follows.

    Prometheus or files ─▶ portions ─▶ readings ─▶ records, step by step ─▶ the telemetry topics, with ticks

Workers take it as they take telemetry of now: a slot closes when a later one begins. They tick no partition while the
past comes in (`streams.runtime.ticker`), so the publisher does. Whatever lies before the newest telemetry of a
partition would be late; the past therefore begins where the topics end.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from statistics import median
from time import sleep, time
from typing import Any, Final, TypeVar

from infra.collect.loop import Collector
from infra.collect.options import Dry
from infra.collect.points import Point
from infra.collect.sources.prometheus import PrometheusApi, PrometheusError, PrometheusSource
from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.console.progress import ReportProgress, WorkBar
from infra.console.text import parse_duration_s
from infra.kafka.tail import TopicTail
from infra.settings.load import Settings
from streams.config import StreamConfig
from streams.log import OutRecord
from streams.records.schema import encode_tick
from streams.topics import Topics

Answer = TypeVar("Answer")

# A week is what windows hold; beyond it only capacities and lead times are learned.
MAX_HISTORY_S: Final = 31 * 86_400.0
# Partitions that hold no telemetry are ticked along, so that no window of slots is closed at once.
_SLOTS_PER_TICK: Final = 16
_FIRST_PORTION_S: Final = 300
_MAX_PORTION_S: Final = 3_600
_MIN_PORTION_S: Final = 15
_POINTS_PER_PORTION: Final = 150_000
# Pauses between tries; with the timeout of a query they stay below the time after which workers tick again.
_PAUSES_S: Final = (1, 2, 5, 10, 20)
QUERY_TIMEOUT_S: Final = 60.0
_SPARSE_RATIO: Final = 1.5
_TAIL_RECORDS: Final = 50
_REPORTED_SHARE: Final = 0.05
# Telemetry that is no older than this is that of now.
_NOW_S: Final = 2.0
# Topics whose newest telemetry is younger than this are those of a fleet that runs.
_RUNNING_S: Final = 60.0


def history_s(text: str) -> float:
    """Seconds of `--history`.

    Raises:
        HarmonyError: no duration, or more than 31 days (exit code 2).
    """
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise HarmonyError(f"--history: {error}.", 2) from None
    if seconds > MAX_HISTORY_S:
        raise HarmonyError(f"--history {text}: at most 31d; windows hold a week, so 7d is enough.", 2)
    return seconds


def load_history(
    api: PrometheusApi, source: PrometheusSource, settings: tuple[Settings, str], common: Dry, length_s: float
) -> Callable[[Collector], None]:
    """What a collector does first to publish the past of a server.

    Args:
        api: asked for the past, patiently.
        source: goes on from there.
    """

    def before(collector: Collector) -> None:
        publisher, newest_ms = open_history(collector, settings, common)
        with source.asking(api), WorkBar() as bar:
            PrometheusHistory(source, publisher, bar).load(length_s, newest_ms)

    return before


def open_history(
    collector: Collector, settings: tuple[Settings, str], common: Dry
) -> tuple[HistoryPublisher, int | None]:
    """What publishes the past, and up to when the topics hold telemetry; None: they are empty, or it is a dry run.

    Raises:
        HarmonyError: the brokers do not answer, or a topic is missing.
    """
    chosen, brokers = settings
    newest_ms = None if common.dry_run else newest_telemetry_ms(brokers, chosen.topics, chosen.kafka_client_options())
    return HistoryPublisher(collector, chosen.topics, chosen.stream), newest_ms


class HistoryPublisher:
    """Publishes portions of the past through a collector.

    Args:
        collector: makes records of points, and publishes them.
        stream: slot length and limits of the workers.
    """

    def __init__(self, collector: Collector, topics: Topics, stream: StreamConfig) -> None:
        self._collector, self._topics, self._stream = collector, topics, stream
        self._checked = False

    def portion(self, points: Sequence[Point], until_ms: int) -> None:
        """Publish points of one portion: step by step, then that nothing of it follows.

        Args:
            points: later than those of the portions before, and not later than `until_ms`.

        Raises:
            HarmonyError: Kafka did not take them, or samples are further apart than the steps (exit code 2).
        """
        self._check_interval(points)
        records: list[OutRecord] = []
        slots = self._collector.slots(points, self._stream.step_ms)
        for n, slot in enumerate(sorted(slots), 1):
            records += slots[slot]
            if n % _SLOTS_PER_TICK == 0:
                records += self._ticks(min(self._stream.slot_end_ms(slot), until_ms))
        self._collector.send([*records, *self._ticks(until_ms)])

    def tick(self, ts_ms: int) -> None:
        """Say that nothing before this instant follows.

        Raises:
            HarmonyError: Kafka did not take it.
        """
        self._collector.send(self._ticks(ts_ms))

    def _ticks(self, ts_ms: int) -> list[OutRecord]:
        value = encode_tick(ts_ms)
        return [
            OutRecord(topic, None, value, partition)
            for topic in (self._topics.telemetry_requests, self._topics.telemetry_gpu)
            for partition in range(self._topics.partitions)
        ]

    def _check_interval(self, points: Sequence[Point]) -> None:
        """The first portion with several samples of a series shows how far they are apart."""
        if self._checked:
            return
        times: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = defaultdict(list)
        for point in points:
            times[point.name, tuple(sorted(point.labels.items()))].append(point.ts_ms)
        gaps = [median(b - a for a, b in pairwise(t)) for t in times.values() if len(t) > 2]
        if not gaps:
            return
        self._checked = True
        interval_ms, step_ms = median(gaps), self._stream.step_ms
        if interval_ms > _SPARSE_RATIO * step_ms:
            raise HarmonyError(
                f"The samples of the past lie {interval_ms / 1000:g} s apart and a step lasts {step_ms / 1000:g} s, so "
                f"most steps would be empty. Set step_s: {math.ceil(interval_ms / 1000)} before the first start, or go "
                "without --history.",
                2,
            )


class PrometheusHistory:
    """Brings in what a Prometheus server holds of the past, up to now.

    Args:
        source: asked for the past here, and for what is new afterwards.
        progress: told how far it is.
        now_s: this machine's clock; times are the server's.
    """

    def __init__(
        self,
        source: PrometheusSource,
        publisher: HistoryPublisher,
        progress: ReportProgress,
        now_s: Callable[[], float] = time,
    ) -> None:
        self._source, self._publisher, self._progress, self._now_s = source, publisher, progress, now_s

    def load(self, length_s: float, newest_ms: int | None) -> None:
        """Publish the last `length_s` seconds, or what is missing of them.

        Args:
            newest_ms: up to where the topics hold telemetry; None = they are empty.

        Raises:
            HarmonyError: server or Kafka do not answer, or the samples cannot be used.
        """
        ahead_s = self._ask(self._source.server_now_s) - self._now_s()
        start_s = begun_s = self._now_s() + ahead_s - length_s
        if newest_ms is not None and newest_ms / 1000 > start_s:
            start_s = begun_s = newest_ms / 1000
            if self._now_s() + ahead_s - start_s < _RUNNING_S:
                say(already_text(newest_ms))
                return
            say(f"The topics hold telemetry up to {_time(start_s)}; the history goes on from there.")
        oldest_s = self._ask(partial(self._source.oldest_s, start_s, self._now_s() + ahead_s))
        if oldest_s is None:
            say(f"The server holds nothing of these series since {_time(start_s)}: there is no history to publish.")
            return
        if oldest_s > start_s + 3_600:
            say(f"The server's history begins at {_time(oldest_s)}, not at {_time(start_s)} as asked for.")
            start_s = begun_s = oldest_s
        self._publisher.tick(round(start_s * 1000))
        portion_s = float(_FIRST_PORTION_S)
        num_points, reported = 0, 0.0
        while (left_s := self._now_s() + ahead_s - start_s) > _NOW_S:
            end_s = start_s + min(portion_s, left_s)
            try:
                points = self._ask(partial(self._source.between, start_s, end_s), portion_s > _MIN_PORTION_S)
            except PrometheusError:
                # A server may refuse a query for its size only, so a smaller one comes before the tries.
                portion_s = max(portion_s / 4, _MIN_PORTION_S)
                continue
            self._publisher.portion(points, round(end_s * 1000))
            num_points += len(points)
            share = (end_s - begun_s) / max(1.0, self._now_s() + ahead_s - begun_s)
            if share >= reported + _REPORTED_SHARE or share >= 1:
                reported = share
                self._progress(f"history up to {_time(end_s)}, {num_points:,} samples", share)
            growth = min(4.0, _POINTS_PER_PORTION / max(1, len(points)))
            portion_s = min(max(growth * (end_s - start_s), _MIN_PORTION_S), _MAX_PORTION_S)
            start_s = end_s
        say(f"The history is published, {num_points:,} samples from {_time(begun_s)} on; telemetry of now follows.")

    def _ask(self, question: Callable[[], Answer], smaller: bool = False) -> Answer:
        """The answer, after some tries; workers must hear of the past meanwhile, or they would go on without it."""
        for pause_s in (*_PAUSES_S, None):
            try:
                return question()
            except PrometheusError as error:
                if smaller:
                    raise
                if pause_s is None:
                    raise HarmonyError(
                        f"The Prometheus server does not answer: {str(error).rstrip('.')}. The same command goes on "
                        "where it stopped; until it does, workers wait for two minutes."
                    ) from None
                sleep(pause_s)
        raise AssertionError("unreachable")


def already_text(newest_ms: int) -> str:
    """What to say where the topics already hold telemetry of now."""
    return (
        f"No history is published: the topics hold telemetry up to {_time(newest_ms / 1000)}, and what is older would "
        "be late. To begin with the past, stop workers and collectors, run `harmony state reset --telemetry`, then "
        "start again."
    )


def publish_points(
    publisher: HistoryPublisher, points: Iterable[Point], newest_ms: int | None, now_ms: int
) -> Mapping[str, int]:
    """Publish the past that files hold, in the order of time.

    Args:
        newest_ms: up to where the topics hold telemetry; None = they are empty.

    Returns:
        How many samples were left out, by reason.

    Raises:
        HarmonyError: nothing is left, or Kafka did not take it.
    """
    ordered = sorted(points, key=lambda point: point.ts_ms)
    left_out = {
        "in the future": sum(point.ts_ms > now_ms for point in ordered),
        "before what the topics hold": sum(newest_ms is not None and point.ts_ms <= newest_ms for point in ordered),
    }
    ordered = [p for p in ordered if p.ts_ms <= now_ms and (newest_ms is None or p.ts_ms > newest_ms)]
    if not ordered:
        reason = already_text(newest_ms) if newest_ms is not None else "No history is published: there are no samples."
        raise HarmonyError(reason)
    publisher.tick(ordered[0].ts_ms - 1)
    at = 0
    while at < len(ordered):
        # Samples of one instant belong to one portion.
        last_ms = ordered[min(at + _POINTS_PER_PORTION, len(ordered)) - 1].ts_ms
        end = at
        while end < len(ordered) and ordered[end].ts_ms <= last_ms:
            end += 1
        publisher.portion(ordered[at:end], last_ms)
        at = end
    return {reason: number for reason, number in left_out.items() if number}


def newest_telemetry_ms(brokers: str, topics: Topics, security: Mapping[str, Any] | None) -> int | None:
    """Up to when every partition that holds telemetry or ticks has it; None where none does.

    Raises:
        HarmonyError: the brokers do not answer, or a topic is missing.
    """
    newest: dict[tuple[str, int], int] = {}
    for topic in (topics.telemetry_requests, topics.telemetry_gpu):
        with TopicTail(brokers, topic, security=security) as tail:
            spans = {p: (max(begin, end - _TAIL_RECORDS), end) for p, (begin, end) in tail.bounds().items()}
            for record in tail.read(spans):
                ts_ms = min(_newest_ms(record.value), record.stamp_ms)
                newest[topic, record.partition] = max(ts_ms, newest.get((topic, record.partition), 0))
    return min(newest.values(), default=None)


def _newest_ms(value: bytes | None) -> int:
    """Newest event time of a telemetry record; 0 where it has none."""
    try:
        ts_ms = json.loads(value or b"")["ts_ms"]
        return int(max(ts_ms)) if isinstance(ts_ms, list) else int(ts_ms)
    except (ValueError, TypeError, KeyError):
        return 0


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
