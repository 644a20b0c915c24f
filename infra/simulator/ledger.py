"""Counts of requests: the metric totals of a replica, and the attainment of a whole run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Requests, and the metrics of a replica.


class Request:
    """One request and what became of it. Times in seconds of simulated time; NaN until they happen."""

    __slots__ = (
        "admission",
        "arrival_s",
        "cached",
        "finish_count",
        "finish_s",
        "first_token_s",
        "generated",
        "output_tokens",
        "prompt_tokens",
        "refused",
        "replica_id",
        "request_id",
        "target",
    )

    def __init__(self, request_id: int, arrival_s: float, prompt_tokens: int, output_tokens: int) -> None:
        self.request_id = request_id
        self.arrival_s = arrival_s
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.replica_id = -1
        self.first_token_s = math.nan
        self.finish_s = math.nan
        self.refused = False
        self.generated = 0
        self.cached = 0
        self.target = 0
        self.admission = -1
        self.finish_count = -1

    @property
    def ttft_s(self) -> float:
        """Arrival to first token, NaN before it."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first; 0 for a single token, NaN before the finish."""
        if self.output_tokens == 1:
            return 0.0 if not math.isnan(self.finish_s) else math.nan
        return (self.finish_s - self.first_token_s) / (self.output_tokens - 1)


class EngineState(NamedTuple):
    """A replica as its metrics endpoint shows it. Totals count ended iterations; `_s` are seconds so far."""

    running: int
    waiting: int
    kv_tokens: int
    kv_usage_ratio: float
    prompt_tokens_total: int
    generation_tokens_total: int
    preemptions_total: int
    busy_s: float
    prefill_s: float
    inter_token_s_total: float
    inter_tokens_total: int


TTFT_BOUNDS_S = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TPOT_BOUNDS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Objective:
    """A request is good when TTFT <= ttft_s and TPOT <= tpot_s."""

    ttft_s: float
    tpot_s: float

    def met(self, request: Request) -> bool:
        """Whether a finished request is good; an unfinished or refused one is not."""
        return request.ttft_s <= self.ttft_s and request.tpot_s <= self.tpot_s


class Histogram:
    """A cumulative histogram as metric exporters keep it; a value on a bound belongs below it."""

    __slots__ = ("_counts", "bounds", "count", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * len(bounds)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        place = bisect_left(self.bounds, value)
        if place < len(self._counts):
            self._counts[place] += 1
        self.count += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Values at or below each bound."""
        total, out = 0, []
        for n in self._counts:
            total += n
            out.append(total)
        return out


class ReplicaLedger:
    """Totals of one replica since it was launched."""

    __slots__ = ("requests_finished_total", "requests_started_total", "slo_good_total", "slo_total", "tpot_s", "ttft_s")

    def __init__(self) -> None:
        self.requests_started_total = 0
        self.requests_finished_total = 0
        self.slo_good_total = 0
        self.slo_total = 0
        self.ttft_s = Histogram(TTFT_BOUNDS_S)
        self.tpot_s = Histogram(TPOT_BOUNDS_S)

    def refused(self) -> None:
        """Count one that can never fit: it is over, and a miss."""
        self.requests_finished_total += 1
        self.slo_total += 1

    def book(self, first_tokens: Iterable[Request], finished: Iterable[Request], objective: Objective) -> None:
        """Count requests that got their first token, and requests that finished."""
        for request in first_tokens:
            self.ttft_s.observe(request.ttft_s)
        for request in finished:
            self.requests_finished_total += 1
            self.slo_total += 1
            self.slo_good_total += objective.met(request)
            if request.output_tokens > 1:
                self.tpot_s.observe(request.tpot_s)


class Scoreboard:
    """Attainment over the requests that arrive from `from_s` on.

    A request is decided when it finished, was refused, or is known to miss; `attainment` counts all that arrived,
    `so_far` only the decided ones, for a live view.
    """

    __slots__ = ("from_s", "num_arrived", "num_decided", "num_good", "objective")

    def __init__(self, objective: Objective, from_s: float) -> None:
        self.objective = objective
        self.from_s = from_s
        self.num_arrived = 0
        self.num_decided = 0
        self.num_good = 0

    def arrived(self, request: Request) -> None:
        self.num_arrived += request.arrival_s >= self.from_s

    def refused(self, request: Request) -> None:
        self.num_decided += request.arrival_s >= self.from_s

    def finished(self, request: Request) -> None:
        if request.arrival_s >= self.from_s:
            self.num_decided += 1
            self.num_good += self.objective.met(request)

    @property
    def so_far(self) -> float | None:
        """Share of good ones among the decided; None before the first."""
        return self.num_good / self.num_decided if self.num_decided else None

    @property
    def attainment(self) -> float | None:
        """Share of good ones among all that arrived; None without arrivals."""
        return self.num_good / self.num_arrived if self.num_arrived else None


def attainment(requests: Sequence[Request], objective: Objective, start_s: float, end_s: float) -> float | None:
    """Share of good requests among those that arrived in `[start_s, end_s)`; None without any."""
    marks = [objective.met(r) for r in requests if start_s <= r.arrival_s < end_s]
    return sum(marks) / len(marks) if marks else None


def worst_window_attainment(
    requests: Sequence[Request], objective: Objective, start_s: float, end_s: float, window_s: float
) -> float | None:
    """Lowest attainment over whole windows of arrival time.

    The last window takes the remainder; windows with under 5 % of the mean count are left out. None without requests.
    """
    windows = max(1, math.floor((end_s - start_s) / window_s))
    arrived = [0] * windows
    good = [0] * windows
    for request in requests:
        if start_s <= request.arrival_s < end_s:
            place = min(windows - 1, int((request.arrival_s - start_s) // window_s))
            arrived[place] += 1
            good[place] += objective.met(request)
    total = sum(arrived)
    if not total:
        return None
    floor = 0.05 * total / windows
    return min(g / n for g, n in zip(good, arrived, strict=True) if n and n >= floor)
