"""Scores of published forecasts against the values that came later, exact over a whole run.

Two yardsticks, both made at the origin from what was observed until then: the last value, for the median; and the last
value plus the quantiles of the context's h-step changes, for the quantile (pinball) loss. A ratio below 1 is better.
Pure: slots are the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from time import monotonic
from typing import Any, Self

import msgspec
import numpy as np
from kafka.errors import KafkaError
from numpy.typing import NDArray

from agents.forecast.kernel import STAGE
from agents.records import ForecastRecord
from infra.console.errors import HarmonyError
from infra.demo.lockstep import POLL_MS, reader_from_now
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.config import StreamConfig
from streams.log import UNREADABLE, ContractBroken, LogRecord
from streams.pages.codec import PageAssembler
from streams.pages.page import Page
from streams.runtime.commits import CommitAssembler
from streams.topics import Topics

Floats = NDArray[np.float64]

BAND = (0.05, 0.95)
# Forecasts carry six significant digits: a value that differs by less lies on the band's edge, not outside.
_ROUNDING = 5e-6
# Fewer changes than this say too little about their quantiles.
_LEAST_CHANGES = 16


@dataclass(slots=True)
class Sums:
    """Of the scores of one indicator. A score belongs to one step of one forecast.

    Attributes:
        forecasts: with at least one score.
        scores, first_scores: of all steps, and of step 1.
        inside, first_inside: those with the value within the central 90 % band.
        error, last_error: absolute errors of the median and of the last value, where both are known.
        pinball, last_pinball: quantile losses of the forecast and of the last value + changes, where both are known.
    """

    forecasts: int = 0
    scores: int = 0
    first_scores: int = 0
    inside: int = 0
    first_inside: int = 0
    error: float = 0.0
    last_error: float = 0.0
    pinball: float = 0.0
    last_pinball: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def coverage_90(self) -> float | None:
        """Share of values within the 90 % band, over all steps ahead."""
        return _ratio(self.inside, self.scores)

    @property
    def coverage_90_step1(self) -> float | None:
        """The same one step ahead."""
        return _ratio(self.first_inside, self.first_scores)

    @property
    def mae_ratio_to_last_value(self) -> float | None:
        """Mean absolute error of the median / that of the last value."""
        return _ratio(self.error, self.last_error)

    @property
    def pinball_ratio_to_last_value(self) -> float | None:
        """Mean quantile loss / that of the last value + the quantiles of the context's changes."""
        return _ratio(self.pinball, self.last_pinball)


@dataclass(frozen=True, slots=True)
class Example:
    """One forecast of one indicator.

    Attributes:
        quantiles: [H][Q], ascending in Q.
        observed: [H], what came; None where nothing was observed, or not yet.
    """

    origin_ts_ms: int
    step_ms: int
    source: str
    quantile_levels: tuple[float, ...]
    quantiles: tuple[tuple[float, ...], ...]
    observed: tuple[float | None, ...]


@dataclass(slots=True)
class IndicatorScore:
    """Of one indicator.

    Attributes:
        by_source: all forecasts, by forecaster.
        full_context: of the forecasts whose context reached back as far as it ever does.
        example: the newest forecast whose steps have all been played.
    """

    by_source: dict[str, Sums] = field(default_factory=dict)
    full_context: Sums = field(default_factory=Sums)
    example: Example | None = None

    @property
    def total(self) -> Sums:
        return sum(self.by_source.values(), Sums())


