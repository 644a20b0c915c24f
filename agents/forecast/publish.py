"""Forecasts of a slot as they are published: columns of quantiles that become JSON records last.

Plans do not wait for them, so the records are made after the plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from model.numerics import six_digits
from streams.log import OutRecord

QUANTILE_LEVELS: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)


@dataclass(frozen=True, slots=True, eq=False)
class Forecasts:
    """Quantiles of B workloads at one origin.

    Attributes:
        sources: B names of the forecasters that made them.
        model: fingerprint.
        indicators: names of the C columns.
        published: B lists of the columns that are published of a workload, ascending.
        steps: float32 [B, C, H, Q], aligned with `QUANTILE_LEVELS`.
        peaks: float32 [B, C, Q], of the largest step; likewise.
    """

    fleet: str
    workloads: tuple[str, ...]
    origin_ts_ms: int
    step_ms: int
    sources: tuple[str, ...]
    model: str
    indicators: tuple[str, ...]
    published: Sequence[Sequence[int]]
    steps: NDArray[np.float32]
    peaks: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.workloads)

    def quantiles(self, row: int, column: int) -> NDArray[np.float64]:
        """The quantiles [H, Q] as they are published of one workload, to six digits."""
        return six_digits(self.steps[row, column].astype(np.float64))

    def records(self, topic: str, rows: Sequence[int]) -> list[OutRecord]:
        """A record of `agents.records.ForecastRecord` for each of these workloads."""
        horizon_s = self.steps.shape[2] * self.step_ms / 1000
        steps, peaks = (six_digits(numbers[rows].astype(np.float64)) for numbers in (self.steps, self.peaks))
        outputs = []
        for k, b in enumerate(rows):
            workload = self.workloads[b]
            columns = self.published[b]
            body = {
                "forecast_id": _forecast_id(self.fleet, workload, self.origin_ts_ms, self.model),
                "workload": workload,
                "origin_ts_ms": self.origin_ts_ms,
                "step_ms": self.step_ms,
                "source": self.sources[b],
                "model": self.model,
                "quantile_levels": QUANTILE_LEVELS,
                "targets": {self.indicators[c]: steps[k, c] for c in columns},
                "peaks": {self.indicators[c]: peaks[k, c] for c in columns},
                "peak_window_s": horizon_s,
                "v": 1,
            }
            outputs.append(OutRecord(topic, workload.encode(), orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)))
        return outputs


def _forecast_id(fleet: str, workload: str, origin_ts_ms: int, model: str) -> str:
    text = "\x1f".join((fleet, workload, str(origin_ts_ms), model))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
