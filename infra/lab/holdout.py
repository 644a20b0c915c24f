"""Scores of forecasts of rows that were held out, beside those of simpler forecasters on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from model.evaluation.rolling import Floats

_DAY_MS = 86_400_000
_COVERAGE = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class HoldoutScore:
    """How good a forecaster was.

    Attributes:
        steps: steps ahead that are scored, the first ones.
        wql: weighted quantile loss over the levels .05 to .95, mean over columns; NaN where a column is 0 throughout.
        mase: error of the median by that of the seasonal naive within the context, mean over columns.
        coverage_90: share of values between the quantiles .05 and .95.
        values: that were scored.
    """

    model: str
    steps: int
    wql: float
    mase: float
    coverage_90: float
    values: int

    def to_dict(self) -> dict[str, Any]:
        """For `--json`; null where nothing could be scored."""
        numbers = {"wql": self.wql, "mase": self.mase, "coverage_90": self.coverage_90}
        return {
            "model": self.model,
            "steps": self.steps,
            **{name: value if np.isfinite(value) else None for name, value in numbers.items()},
            "values": self.values,
        }


@dataclass(slots=True)
class _ColumnSums:
    loss: float = 0.0
    magnitude: float = 0.0
    error: list[float] = field(default_factory=list)


@dataclass(slots=True)
class HoldoutSums:
    """Scores in the making, of one forecaster over its first `steps` steps."""

    model: str
    steps: int
    columns: dict[tuple[str, int], _ColumnSums] = field(default_factory=dict)
    inside: int = 0
    values: int = 0

    def add(self, item: str, paths: Floats, truth: Floats, context: Floats, step_ms: int) -> None:
        """Add the forecast of one window.

        Args:
            paths: [S, H, N].
            truth: [H, N], NaN where nothing was observed.
            context: [T, N], the rows before.
        """
        import torch

        from model.contract import ordered_paths, quantiles_of_ordered
        from model.evaluation.rolling_scores import WQL_LEVELS

        levels = torch.tensor(WQL_LEVELS, dtype=torch.float64)
        ordered = ordered_paths(torch.from_numpy(np.ascontiguousarray(paths[:, : self.steps].transpose(1, 2, 0))))
        quantiles = quantiles_of_ordered(ordered, levels).numpy()  # [H, N, Q]
        low, high = (WQL_LEVELS.index(level) for level in _COVERAGE)
        for n in range(truth.shape[1]):
            y = truth[: self.steps, n]
            known = np.isfinite(y)
            if not known.any():
                continue
            q, y = quantiles[known, n], y[known]
            at = np.array(WQL_LEVELS)
            miss = y[:, None] - q
            sums = self.columns.setdefault((item, n), _ColumnSums())
            sums.loss += float((2 * np.maximum(at * miss, (at - 1) * miss)).mean(1).sum())
            sums.magnitude += float(np.abs(y).sum())
            usual = _seasonal_error(context[:, n], step_ms)
            if usual > 0:
                sums.error.append(float(np.abs(y - q[:, len(at) // 2]).mean()) / usual)
            self.inside += int(((y >= q[:, low]) & (y <= q[:, high])).sum())
            self.values += len(y)

    def score(self) -> HoldoutScore:
        """The means over columns."""
        wql = [sums.loss / sums.magnitude for sums in self.columns.values() if sums.magnitude > 0]
        mase = [float(np.mean(sums.error)) for sums in self.columns.values() if sums.error]
        return HoldoutScore(
            self.model,
            self.steps,
            float(np.mean(wql)) if wql else np.nan,
            float(np.mean(mase)) if mase else np.nan,
            self.inside / self.values if self.values else np.nan,
            self.values,
        )


def _seasonal_error(context: Floats, step_ms: int) -> float:
    """Mean absolute difference of rows a day apart, of neighbours where the context holds no two days; 0 for none."""
    day = round(_DAY_MS / step_ms)
    lag = day if 1 <= day <= len(context) // 2 else 1
    differences = np.abs(context[lag:] - context[:-lag])
    differences = differences[np.isfinite(differences)]
    return float(differences.mean()) if len(differences) else 0.0


def score_lines(scores: Sequence[HoldoutScore], horizon: int) -> Iterable[str]:
    """A small table for people."""
    yield f"{'held out':32} {'WQL':>8} {'MASE':>8} {'in 90 %':>8}"
    for score in scores:
        name = score.model if score.steps == horizon else f"{score.model}, first {score.steps} steps"
        yield f"{name:32} {_number(score.wql)} {_number(score.mase)} {_number(score.coverage_90)}"


def _number(value: float) -> str:
    return f"{value:8.3f}" if np.isfinite(value) else f"{'-':>8}"