class Scorecard:
    """Collects one workload's forecasts and values, and scores a forecast once all its steps are closed.

    Args:
        step_ms: slot length.
        context_steps: how many slots up to the origin the yardsticks may read.

    Attributes:
        forecasts_by_source: all forecasts offered, by forecaster.
        indicators: by name.
    """

    def __init__(self, step_ms: int, context_steps: int) -> None:
        self._step_ms, self._context_steps = step_ms, context_steps
        self._values: dict[int, dict[str, float]] = {}
        self._pending: deque[ForecastRecord] = deque()
        self._first_slot: int | None = None
        self._newest_ts_ms: int | None = None
        self.forecasts_by_source: dict[str, int] = {}
        self.indicators: dict[str, IndicatorScore] = {}

    def observe(self, slot: int, values: Mapping[str, float]) -> None:
        """Indicator values of a slot; of two words on one indicator the first stands."""
        self._first_slot = slot if self._first_slot is None else min(slot, self._first_slot)
        slot_values = self._values.setdefault(slot, {})
        for name, value in values.items():
            slot_values.setdefault(name, value)

    def offer(self, forecast: ForecastRecord) -> None:
        """A published forecast, in order of origins; one that was published again counts once."""
        if self._newest_ts_ms is not None and forecast.origin_ts_ms <= self._newest_ts_ms:
            return
        self._newest_ts_ms = forecast.origin_ts_ms
        self.forecasts_by_source[forecast.source] = self.forecasts_by_source.get(forecast.source, 0) + 1
        self._pending.append(forecast)

    def settle(self, closed_slot: int | None) -> None:
        """Score the forecasts that end at `closed_slot` or before; None = all, with what has been observed."""
        while self._pending:
            forecast = self._pending[0]
            origin, horizon = self._origin(forecast), max(map(len, forecast.targets.values()), default=0)
            if closed_slot is not None and origin + horizon > closed_slot:
                return
            self._pending.popleft()
            for name, rows in forecast.targets.items():
                self._score(forecast, name, np.array(rows, np.float64), origin, complete=closed_slot is not None)
            for slot in [s for s in self._values if s <= origin - self._context_steps]:
                del self._values[slot]

    def _origin(self, forecast: ForecastRecord) -> int:
        """The slot at whose end the forecast was made."""
        return forecast.origin_ts_ms // self._step_ms - 1

    def _score(self, forecast: ForecastRecord, name: str, quantiles: Floats, origin: int, *, complete: bool) -> None:
        ahead = self._series(name, range(origin + 1, origin + 1 + len(quantiles)))  # [H]
        past = self._series(name, range(origin - self._context_steps + 1, origin + 1))  # [L]
        score = self.indicators.setdefault(name, IndicatorScore())
        sums = score_of(forecast.quantile_levels, quantiles, ahead, past)
        score.by_source[forecast.source] = score.by_source.get(forecast.source, Sums()) + sums
        if self._first_slot is not None and origin - self._first_slot + 1 >= self._context_steps:
            score.full_context += sums
        if complete or score.example is None:
            score.example = Example(
                forecast.origin_ts_ms,
                forecast.step_ms,
                forecast.source,
                forecast.quantile_levels,
                forecast.targets[name],
                tuple(None if np.isnan(x) else float(x) for x in ahead),
            )

    def _series(self, name: str, slots: Iterable[int]) -> Floats:
        nothing: dict[str, float] = {}
        return np.array([self._values.get(slot, nothing).get(name, np.nan) for slot in slots], np.float64)


def score_of(levels: Sequence[float], quantiles: Floats, ahead: Floats, past: Floats) -> Sums:
    """Scores of one forecast of one indicator.

    Args:
        levels: Q ascending; must hold 0.05, 0.5 and 0.95.
        quantiles: [H, Q].
        ahead: [H], what came, NaN where not observed.
        past: [L], what was known at the origin, oldest first, NaN where not observed.
    """
    low, middle, high = (list(levels).index(q) for q in (BAND[0], 0.5, BAND[1]))
    mask = ~np.isnan(ahead)  # [H]
    slack = _ROUNDING * np.abs(ahead)
    inside = (quantiles[:, low] - slack <= ahead) & (ahead <= quantiles[:, high] + slack)
    sums = Sums(
        forecasts=int(mask.any()),
        scores=int(mask.sum()),
        first_scores=int(mask[0]),
        inside=int(inside[mask].sum()),
        first_inside=int(inside[0] & mask[0]),
    )
    finite_past = past[~np.isnan(past)]
    if len(finite_past) == 0:
        return sums
    last = finite_past[-1]
    sums.error = float(np.abs(quantiles[mask, middle] - ahead[mask]).sum())
    sums.last_error = float(np.abs(last - ahead[mask]).sum())
    changes = _change_quantiles(levels, past, len(ahead))  # [H, Q]
    both = mask & ~np.isnan(changes).any(axis=1)
    sums.pinball = _pinball(levels, quantiles[both], ahead[both])
    sums.last_pinball = _pinball(levels, last + changes[both], ahead[both])
    return sums


def _pinball(levels: Sequence[float], quantiles: Floats, values: Floats) -> float:
    error = values[:, None] - quantiles  # [H, Q]
    tau = np.asarray(levels)
    return float(np.maximum(tau * error, (tau - 1) * error).mean(axis=1).sum())


def _change_quantiles(levels: Sequence[float], past: Floats, horizon: int) -> Floats:
    """Quantiles [H, Q] of the changes over 1..H steps within the past, R type 6; NaN where there are too few."""
    changes = np.full((horizon, len(past)), np.nan)
    for h in range(1, min(horizon, len(past) - 1) + 1):
        changes[h - 1, :-h] = past[h:] - past[:-h]
    changes.sort(axis=1)  # NaN last
    count = (~np.isnan(changes)).sum(axis=1)[:, None]  # [H, 1]
    position = np.clip(np.asarray(levels) * (count + 1) - 1, 0, np.maximum(count - 1, 0))  # [H, Q]
    low = np.floor(position).astype(np.int64)
    below = np.take_along_axis(changes, low, 1)
    above = np.take_along_axis(changes, np.minimum(low + 1, np.maximum(count - 1, 0)), 1)
    return np.where(count >= _LEAST_CHANGES, below + (above - below) * (position - low), np.nan)


def _ratio(part: float, total: float) -> float | None:
    return part / total if total > 0 else None


# Feed of the scorecard: published forecasts and, later, the observed values.


class _Committed(msgspec.Struct):
    """Of the body of a commit record, the slot that was answered in full."""

    slot: int


