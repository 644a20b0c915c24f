"""NVIDIA Dynamo's SLA planner on replicas that serve both phases: the classic planner and the dual loop.

The classic planner predicts the requests and lengths of the next interval; here the predictor is constant, Dynamo's
simplest. It corrects the profile by observed over expected latency and divides.

The dual loop takes the uncorrected count as a floor. Every 5 s it adds a replica when the estimated TTFT or ITL of all
engines exceeds the objective. It removes one when all are below `sensitivity` of it, and holds while replicas start.

Source: ai-dynamo/dynamo, documentation of the SLA planner and of the load-based planner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        """Requests/s of one replica at the TPOT objective; both phases share it."""
        limit_s = self.objective.tpot_s if tpot_s is None else tpot_s
        return max(1e-6, self.profile.steady_rate(max(prompt, 1.0), max(output, 1.0), limit_s))

    def tpot_s(self, running: float, prompt: float, output: float, rate: float) -> float:
        """Time per token with so many requests decoding and `rate` requests/s being prefilled."""
        p = self.profile
        tokens = prompt + output / 2
        decode_s = p.base_s + (p.sequence_s + p.kv_token_s * tokens) * running
        prefill_s = (p.prefill_token_s + p.prefill_token_sq_s * prompt / 2) * prompt
        return decode_s / max(0.05, 1.0 - min(0.95, rate * prefill_s))

    def ttft_s(self, waiting_tokens: float, prompt: float, running: float) -> float:
        """Prefill of what waits and of one more prompt, chunk by chunk beside the decoding requests."""
        p = self.profile
        chunks = max(1.0, (waiting_tokens + prompt) / p.max_prefill_tokens)
        per_chunk_s = p.base_s + p.prefill_token_s * min(p.max_prefill_tokens, prompt) + p.sequence_s * running
        return chunks * (per_chunk_s + p.kv_token_s * running * prompt)


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
            prefill_cost = (sum(ttfts) / len(ttfts)) / book.ttft_s(0.0, prompt, running)
        if tpots:
            decode_cost = (sum(tpots) / len(tpots)) / book.tpot_s(running, prompt, output, per_replica)
        demand_rps = rate * self._margin
        for_prefill = demand_rps * min(1.0, prefill_cost) / book.engine_rps(prompt, output)
        limit_s = max(1.05 * book.profile.base_s, book.objective.tpot_s / max(decode_cost, 1e-3))
        for_decode = demand_rps / book.engine_rps(prompt, output, limit_s)
        return max(1, math.ceil(max(for_prefill, for_decode) - 1e-9))


class DynamoDualLoop:
    """Args: `interval_s` of the throughput loop; `margin` on the predicted load; `sensitivity` of going down."""

    period_s = 5.0

    def __init__(
        self, book: ProfileBook, interval_s: float = 180.0, margin: float = 1.0, sensitivity: float = SENSITIVITY
    ) -> None:
        self.looks_back_s = interval_s
        self._book, self._interval_s, self._margin, self._sensitivity = book, interval_s, margin, sensitivity
        self._floor = 1
        self._next_floor_s = 0.0

    def desired_replicas(self, view: View) -> int:
        lengths = view.lengths_within(self._interval_s)
        rate = view.arrivals_within(self._interval_s)
        if lengths is None or rate is None or view.newest is None:
            return view.current
        book, (prompt, output) = self._book, lengths
        if view.now_s >= self._next_floor_s:
            self._floor = max(1, math.ceil(rate * self._margin / book.engine_rps(prompt, output) - 1e-9))
            self._next_floor_s = view.now_s + self._interval_s
        if view.current != view.ready or not view.ready:
            return max(view.current, self._floor)
        reading, per_replica = view.newest, rate / view.ready
        shares = []
        for running, waiting in zip(reading.running, reading.waiting, strict=True):
            ttft = book.ttft_s(waiting * prompt, prompt, running) / book.objective.ttft_s
            tpot = book.tpot_s(running, prompt, output, per_replica) / book.objective.tpot_s
            shares.append((ttft, tpot))
        n = view.current
        if shares and (all(t > 1 for t, _ in shares) or all(d > 1 for _, d in shares)):
            return max(n + 1, self._floor)
        if shares and n > 1 and all(max(t, d) < self._sensitivity for t, d in shares):
            scaled = n / (n - 1)
            each = sum(reading.running) / n * scaled
            safe = book.tpot_s(each, prompt, output, per_replica * scaled) < book.objective.tpot_s * self._sensitivity
            return max(n - 1 if safe else n, self._floor)
        return max(n, self._floor)
