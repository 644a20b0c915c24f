"""Recently seen values of every token, grouped, compiled: what `model.network.atoms` says for batches of tensors."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

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
