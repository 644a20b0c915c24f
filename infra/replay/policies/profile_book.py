"""What an operator's offline profile of the engine says: interpolated latency and safe rate of one replica.

Planners that scale on a performance profile (Dynamo's) read it; it is the same closed form for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.simulator.ledger import Objective
from infra.simulator.profiles import Profile


@dataclass(frozen=True, slots=True)
class ProfileBook:
    """The engine's steady-state law at the objective."""

    profile: Profile
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
