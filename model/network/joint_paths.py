"""Paths of the joint law, compiled: from noise to values in the rows' units, one row after the other.

The same as `model.network.law.JointLaw.sample` says for tensors.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.network.atom_quantiles import MixtureTable, mixed_value, mixture_table, table_room

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_LOG_SPREAD: Final = 3.0
MIN_CENTERED_PATHS: Final = 16
MIN_DEVIATION: Final = 1e-3


class Laws(NamedTuple):
    """Joint laws of B rows, N indicators and H steps; what the fields mean, `JointLaw` and its parts say.

    Attributes:
        x: [K], knots' positions.
        y, slope: [B, N, H, K].
        mass: [B, N, H], 0 where atoms do not matter.
        atoms, weights: [B, N, A].
        width: [B, N].
        coupling: [B, N, H, 5].
        mixing: [B, 7, N, N].
        center, scale: [B, N].
    """

    x: Single
    y: Single
    slope: Single
    mass: Single
    atoms: Single
    weights: Single
    width: Single
    coupling: Single
    mixing: Single
    center: Float
    scale: Float


class Steps(NamedTuple):
    """The order of the couplings over the horizon; step 0 is the origin.

    Attributes:
        order: [H], indices of the steps, coarsest first.
        left, right: [H], steps around each, counted from 1.
        stride: [H], log2 of their distance.
    """

    order: Whole
    left: Whole
    right: Whole
    stride: Whole


def joint_paths(laws: Laws, steps: Steps, noise: Single) -> Float:
    """Futures [B, N, H, S] from independent standard normals of the same shape."""
    n, horizon, paths = noise.shape[1:]
    out = np.empty(noise.shape)
    normals = np.zeros((n, horizon + 1, paths), np.float32)
    _all_rows(laws, steps, noise, normals, table_room(laws.atoms.shape[-1]), out)
    return out


@compiled
def _all_rows(laws: Laws, steps: Steps, noise: Single, normals: Single, table: MixtureTable, out: Float) -> None:
    rows, n, horizon, _ = noise.shape
    for b in range(rows):
        for i in range(n):
            for h in range(horizon):
                normals[i, h + 1] = 0.0
                for j in range(i + 1):
                    share = laws.mixing[b, steps.stride[h], i, j]
                    for s in range(noise.shape[3]):
                        normals[i, h + 1, s] += share * noise[b, j, h, s]
        for i in range(n):
            _couple(laws.coupling[b, i], steps, normals[i])
            for h in range(horizon):
                e = normals[i, h + 1]
                _center(e)
                y, slope = laws.y[b, i, h], laws.slope[b, i, h]
                if laws.mass[b, i, h] > 0:
                    mixture_table(
                        laws.x, y, slope, laws.mass[b, i, h], laws.atoms[b, i], laws.weights[b, i], laws.width[b, i],
                        table,
                    )  # fmt: skip
                    for s in range(len(e)):
                        out[b, i, h, s] = mixed_value(table, e[s])
                else:
                    _curve(laws.x, y, slope, e, out[b, i, h])
                center, scale = laws.center[b, i], laws.scale[b, i]
                for s in range(len(e)):
                    out[b, i, h, s] = out[b, i, h, s] * scale + center


@compiled
def _couple(coefficients: Single, steps: Steps, e: Single) -> None:
    """From noise to dependent normals in place, coarse steps first; row 0 of `e` [H + 1, S] is the origin's zeros."""
    for h in steps.order:
        left, right = steps.left[h], steps.right[h]
        if right > 0:
            toward_left = np.float32(0.5) * (1 + coefficients[h, 0])
            toward_right = np.float32(0.5) * (1 + coefficients[h, 1])
            widening = math.tanh(coefficients[h, 3])
            level = coefficients[h, 2] - 0.5
            for s in range(e.shape[1]):
                gap = _log_above(abs(e[right, s] - e[left, s]))
                log_spread = min(max(level + widening * gap, -MAX_LOG_SPREAD), 1.0)
                mean = toward_left * e[left, s] + toward_right * e[right, s]
                e[h + 1, s] = mean + _exponential(log_spread) * e[h + 1, s]
        elif left > 0:
            rho = 0.999 * math.tanh(coefficients[h, 4])
            spread = math.sqrt(1 - rho * rho)
            for s in range(e.shape[1]):
                e[h + 1, s] = rho * e[left, s] + spread * e[h + 1, s]


@compiled
def _log_above(x: float) -> float:
    """ln(1 + x) for x from 0 to 15 within 1e-8, in steps that make vector instructions: roots, then atanh's series."""
    root = math.sqrt(math.sqrt(math.sqrt(1.0 + x)))
    u = (root - 1.0) / (root + 1.0)
    v = u * u
    return 16.0 * u * (1.0 + v * (1 / 3 + v * (1 / 5 + v * (1 / 7 + v * (1 / 9)))))


@compiled
def _exponential(x: float) -> float:
    """exp(x) for x from -4 to 4 within 1e-8, likewise: the eighth power of a series."""
    y = 0.125 * x
    late = 1 / 120 + y * (1 / 720 + y * (1 / 5040 + y * (1 / 40320)))
    e = 1.0 + y * (1.0 + y * (1 / 2 + y * (1 / 6 + y * (1 / 24 + y * late))))
    e *= e
    e *= e
    return e * e


@compiled
def _center(e: Single) -> None:
    """Mean 0 and deviation 1 over the paths."""
    paths = len(e)
    if paths < MIN_CENTERED_PATHS:
        return
    mean, square = 0.0, 0.0
    for s in range(paths):
        mean += e[s]
    mean /= paths
    for s in range(paths):
        square += (e[s] - mean) ** 2
    deviation = max(math.sqrt(square / paths), MIN_DEVIATION)
    for s in range(paths):
        e[s] = (e[s] - mean) / deviation


@compiled
def _curve(x: Single, y: Single, slope: Single, e: Single, out: Float) -> None:
    """A spline at all paths."""
    last = len(x) - 1
    for s in range(len(e)):
        value = e[s]
        if value < x[0]:
            out[s] = y[0] + slope[0] * (value - x[0])
        elif value >= x[last]:
            out[s] = y[last] + slope[last] * (value - x[last])
        else:
            k = 0
            for knot in range(1, last):
                k += value > x[knot]
            width, rise = x[k + 1] - x[k], y[k + 1] - y[k]
            steep = rise / width
            t = (value - x[k]) / width
            u = t * (1 - t)
            share = (steep * t * t + slope[k] * u) / (steep + (slope[k + 1] + slope[k] - 2 * steep) * u)
            out[s] = y[k] + rise * share
