"""Recently seen values that a channel may return to: device counters that take turns, idle zeros, saturation.

The values of the recent rows are grouped by closeness; the newest of each group is an atom, because groups drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.compiled import compiled
from model.network.inputs import RECENT, ScaledContext

# Recently seen values of every token, grouped, compiled: what `model.network.atoms` says for batches of tensors.


Single = NDArray[np.float32]
Mask = NDArray[np.bool_]

TOLERANCE: Final = 0.02  # of the range of the recent rows
NUM_ATOM_FEATURES: Final = 3
NUM_SUMMARY: Final = 6
_SAME: Final = np.float32(0.05)  # of the tolerance
_HOP: Final = np.float32(0.1)  # of the range


class AtomGroups(NamedTuple):
    """Of M tokens; what the fields mean, `model.network.atoms.Atoms` says.

    Attributes:
        z: [M, A].
        valid: [M, A].
        features: [M, A, 3].
        width: [M].
        summary: [M, 6].
    """

    z: Single
    valid: Mask
    features: Single
    width: Single
    summary: Single


def atom_groups(recent: Single, seen: Mask, count: int) -> AtomGroups:
    """The `count` most visited groups of the recent rows [M, W]."""
    m = len(recent)
    out = AtomGroups(
        np.zeros((m, count), np.float32),
        np.zeros((m, count), np.bool_),
        np.zeros((m, count, NUM_ATOM_FEATURES), np.float32),
        np.empty(m, np.float32),
        np.zeros((m, NUM_SUMMARY), np.float32),
    )
    _all_tokens(np.ascontiguousarray(recent), np.ascontiguousarray(seen), out)
    return out


@compiled
def _all_tokens(recent: Single, seen: Mask, out: AtomGroups) -> None:
    w, count = recent.shape[1], out.z.shape[1]
    visits, repeats = np.empty(w, np.int64), np.empty(w, np.int64)
    newest, score, y = np.empty(w, np.bool_), np.empty(w, np.float32), np.empty(w, np.float32)
    for m in range(len(recent)):
        x, known = recent[m], seen[m]
        low, high, total = np.float32(np.inf), np.float32(-np.inf), 0
        for t in range(w):
            if known[t]:
                low, high, total = min(low, x[t]), max(high, x[t]), total + 1
        span = max(high - low if total else np.float32(1.0), np.float32(1e-6))
        tolerance = np.float32(TOLERANCE) * span
        for t in range(w):
            y[t] = x[t] if known[t] else np.float32(np.nan)  # close to nothing, not even to itself
        for t in range(w):
            before, repeats[t] = _alike(y[: t + 1], y[t], tolerance)
            after, repeated = _alike(y[t + 1 :], y[t], tolerance)
            visits[t], repeats[t] = before + after, repeats[t] + repeated
            newest[t] = known[t] and after == 0
            score[t] = visits[t] + np.float32(0.5) * t / (w - 1) if newest[t] else -1.0
        total = max(total, 1)
        shares = 0.0
        for a in range(count):
            best = 0
            for t in range(1, w):
                if score[t] > score[best]:
                    best = t
            out.z[m, a] = x[best]
            out.valid[m, a] = score[best] > 0
            share = visits[best] / total if score[best] > 0 else 0.0
            out.features[m, a, 0] = np.log(np.float32(share + 1e-3))
            out.features[m, a, 1] = (w - 1 - best) / w
            out.features[m, a, 2] = abs(x[best] - x[w - 1]) / span if score[best] > 0 else 0.0
            score[best] = -2.0 if score[best] > 0 else score[best]
            shares += share
            if a < 3:
                out.summary[m, 1] += share
        out.width[m] = np.float32(0.25 * TOLERANCE) * span
        out.summary[m, 0] = min(shares, 2.0)
        groups, repeated, hops, still = 0, 0, 0, 0
        for t in range(w):
            groups += newest[t]
            repeated += repeats[t] > 1
            if t > 0 and known[t]:
                change = abs(x[t] - x[t - 1])
                hops += change > _HOP * span
                still += change <= _SAME * tolerance
        out.summary[m, 2] = groups / w
        out.summary[m, 3], out.summary[m, 4], out.summary[m, 5] = repeated / total, hops / total, still / total


@compiled
def _alike(y: Single, value: np.float32, tolerance: np.float32) -> tuple[int, int]:
    """How many are close to a value, and how many next to equal."""
    close, same, narrow = 0, 0, _SAME * tolerance
    for v in range(len(y)):
        gap = abs(value - y[v])
        close += gap <= tolerance
        same += gap <= narrow
    return close, same


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
