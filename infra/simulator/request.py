"""A request and what becomes of it, and what a replica shows of itself."""

from __future__ import annotations

import math
from typing import NamedTuple


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
