"""Atoms: recent values to which a channel may return, such as idle zeros, saturation, and counters that take turns.

Recent values are grouped by closeness. The newest value of a group is its atom, because groups drift. On a CPU compiled
loops group them, elsewhere batches of tensors; both give the same.
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

Single = NDArray[np.float32]
Mask = NDArray[np.bool_]

TOLERANCE: Final = 0.02  # of the range of the recent rows
NUM_ATOM_FEATURES: Final = 3
NUM_SUMMARY: Final = 6
_SAME_VALUE_RATIO: Final = np.float32(0.05)  # of the tolerance
_HOP_RATIO: Final = np.float32(0.1)  # of the range


class AtomGroups(NamedTuple):
    """The fields of `Atoms` for M tokens.

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


def atom_groups(recent: Single, present: Mask, count: int) -> AtomGroups:
    """The `count` most visited groups of values.

    Args:
        recent: [M, W], recent rows of M tokens.
        present: bool [M, W].
        count: A.
    """
    m = len(recent)
    out = AtomGroups(
        np.zeros((m, count), np.float32),
        np.zeros((m, count), np.bool_),
        np.zeros((m, count, NUM_ATOM_FEATURES), np.float32),
        np.empty(m, np.float32),
        np.zeros((m, NUM_SUMMARY), np.float32),
    )
    _all_tokens(np.ascontiguousarray(recent), np.ascontiguousarray(present), out)
    return out


@compiled
def _all_tokens(recent: Single, present: Mask, out: AtomGroups) -> None:
    w, count = recent.shape[1], out.z.shape[1]
    visits, repeats = np.empty(w, np.int64), np.empty(w, np.int64)
    newest, score, y = np.empty(w, np.bool_), np.empty(w, np.float32), np.empty(w, np.float32)
    for m in range(len(recent)):
        x, observed = recent[m], present[m]
        low, high, total = np.float32(np.inf), np.float32(-np.inf), 0
        for t in range(w):
            if observed[t]:
                low, high, total = min(low, x[t]), max(high, x[t]), total + 1
        span = max(high - low if total else np.float32(1.0), np.float32(1e-6))
        tolerance = np.float32(TOLERANCE) * span
        for t in range(w):
            y[t] = x[t] if observed[t] else np.float32(np.nan)  # comparisons with NaN are false
        for t in range(w):
            before, repeats[t] = _count_close(y[: t + 1], y[t], tolerance)
            after, repeated = _count_close(y[t + 1 :], y[t], tolerance)
            visits[t], repeats[t] = before + after, repeats[t] + repeated
            newest[t] = observed[t] and after == 0
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
            if t > 0 and observed[t]:
                change = abs(x[t] - x[t - 1])
                hops += change > _HOP_RATIO * span
                still += change <= _SAME_VALUE_RATIO * tolerance
        out.summary[m, 2] = groups / w
        out.summary[m, 3], out.summary[m, 4], out.summary[m, 5] = repeated / total, hops / total, still / total


@compiled
def _count_close(y: Single, value: np.float32, tolerance: np.float32) -> tuple[int, int]:
    """How many values lie within the tolerance of a value, and how many are all but equal to it."""
    close, same, narrow = 0, 0, _SAME_VALUE_RATIO * tolerance
    for v in range(len(y)):
        gap = abs(value - y[v])
        close += gap <= tolerance
        same += gap <= narrow
    return close, same


MAX_RANKED_ATOMS = 8  # a token with more atoms shows values, not states, and its atoms have no places
NUM_PLACES = MAX_RANKED_ATOMS * MAX_RANKED_ATOMS


@dataclass(frozen=True, slots=True)
class Atoms:
    """Atoms of each token, in scaled units.

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


def places(atoms: Atoms) -> tuple[Tensor, Tensor]:
    """Place of each atom: its rank by value among the atoms of its token, told apart by their number.

    Returns:
        int64 [B, N, A], one of `NUM_PLACES` where there are up to `MAX_RANKED_ATOMS` atoms, `NUM_PLACES` otherwise; and
        int64 [B, N, 1], one less than the number of atoms, `MAX_RANKED_ATOMS` where there are more.
    """
    rank = ((atoms.z[..., :, None] > atoms.z[..., None, :]) & atoms.valid[..., None, :]).sum(-1)
    count = atoms.valid.sum(-1, keepdim=True)
    few = (count - 1).clamp(0, MAX_RANKED_ATOMS)
    placed = atoms.valid & (count <= MAX_RANKED_ATOMS)
    return torch.where(placed, few * MAX_RANKED_ATOMS + rank, NUM_PLACES), few


def atoms(context: ScaledContext, count: int, *, loops: bool = True) -> Atoms:
    """The atoms of every token: the newest values of the `count` most visited groups.

    Args:
        context: scaled context.
        count: A.
        loops: whether compiled loops are used on a CPU.
    """
    recent, present = context.z[..., -RECENT:], context.observed[..., -RECENT:]
    if loops and recent.device.type == "cpu":
        groups = atom_groups(recent.flatten(0, 1).numpy(), present.flatten(0, 1).numpy(), count)
        return Atoms(*(torch.from_numpy(part).view(*recent.shape[:2], *part.shape[1:]) for part in groups))
    w = recent.shape[-1]
    far = torch.full_like(recent, 0.0).masked_fill(~present, torch.nan)
    x = recent + far  # unseen rows are close to nothing
    low = recent.masked_fill(~present, torch.inf).amin(-1)
    high = recent.masked_fill(~present, -torch.inf).amax(-1)
    span = torch.where(present.any(-1), high - low, 1.0).clamp(min=1e-6)
    tolerance = (TOLERANCE * span)[..., None, None]
    close = (x[..., :, None] - x[..., None, :]).abs() <= tolerance  # [B, N, W, W]; comparisons with NaN are False
    same = (x[..., :, None] - x[..., None, :]).abs() <= 0.05 * tolerance
    later = torch.triu(torch.ones(w, w, dtype=torch.bool, device=x.device), diagonal=1)
    newest = ~(close & later).any(-1) & present
    visits = close.sum(-1)
    score = torch.where(newest, visits + torch.linspace(0, 0.5, w, device=x.device), -1.0)
    top, index = score.topk(count, dim=-1)
    valid = top > 0
    total = present.sum(-1, keepdim=True).clamp(min=1)
    share = (visits.gather(-1, index) / total).where(valid, 0.0)
    age = (w - 1 - index).float() / w
    z = recent.gather(-1, index)
    gap = ((z - recent[..., -1:]) / span[..., None]).where(valid, 0.0)
    features = torch.stack(((share + 1e-3).log(), age, gap.abs()), dim=-1)
    repeated = (same.sum(-1) > 1).float().sum(-1) / total[..., 0]
    hop = ((recent.diff().abs() > 0.1 * span[..., None]) & present[..., 1:]).float().sum(-1) / total[..., 0]
    still = ((recent.diff().abs() <= 0.05 * tolerance[..., 0]) & present[..., 1:]).float().sum(-1) / total[..., 0]
    summary = torch.stack(
        (share.sum(-1).clamp(max=2), share[..., :3].sum(-1), newest.sum(-1) / w, repeated, hop, still), dim=-1
    )
    return Atoms(z, valid, features, 0.25 * TOLERANCE * span, summary)
