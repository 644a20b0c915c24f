"""Each path repeats a random stretch of the context, lifted by some headroom."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from harmony.model.contract import ContextBatch, ForecastBatch


class BusiestHour:
    """Options: headroom_ratio (default 0)."""

    max_horizon = 64
    min_context = 16

    def __init__(self, options: Mapping[str, Any]) -> None:
        unknown = set(options) - {"headroom_ratio"}
        if unknown:
            raise ValueError(f"unknown options: {', '.join(sorted(unknown))}")
        self._lift = 1.0 + float(options.get("headroom_ratio", 0.0))
        # Name and version of the package and the options are told apart without us; this is for what else decides.
        self.fingerprint = "stretches-1"

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Paths float32 [B, S, H, N]."""
        if not 1 <= horizon <= self.max_horizon:
            raise ValueError(f"horizon {horizon} is not within 1 to {self.max_horizon}")
        steps = batch.values.shape[1]
        rows = []
        for b in range(len(batch)):
            # Draws belong to workload and origin, so that a row has the same numbers in any batch.
            seed = hashlib.blake2b(f"{batch.item_ids[b]}/{int(batch.origin_ts_ms[b])}".encode(), digest_size=7)
            draws = torch.Generator().manual_seed(int.from_bytes(seed.digest()))
            starts = torch.randint(steps, (num_paths,), generator=draws)
            at = (starts[:, None] + torch.arange(horizon)) % steps  # [S, H]
            seen = batch.observed[b].cpu()  # [L, N]
            known = torch.where(seen, batch.values[b].cpu(), 0.0)
            mean = known.sum(0) / seen.sum(0).clamp(min=1)  # [N]
            rows.append(torch.where(seen, known, mean)[at] * self._lift)  # [S, H, N]
        return ForecastBatch(torch.stack(rows), ("stretches",) * len(batch), self.fingerprint)