class ForecastFeed:
    """Reads the topics `forecasts`, `pages` and `commits` from now on, in no consumer group, and scores one workload.

    The pages are what the forecast stage itself reads, so a forecast is held against exactly the values that it was
    about. The commit record of a slot comes after its forecasts, as the decision does not.
    """

    def __init__(
        self,
        brokers: str,
        topics: Topics,
        stream: StreamConfig,
        workload: str,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        self._topics, self._workload = topics, workload
        self._consumer = reader_from_now(brokers, _read(topics), topics.partitions, security)
        self._assemblers = [
            PageAssembler(stream, topics.partitions, DEFAULT_CATALOGUE) for _ in range(topics.partitions)
        ]
        self._commits = [CommitAssembler(STAGE, p, topics.commits) for p in range(topics.partitions)]
        # Newest closed slot of each source in each partition; the workload lives in one of them.
        self._closed: dict[tuple[int, Source], int] = {}
        self._home: int | None = None
        self.scorecard = Scorecard(stream.step_ms, stream.context_steps)

    def poll(self, timeout_ms: int = 0) -> None:
        """Take in what has arrived, and score what can be scored."""
        try:
            batches = self._consumer.poll(timeout_ms=timeout_ms)
        except KafkaError as error:
            raise self._complaint(f"{type(error).__name__}: {error}") from error
        for partition, records in batches.items():
            for record in records:
                if partition.topic == self._topics.pages:
                    self._take_page(partition.partition, record)
                elif partition.topic == self._topics.commits:
                    self._take_commit(partition.partition, record)
                elif record.value is not None:
                    self._take_forecast(record.value)
        if (closed := self._closed_at_home()) is not None:
            self.scorecard.settle(closed)

    def closed_everywhere(self) -> bool:
        """Every partition has a page of both sources."""
        return len(self._closed) == len(SOURCES) * self._topics.partitions

    def drain(self, timeout_s: float, *, answered: bool = True) -> None:
        """Read to the present end of the topics, then score every forecast with what has been observed.

        Args:
            answered: first wait until all that is closed by now has been answered, forecasts and all.

        Raises:
            HarmonyError: the end was not reached in time.
        """
        deadline_s = monotonic() + timeout_s
        self._read_to_the_end(deadline_s, timeout_s)
        while answered and not self._answered_at_home():
            if monotonic() > deadline_s:
                raise self._complaint(f"the last slot's forecasts did not come within {timeout_s:g} s")
            self.poll(POLL_MS)
        # Topics are fetched independently: the commit record may be here before the forecasts.
        self._read_to_the_end(deadline_s, timeout_s)
        self.scorecard.settle(None)

    def _read_to_the_end(self, deadline_s: float, timeout_s: float) -> None:
        ends = self._consumer.end_offsets(self._consumer.assignment())
        while any(self._consumer.position(partition) < end for partition, end in ends.items()):
            if monotonic() > deadline_s:
                raise self._complaint(f"the end was not reached within {timeout_s:g} s")
            self.poll(POLL_MS)

    def _closed_at_home(self) -> int | None:
        """Newest slot of which both sources are closed in the workload's partition."""
        if self._home is None:
            return None
        return min(slot for source in SOURCES if (slot := self._closed.get((self._home, source))) is not None)

    def _answered_at_home(self) -> bool:
        closed = self._closed_at_home()
        if self._home is None or closed is None:
            return True
        commit = self._commits[self._home].newest
        return commit is not None and msgspec.msgpack.decode(commit.body, type=_Committed).slot >= closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _take_forecast(self, value: bytes) -> None:
        try:
            forecast = msgspec.json.decode(value, type=ForecastRecord)
        except UNREADABLE as error:
            raise self._complaint(f"a forecast is not as expected: {error}") from None
        if forecast.workload == self._workload:
            self.scorecard.offer(forecast)

    def _take_commit(self, partition: int, record: Any) -> None:
        try:
            self._commits[partition].feed(_log_record(record))
        except ContractBroken as error:
            raise self._complaint(str(error)) from None

    def _take_page(self, partition: int, record: Any) -> None:
        try:
            pages = self._assemblers[partition].feed(_log_record(record))
        except ContractBroken as error:
            raise self._complaint(str(error)) from None
        for stored in pages:
            page = stored.page
            self._closed[partition, page.source] = max(page.slot, self._closed.get((partition, page.source), page.slot))
            if self._workload in page.workloads:
                self._home = partition
                self.scorecard.observe(page.slot, _observed(page, self._workload))

    def _complaint(self, reason: str) -> HarmonyError:
        return HarmonyError(
            f"{', '.join(_read(self._topics))} cannot be read ({reason}); check that the broker and the workers run"
            " and that nothing else writes to these topics."
        )


def _read(topics: Topics) -> tuple[str, ...]:
    return topics.forecasts, topics.pages, topics.commits


def _log_record(record: Any) -> LogRecord:
    return LogRecord(record.offset, record.timestamp, record.key, record.value)


def _observed(page: Page, workload: str) -> dict[str, float]:
    row = page.workloads.index(workload)
    return {page.indicators[n]: float(page.values[row, n]) for n in np.flatnonzero(page.observed[row])}
