"""One replica: continuous batching with chunked prefill, simulated exactly and many decode iterations at a time.

Events are admissions, prefill chunks, preemptions, finishes and arrivals. Between two events every iteration decodes
the same requests and the cache grows by one token per request. Iteration lengths form an arithmetic series with a
closed sum, so one step covers all of them.

Sources: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, for
continuous batching; Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI
2024, for chunked prefill.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

from infra.simulator.ledger import EngineState, Request
from infra.simulator.profiles import EngineProfile

NEVER_S = math.inf


class ReplicaEngine:
    """The iterations of one replica.

    The owner calls `advance(t)` before anything that happens at t, then `dispatch`. An iteration that could start at t
    starts only when time moves past t, so all requests of one instant share it.

    Attributes:
        due_s: `advance(t)` changes nothing while t < due_s.
        outstanding: waiting + running requests.
        first_tokens, finished: requests that got their first token or finished; the owner may take and clear them.
    """

    __slots__ = (
        "_admissions",
        "_chunks",
        "_clock_s",
        "_decode_count",
        "_decoding_kv",
        "_finishes",
        "_growth_s",
        "_in_flight",
        "_iteration_s",
        "_iterations",
        "_limit",
        "_num_decoding",
        "_prefill_part_s",
        "_prefilling",
        "_profile",
        "_run_end_s",
        "_running",
        "_waiting",
        "busy_s",
        "due_s",
        "finished",
        "first_tokens",
        "generation_tokens_total",
        "inter_token_s_total",
        "inter_tokens_total",
        "outstanding",
        "preemptions_total",
        "prefill_s",
        "prompt_tokens_total",
    )

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._limit = (1 - profile.admission_watermark) * profile.kv_capacity_tokens
        self._clock_s = 0.0
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._prefilling: Request | None = None
        self._admissions = 0
        self._num_decoding = 0
        self._decoding_kv = 0
        # A decoding request finishes when this many decode iterations have ended; entries of preempted ones go stale.
        self._finishes: list[tuple[int, int, Request]] = []
        self._decode_count = 0
        self._in_flight = False
        self._run_end_s = NEVER_S
        self._iterations = 0
        self._iteration_s = 0.0
        self._growth_s = 0.0
        self._prefill_part_s = 0.0
        self._chunks: list[tuple[Request, int]] = []
        self.due_s = NEVER_S
        self.outstanding = 0
        self.first_tokens: list[Request] = []
        self.finished: list[Request] = []
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.inter_token_s_total = 0.0
        self.inter_tokens_total = 0
        self.preemptions_total = 0
        self.busy_s = 0.0
        self.prefill_s = 0.0

    def advance(self, until_s: float) -> None:
        """Do everything that ends at or before `until_s` and start what starts before it."""
        while True:
            if self._in_flight:
                if self._run_end_s > until_s:
                    self.due_s = self._run_end_s
                    return
                self._complete()
            elif not self._running and not self._waiting:
                self.due_s = NEVER_S
                return
            elif self._clock_s >= until_s:
                self.due_s = self._clock_s
                return
            else:
                self._start()

    def dispatch(self, request: Request, now_s: float) -> bool:
        """Queue a request at `now_s`, to which the engine has been advanced. False: it can never fit and is refused."""
        if request.prompt_tokens + request.output_tokens > self._profile.kv_capacity_tokens:
            request.refused = True
            return False
        if self._in_flight:
            # A queue that is not empty is blocked until the run ends, so only a first waiting request shortens the run.
            if self._iterations > 1 and not self._waiting:
                self._shorten(now_s)
        elif not self._running and not self._waiting:
            self._clock_s = now_s
            self.due_s = now_s
        self._waiting.append(request)
        self.outstanding += 1
        return True

    def state(self, now_s: float) -> EngineState:
        """What the metrics endpoint shows at `now_s`, to which the engine has been advanced."""
        done = self._iterations_ended(now_s) if self._in_flight and self._iterations > 1 else 0
        grown = done * self._num_decoding
        kv_tokens = self._decoding_kv + grown + (self._prefilling.cached if self._prefilling is not None else 0)
        elapsed_s = now_s - self._clock_s if self._in_flight else 0.0
        share = self._prefill_part_s / self._iteration_s if self._in_flight and self._chunks else 0.0
        gap_s = self._end_of(done) - self._clock_s if done else 0.0
        return EngineState(
            len(self._running),
            len(self._waiting),
            kv_tokens,
            kv_tokens / self._profile.kv_capacity_tokens,
            self.prompt_tokens_total,
            self.generation_tokens_total + grown,
            self.preemptions_total,
            self.busy_s + elapsed_s,
            self.prefill_s + share * elapsed_s,
            self.inter_token_s_total + gap_s * self._num_decoding,
            self.inter_tokens_total + grown,
        )

    def _start(self) -> None:
        """Plan and begin the iteration at the clock, or a run of pure decode iterations."""
        p = self._profile
        preempted = self._preempt()
        reserved = self._decoding_kv
        cached = self._decoding_kv
        budget = p.max_prefill_tokens
        squares = 0
        chunks = self._chunks
        prefilling = self._prefilling
        if prefilling is not None:
            reserved += prefilling.target + 1
            cached += prefilling.cached
            chunk = min(budget, prefilling.target - prefilling.cached)
            chunks.append((prefilling, chunk))
            squares += chunk * (prefilling.cached + chunk)
            budget -= chunk
        if self._waiting and not preempted:
            waiting, running, decoding = self._waiting, self._running, self._num_decoding
            while waiting and budget > 0 and len(running) < p.max_batch:
                head = waiting[0]
                target = head.prompt_tokens + head.generated
                if running and reserved + decoding + target + 1 > self._limit:
                    break
                waiting.popleft()
                self._admissions += 1
                head.admission = self._admissions
                head.target = target
                head.cached = 0
                running[head.admission] = head
                reserved += target + 1
                chunk = min(budget, target)
                chunks.append((head, chunk))
                squares += chunk * chunk
                budget -= chunk
        prefill_part_s = p.prefill_token_s * (p.max_prefill_tokens - budget) + p.prefill_token_sq_s * squares
        self._prefill_part_s = prefill_part_s
        self._iteration_s = p.base_s + prefill_part_s + p.sequence_s * self._num_decoding + p.kv_token_s * cached
        self._growth_s = p.kv_token_s * self._num_decoding
        self._iterations = 1 if chunks or preempted else self._decode_iterations()
        self._run_end_s = self._end_of(self._iterations)
        self._in_flight = True

    def _preempt(self) -> bool:
        """Take the newest running requests off until the next token of every decoding one fits."""
        capacity = self._profile.kv_capacity_tokens
        reserved = self._decoding_kv + (self._prefilling.target + 1 if self._prefilling is not None else 0)
        preempted = False
        while reserved + self._num_decoding > capacity and len(self._running) > 1:
            _, newest = self._running.popitem()
            if newest is self._prefilling:
                reserved -= newest.target + 1
                self._prefilling = None
            else:
                newest.generated = newest.output_tokens - (newest.finish_count - self._decode_count)
                tokens = newest.prompt_tokens + newest.generated
                reserved -= tokens
                self._decoding_kv -= tokens
                self._num_decoding -= 1
            newest.finish_count = -1
            newest.admission = -1
            newest.cached = 0
            self._waiting.appendleft(newest)
            self.preemptions_total += 1
            preempted = True
        return preempted

    def _decode_iterations(self) -> int:
        """Pure decode iterations until the earliest finish, or until the cache would overflow."""
        finishes = self._finishes
        while finishes[0][2].admission != finishes[0][1]:
            heappop(finishes)
        until_finish = finishes[0][0] - self._decode_count
        if self._num_decoding == 1:
            return until_finish
        return min(until_finish, (self._profile.kv_capacity_tokens - self._decoding_kv) // self._num_decoding)

    def _end_of(self, iteration: int) -> float:
        """End of the n-th iteration of the run in flight (1 = first)."""
        return self._clock_s + (iteration * self._iteration_s + self._growth_s * (iteration * (iteration - 1) // 2))

    def _iterations_ended(self, now_s: float) -> int:
        """Iterations of the run in flight that ended at or before `now_s`."""
        elapsed_s = now_s - self._clock_s
        half = self._growth_s / 2
        linear = self._iteration_s - half
        # Root of half*n^2 + linear*n = elapsed in the form that stays exact for a vanishing growth.
        guess = int(2 * elapsed_s / (linear + math.sqrt(linear * linear + 4 * half * max(0.0, elapsed_s))))
        guess = min(max(guess, 0), self._iterations)
        while guess < self._iterations and self._end_of(guess + 1) <= now_s:
            guess += 1
        while guess > 0 and self._end_of(guess) > now_s:
            guess -= 1
        return guess

    def _shorten(self, now_s: float) -> None:
        """End the run at the first iteration boundary at or after `now_s`."""
        ended = self._iterations_ended(now_s)
        if ended == 0 or self._end_of(ended) < now_s:
            ended += 1
        if ended < self._iterations:
            self._iterations = ended
            self._run_end_s = self.due_s = self._end_of(ended)

    def _complete(self) -> None:
        """Apply the run in flight: tokens, finishes, prefill progress."""
        now_s = self._run_end_s
        count = self._iterations
        self.busy_s += now_s - self._clock_s
        self.inter_token_s_total += (now_s - self._clock_s) * self._num_decoding
        self.inter_tokens_total += count * self._num_decoding
        self._clock_s = now_s
        self._in_flight = False
        tokens = count * self._num_decoding
        self._decode_count += count
        self._decoding_kv += tokens
        self.generation_tokens_total += tokens
        finishes = self._finishes
        while finishes and finishes[0][0] <= self._decode_count:
            _, admission, request = heappop(finishes)
            if request.admission == admission:
                self._num_decoding -= 1
                self._decoding_kv -= request.prompt_tokens + request.output_tokens
                self._finish(request, now_s)
        if self._chunks:
            self.prefill_s += self._prefill_part_s
            self._prefilling = None
            for request, chunk in self._chunks:
                request.cached += chunk
                if request.cached < request.target:
                    self._prefilling = request
                else:
                    self._end_prefill(request, now_s)
            self._chunks.clear()

    def _end_prefill(self, request: Request, now_s: float) -> None:
        if request.generated == 0:
            request.first_token_s = now_s
            self.prompt_tokens_total += request.prompt_tokens
            self.first_tokens.append(request)
        request.generated += 1
        self.generation_tokens_total += 1
        if request.generated == request.output_tokens:
            self._finish(request, now_s)
            return
        request.finish_count = self._decode_count + request.output_tokens - request.generated
        heappush(self._finishes, (request.finish_count, request.admission, request))
        self._num_decoding += 1
        self._decoding_kv += request.prompt_tokens + request.generated

    def _finish(self, request: Request, now_s: float) -> None:
        del self._running[request.admission]
        request.generated = request.output_tokens
        request.finish_s = now_s
        self.outstanding -= 1
        self.finished.append(request)
