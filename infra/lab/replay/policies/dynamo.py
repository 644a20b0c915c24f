"""NVIDIA Dynamo's SLA planner on replicas that serve both phases: the classic planner and the dual loop.

The classic planner predicts the requests and lengths of the next interval; here the predictor is constant, Dynamo's
simplest. It corrects the profile by observed over expected latency and divides.

The dual loop takes the uncorrected count as a floor. Every 5 s it adds a replica when the estimated TTFT or ITL of all
engines exceeds the objective. It removes one when one replica less would still keep both within `sensitivity` of it:
of TTFT the part that the queue adds, of ITL all. It holds while replicas start.

Dynamo fits its engine model to measured iterations; here it is the engine's own law. The floor acts at once, also while
replicas start, where Dynamo waits.

Source: ai-dynamo/dynamo, `components/src/dynamo/planner/core`: `throughput_scaling.py`, `load_scaling.py` and
`perf_model/agg.py`; documentation of the SLA planner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from infra.lab.replay.simulation import View
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile

# The offline profile of the engine that both planners read.


@dataclass(frozen=True, slots=True)
class ProfileBook:
    """Latency and rate of one replica in the steady state, in closed form."""

    profile: EngineProfile
    objective: Objective

    def engine_rps(self, prompt: float, output: float, tpot_s: float | None = None) -> float:
        """Return the most requests/s of one replica at which TPOT and TTFT stay within their limits.

        The batch grows until a limit is met. It holds what the cache, the batch limit and the prefill budget allow: as
        many prompts must be computed as requests end. The rate follows by Little's law.

        Args:
            tpot_s: limit of the time per token; None: the objective's.
        """
        p, prompt, output = self.profile, max(prompt, 1.0), max(output, 1.0)
        limit_s = self.objective.tpot_s if tpot_s is None else tpot_s
        by_memory = p.kv_capacity_tokens / (prompt + output / 2)
        by_prefill = output * p.max_prefill_tokens / prompt
        most = min(by_memory, by_prefill, float(p.max_batch))
        # Below one request at a time the prefill budget alone limits the rate.
        batches = np.arange(1, int(most) + 1, dtype=np.float64) if most >= 1.0 else np.asarray([most])
        chosen = batches[0]
        for batch in batches:
            chunk = min(batch * prompt / output, float(p.max_prefill_tokens))
            too_slow = self._iteration_s(chunk, prompt, output, batch) > limit_s
            if too_slow or self.ttft_s(chunk, prompt, output, batch) > self.objective.ttft_s:
                break
            chosen = batch
        chunk = min(chosen * prompt / output, float(p.max_prefill_tokens))
        return max(1e-6, float(chosen) / (output * self._iteration_s(chunk, prompt, output, chosen)))

    def tpot_s(self, running: float, prompt: float, output: float, rate: float) -> float:
        """Time per token with so many requests decoding and `rate` requests/s being prefilled."""
        decode_s = self._iteration_s(0.0, prompt, output, running)
        busy = rate * prompt * self._prefill_token_s(prompt)
        budget = float(self.profile.max_prefill_tokens)
        chunk = budget if busy >= 1.0 else min(budget, rate * prompt * decode_s / (1.0 - busy))
        return self._iteration_s(chunk, prompt, output, running)

    def ttft_s(self, waiting_tokens: float, prompt: float, output: float, running: float) -> float:
        """Prefill of what waits and of one more prompt, chunk by chunk beside the decoding requests."""
        budget = self.profile.max_prefill_tokens
        full, rest = divmod(waiting_tokens + prompt, budget)
        full_s = full * self._iteration_s(budget, prompt, output, running) if full else 0.0
        return full_s + (self._iteration_s(rest, prompt, output, running) if rest > 0 else 0.0)

    def _iteration_s(self, prefill_tokens: float, prompt: float, output: float, running: float) -> float:
        p = self.profile
        decode_s = (p.sequence_s + p.kv_token_s * (prompt + output / 2)) * running
        return float(p.base_s + prefill_tokens * self._prefill_token_s(prompt) + decode_s)

    def _prefill_token_s(self, prompt: float) -> float:
        return self.profile.prefill_token_s + self.profile.prefill_token_sq_s * prompt / 2


SENSITIVITY = 0.8


class DynamoClassic:
    """Args: `interval_s` of adjustment; `margin` multiplies the predicted load."""

    def __init__(self, book: ProfileBook, interval_s: float = 60.0, margin: float = 1.0) -> None:
        self.period_s = interval_s
        self.looks_back_s = interval_s
        self._book, self._margin = book, margin

    def desired_replicas(self, view: View) -> int:
        rate, lengths = view.arrivals_within(self.period_s), view.lengths_within(self.period_s)
        if rate is None or lengths is None or not view.ready:
            return view.current
        book, (prompt, output) = self._book, lengths
        readings = view.within(self.period_s)
        per_replica = rate / view.ready
        running = sum(r.num_running for r in readings) / max(1, len(readings)) / view.ready
        ttfts = [x for r in readings for x in r.ttfts_s]
        tpots = [x for r in readings for x in r.tpots_s]
        prefill_cost = decode_cost = 1.0
        if ttfts:
            prefill_cost = (sum(ttfts) / len(ttfts)) / book.ttft_s(0.0, prompt, output, running)
        if tpots:
            decode_cost = (sum(tpots) / len(tpots)) / book.tpot_s(running, prompt, output, per_replica)
        demand_rps = rate * self._margin
        for_prefill = demand_rps * min(1.0, prefill_cost) / book.engine_rps(prompt, output)
        limit_s = max(1.05 * book.profile.base_s, book.objective.tpot_s / max(decode_cost, 1e-3))
        for_decode = demand_rps / book.engine_rps(prompt, output, limit_s)
        return max(1, math.ceil(max(for_prefill, for_decode) - 1e-9))


class DynamoDualLoop:
    """The dual loop.

    Args:
        interval_s: of the throughput loop.
        margin: multiplies the predicted load.
        sensitivity: part of the objective that one replica less must keep.
        target: part of the objective that the load loop is told as its objective.
    """

    period_s = 5.0

    def __init__(
        self,
        book: ProfileBook,
        interval_s: float = 180.0,
        margin: float = 1.0,
        sensitivity: float = SENSITIVITY,
        target: float = 1.0,
    ) -> None:
        self.looks_back_s = interval_s
        self._book, self._interval_s, self._margin, self._sensitivity = book, interval_s, margin, sensitivity
        self._ttft_s, self._tpot_s = target * book.objective.ttft_s, target * book.objective.tpot_s
        self._floor = 1
        self._next_floor_s = 0.0
        self._lengths: tuple[float, float] | None = None  # as last known: idle times do not change them

    def desired_replicas(self, view: View) -> int:
        self._lengths = view.lengths_within(self._interval_s) or self._lengths
        rate = view.arrivals_within(self._interval_s)
        if self._lengths is None or rate is None or view.newest is None:
            return view.current
        if view.now_s >= self._next_floor_s:
            engine_rps = self._book.engine_rps(*self._lengths)
            self._floor = max(1, math.ceil(rate * self._margin / engine_rps - 1e-9))
            self._next_floor_s = view.now_s + self._interval_s
        if view.current != view.ready or not view.ready:
            return max(view.current, self._floor)
        return max(view.current + self._step(view, rate / view.ready), self._floor)

    def _step(self, view: View, rate: float) -> int:
        """Replicas that the load loop adds, 1, 0 or -1; `rate`: requests/s of one replica."""
        reading, n = view.newest, view.current
        assert reading is not None
        assert self._lengths is not None
        book, (prompt, output) = self._book, self._lengths
        loads = list(zip(reading.running, reading.waiting, strict=True))
        if not loads:
            return 0
        late = [book.ttft_s(waiting * prompt, prompt, output, running) > self._ttft_s for running, waiting in loads]
        slow = [book.tpot_s(running + 1, prompt, output, rate) > self._tpot_s for running, _ in loads]
        if all(late) or all(slow):
            return 1
        if n < 2 or not all(self._fits(running, waiting, n / (n - 1), rate) for running, waiting in loads):
            return 0
        return -1

    def _fits(self, running: float, waiting: float, more: float, rate: float) -> bool:
        """Whether an engine with `more` times the requests keeps within the sensitivity of its objective."""
        assert self._lengths is not None
        book, (prompt, output) = self._book, self._lengths
        own_s = book.ttft_s(0.0, prompt, output, running * more)
        queue_s = book.ttft_s(waiting * prompt * more, prompt, output, running * more) - own_s
        if queue_s >= (self._ttft_s - own_s) * self._sensitivity:
            return False
        combined = (running + waiting) * more
        if combined * (prompt + output / 2) >= book.profile.kv_capacity_tokens:
            return False
        return book.tpot_s(combined + 1, prompt, output, rate) < self._tpot_s * self._sensitivity
