"""Recently seen values that a channel may return to: device counters that take turns, idle zeros, saturation.

The values of the recent rows are grouped by closeness; the newest of each group is an atom, because groups drift.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.network.atom_groups import TOLERANCE, atom_groups
from model.network.inputs import RECENT, ScaledContext

MOST_PLACED = 8  # atoms of a token that have a place of their own; more are values, not states
NUM_PLACES = MOST_PLACED * MOST_PLACED


@dataclass(frozen=True, slots=True)
class Atoms:
    """Per token, in scaled units.

    Attributes:
        z: float32 [B, N, A], the atoms, most frequent first.
        valid: bool [B, N, A].
        features: float32 [B, N, A, 3]: log share of the rows, age of the newest visit, distance from the newest row.
        width: float32 [B, N]: half the width over which an atom's mass is spread.
        summary: float32 [B, N, 6]: how much of the recent rows the atoms explain.
    """

    z: Tensor
    valid: Tensor
    features: Tensor
    width: Tensor
    summary: Tensor

    def row(self, r: int) -> Atoms:
        """One row, as a batch of one."""
        one = slice(r, r + 1)
        return Atoms(self.z[one], self.valid[one], self.features[one], self.width[one], self.summary[one])


def places(found: Atoms) -> tuple[Tensor, Tensor]:
    """Place of each atom by its value among those of its token, given how many they are, and that number.

    Returns:
        int64 [B, N, A], one of `NUM_PLACES` where there are up to `MOST_PLACED` atoms, `NUM_PLACES` otherwise; and
        int64 [B, N, 1], one less than the number of atoms, `MOST_PLACED` where there are more.
    """
    rank = ((found.z[..., :, None] > found.z[..., None, :]) & found.valid[..., None, :]).sum(-1)
    count = found.valid.sum(-1, keepdim=True)
    few = (count - 1).clamp(0, MOST_PLACED)
    placed = found.valid & (count <= MOST_PLACED)
    return torch.where(placed, few * MOST_PLACED + rank, NUM_PLACES), few


def atoms(context: ScaledContext, count: int, *, loops: bool = True) -> Atoms:
    """The `count` most visited groups of every token; `loops`: on a CPU by compiled loops, not by tensors."""
    recent, seen = context.z[..., -RECENT:], context.known[..., -RECENT:]
    if loops and recent.device.type == "cpu":
        found = atom_groups(recent.flatten(0, 1).numpy(), seen.flatten(0, 1).numpy(), count)
        return Atoms(*(torch.from_numpy(part).view(*recent.shape[:2], *part.shape[1:]) for part in found))
    w = recent.shape[-1]
    far = torch.full_like(recent, 0.0).masked_fill(~seen, torch.nan)
    x = recent + far  # unseen rows are close to nothing
    low = recent.masked_fill(~seen, torch.inf).amin(-1)
    high = recent.masked_fill(~seen, -torch.inf).amax(-1)
    span = torch.where(seen.any(-1), high - low, 1.0).clamp(min=1e-6)
    tolerance = (TOLERANCE * span)[..., None, None]
    close = (x[..., :, None] - x[..., None, :]).abs() <= tolerance  # [B, N, W, W]; comparisons with NaN are False
    same = (x[..., :, None] - x[..., None, :]).abs() <= 0.05 * tolerance
    later = torch.triu(torch.ones(w, w, dtype=torch.bool, device=x.device), diagonal=1)
    newest = ~(close & later).any(-1) & seen
    visits = close.sum(-1)
    score = torch.where(newest, visits + torch.linspace(0, 0.5, w, device=x.device), -1.0)
    top, index = score.topk(count, dim=-1)
    valid = top > 0
    total = seen.sum(-1, keepdim=True).clamp(min=1)
    share = (visits.gather(-1, index) / total).where(valid, 0.0)
    age = (w - 1 - index).float() / w
    z = recent.gather(-1, index)
    gap = ((z - recent[..., -1:]) / span[..., None]).where(valid, 0.0)
    features = torch.stack(((share + 1e-3).log(), age, gap.abs()), dim=-1)
    repeated = (same.sum(-1) > 1).float().sum(-1) / total[..., 0]
    hop = ((recent.diff().abs() > 0.1 * span[..., None]) & seen[..., 1:]).float().sum(-1) / total[..., 0]
    still = ((recent.diff().abs() <= 0.05 * tolerance[..., 0]) & seen[..., 1:]).float().sum(-1) / total[..., 0]
    summary = torch.stack(
        (share.sum(-1).clamp(max=2), share[..., :3].sum(-1), newest.sum(-1) / w, repeated, hop, still), dim=-1
    )
    return Atoms(z, valid, features, 0.25 * TOLERANCE * span, summary)
