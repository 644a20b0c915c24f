"""Monotone rational-quadratic splines with straight tails, both ways, with their log-derivatives.

Source: C. Durkan, A. Bekasov, I. Murray, G. Papamakarios, "Neural Spline Flows", NeurIPS 2019 (arXiv 1906.04032).
Ours takes knots instead of bins and goes on as a straight line beyond them, at the slope of the last knot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.network.atom_quantiles import LEAST_RISE


@dataclass(frozen=True, slots=True)
class Spline:
    """One spline per cell.

    Attributes:
        x: knots' positions [K], shared, strictly increasing.
        y: knots' values [..., K], strictly increasing.
        slope: derivatives at the knots [..., K], positive.
    """

    x: Tensor
    y: Tensor
    slope: Tensor

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Map x to y.

        Args:
            value: [..., *extra] matching the cells, or with one more trailing axis [..., S].

        Returns:
            y and log dy/dx, in the shape of `value`.
        """
        value, squeeze = _with_samples(value, self.y)
        bins = (torch.bucketize(value.detach().contiguous(), self.x) - 1).clamp(0, self.x.shape[0] - 2)
        x0, x1 = self.x[bins], self.x[bins + 1]
        y0, y1 = self.y.gather(-1, bins), self.y.gather(-1, bins + 1)
        d0, d1 = self.slope.gather(-1, bins), self.slope.gather(-1, bins + 1)
        s = (y1 - y0).clamp(min=LEAST_RISE) / (x1 - x0)
        t = ((value - x0) / (x1 - x0)).clamp(0, 1)
        u = t * (1 - t)
        below = s + (d1 + d0 - 2 * s) * u
        inside = y0 + (y1 - y0) * (s * t * t + d0 * u) / below
        log_inside = 2 * s.log() + (d1 * t * t + 2 * s * u + d0 * (1 - t) ** 2).log() - 2 * below.log()
        low, high = value < self.x[0], value > self.x[-1]
        y = torch.where(low, y0 + d0 * (value - x0), torch.where(high, y1 + d1 * (value - x1), inside))
        log_slope = torch.where(low, d0.log(), torch.where(high, d1.log(), log_inside))
        return (y[..., 0], log_slope[..., 0]) if squeeze else (y, log_slope)

    def value(self, x: Tensor) -> Tensor:
        """Map samples [..., S] without the derivative: sampling is most of the work of a forecast."""
        bins = (torch.bucketize(x, self.x) - 1).clamp_(0, self.x.shape[0] - 2)
        width, rise = self.x.diff(), self.y.diff().clamp(min=LEAST_RISE)
        s = rise / width
        bend = self.slope[..., 1:] + self.slope[..., :-1] - 2 * s
        t = (x - self.x[bins]) / width[bins]
        inner = t.clamp(0, 1)
        s_at, d0 = s.gather(-1, bins), self.slope.gather(-1, bins)
        u = inner * (1 - inner)
        share = (s_at * inner * inner + d0 * u) / (s_at + bend.gather(-1, bins) * u)
        y = self.y.gather(-1, bins) + rise.gather(-1, bins) * share
        ends = (x - x.clamp(self.x[0], self.x[-1])) * torch.where(x < 0, self.slope[..., :1], self.slope[..., -1:])
        return y + ends

    def at(self, points: Tensor) -> Tensor:
        """Map the same few x [Q] in every cell: y [..., Q], without looking up a bin per cell."""
        bins = (torch.bucketize(points, self.x) - 1).clamp(0, self.x.shape[0] - 2)
        x0, x1 = self.x[bins], self.x[bins + 1]
        y0, y1, d0, d1 = self.y[..., bins], self.y[..., bins + 1], self.slope[..., bins], self.slope[..., bins + 1]
        s = (y1 - y0).clamp(min=LEAST_RISE) / (x1 - x0)
        t = ((points - x0) / (x1 - x0)).clamp(0, 1)
        u = t * (1 - t)
        inside = y0 + (y1 - y0) * (s * t * t + d0 * u) / (s + (d1 + d0 - 2 * s) * u)
        low, high = points < self.x[0], points > self.x[-1]
        return torch.where(low, y0 + d0 * (points - x0), torch.where(high, y1 + d1 * (points - x1), inside))

    def steps(self, chosen: Tensor) -> Spline:
        """The splines of some steps of the horizon, the last axis before the knots."""
        return Spline(self.x, self.y[..., chosen, :], self.slope[..., chosen, :])

    def inverse(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Map y to x.

        Returns:
            x and log dx/dy, in the shape of `value`.
        """
        value, squeeze = _with_samples(value, self.y)
        bins = (torch.searchsorted(self.y.detach().contiguous(), value.detach().contiguous()) - 1).clamp(
            0, self.x.shape[0] - 2
        )
        x0, x1 = self.x[bins], self.x[bins + 1]
        y0, y1 = self.y.gather(-1, bins), self.y.gather(-1, bins + 1)
        d0, d1 = self.slope.gather(-1, bins), self.slope.gather(-1, bins + 1)
        rise = (y1 - y0).clamp(min=LEAST_RISE)
        s = rise / (x1 - x0)
        low, high = value < y0, value > y1
        r = ((value - y0) / rise).clamp(0, 1)  # share of the bin's height
        bend = (d1 + d0 - 2 * s) * r
        a, b, c = (s - d0) + bend, d0 - bend, -s * r
        root = (b * b - 4 * a * c).clamp(min=0).sqrt()
        t = (2 * -c / (b + root).clamp(min=1e-30)).clamp(0, 1)
        u = t * (1 - t)
        below = s + (d1 + d0 - 2 * s) * u
        log_inside = 2 * below.log() - 2 * s.log() - (d1 * t * t + 2 * s * u + d0 * (1 - t) ** 2).log()
        x = torch.where(low, x0 + (value - y0) / d0, torch.where(high, x1 + (value - y1) / d1, x0 + t * (x1 - x0)))
        log_slope = torch.where(low, -d0.log(), torch.where(high, -d1.log(), log_inside))
        return (x[..., 0], log_slope[..., 0]) if squeeze else (x, log_slope)


def _with_samples(value: Tensor, y: Tensor) -> tuple[Tensor, bool]:
    """Give `value` a sample axis where it has none."""
    if value.dim() == y.dim():
        return value, False
    return value[..., None], True
