"""Compiled loops that sample the joint law, row by row, from noise to values in the units of a row.

They give the same paths as `model.network.law.JointLaw.sample` in batches of tensors. A cell whose law mixes a spline
with atoms is sampled by a table of its distribution function, the others by the spline alone.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.baselines.context_kernel import ascending
from model.compiled import compiled
from model.numerics import exponential

GRID: Final = 96
MAX_E: Final = 5.5
LEAST_RISE: Final = 1e-20  # least rise between two knots; float32 may make them equal, and 0 / 0 is NaN
_ROOT_HALF: Final = math.sqrt(0.5)


class MixtureTable(NamedTuple):
    """Distribution function at the quantiles of the spline on a grid and at the edges of the atoms.

    Attributes:
        points: [G], values, ascending.
        normals: [G], their standard normals by the spline.
        level: [G], values of the distribution function, never falling.
        edges: [2 A].
    """

    points: Float
    normals: Float
    level: Float
    edges: Float


def table_room(num_atoms: int) -> MixtureTable:
    """An empty table for cells with `num_atoms` atoms."""
    size = GRID + 2 * num_atoms
    return MixtureTable(np.empty(size), np.empty(size), np.empty(size), np.empty(2 * num_atoms))


@compiled
def mixture_table(
    x: Single, y: Single, slope: Single, mass: float, atoms: Single, weights: Single, width: float, out: MixtureTable
) -> None:
    """Fill the table of a cell.

    Args:
        x, y, slope: [K], the spline.
        mass: of all atoms together.
        atoms, weights: [A].
        width: half the width over which an atom's mass is spread.
    """
    points, normals, level, edges = out
    count = len(atoms)
    for a in range(count):
        edges[2 * a], edges[2 * a + 1] = atoms[a] - width, atoms[a] + width
    edges.sort()
    step, num_merged, bin_of = 2 * MAX_E / (GRID - 1), 0, 0
    for g in range(GRID):
        e = -MAX_E + g * step
        value, bin_of = _forward(x, y, slope, e, bin_of)
        while num_merged < len(edges) and edges[num_merged] < value:
            points[g + num_merged] = edges[num_merged]
            normals[g + num_merged] = np.nan
            num_merged += 1
        points[g + num_merged], normals[g + num_merged] = value, e
    for k in range(num_merged, len(edges)):
        points[GRID + k] = edges[k]
        normals[GRID + k] = np.nan
    level[:] = 0.0
    for a in range(count):  # one atom at a time: points lie side by side
        share, near = mass * weights[a], 0.5 / width
        for g in range(len(points)):
            level[g] += share * min(max((points[g] - atoms[a]) * near + 0.5, 0.0), 1.0)
    highest = 0.0
    for g in range(len(points)):
        if np.isnan(normals[g]):
            normals[g] = _inverse(x, y, slope, points[g])
        highest = max(highest, (1 - mass) * 0.5 * math.erfc(-normals[g] * _ROOT_HALF) + level[g])
        level[g] = highest


@compiled
def mixed_values(table: MixtureTable, e: Float, out: Float) -> None:
    """The values at ascending standard normals, interpolated between the points of the table."""
    level, points = table.level, table.points
    low = 0
    for k in range(len(e)):
        probability = 0.5 * math.erfc(-min(max(e[k], -MAX_E), MAX_E) * _ROOT_HALF)
        while low < len(level) - 2 and level[low + 1] < probability:
            low += 1
        share = (probability - level[low]) / max(level[low + 1] - level[low], 1e-12)
        out[k] = points[low] + min(max(share, 0.0), 1.0) * (points[low + 1] - points[low])


@compiled
def spline_values(x: Single, y: Single, slope: Single, e: Float, out: Float) -> None:
    """The spline at ascending standard normals."""
    knot = 0
    for k in range(len(e)):
        out[k], knot = _forward(x, y, slope, e[k], knot)


@compiled
def _forward(x: Single, y: Single, slope: Single, value: float, first: int) -> tuple[float, int]:
    """The spline at a value whose knot is not before `first`, and its knot."""
    last = len(x) - 1
    if value < x[0]:
        return y[0] + slope[0] * (value - x[0]), 0
    if value > x[last]:
        return y[last] + slope[last] * (value - x[last]), last - 1
    k = first
    while k < last - 1 and value > x[k + 1]:
        k += 1
    width, rise = x[k + 1] - x[k], max(np.float64(y[k + 1]) - y[k], LEAST_RISE)
    steep = rise / width
    t = (value - x[k]) / width
    u = t * (1 - t)
    share = (steep * t * t + slope[k] * u) / (steep + (slope[k + 1] + slope[k] - 2 * steep) * u)
    return y[k] + rise * share, k


@compiled
def _inverse(x: Single, y: Single, slope: Single, value: float) -> float:
    """The standard normal that the spline maps to a value."""
    last = len(x) - 1
    if value < y[0]:
        return float(x[0] + (value - y[0]) / slope[0])
    if value > y[last]:
        return float(x[last] + (value - y[last]) / slope[last])
    k = 0
    while k < last - 1 and value > y[k + 1]:
        k += 1
    width, rise = x[k + 1] - x[k], max(np.float64(y[k + 1]) - y[k], LEAST_RISE)
    steep = rise / width
    share = min(max((value - y[k]) / rise, 0.0), 1.0)
    bend = (slope[k + 1] + slope[k] - 2 * steep) * share
    a, b, c = steep - slope[k] + bend, slope[k] - bend, -steep * share
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    t = min(max(-2 * c / max(b + root, 1e-30), 0.0), 1.0)
    return float(x[k] + t * width)


Float = NDArray[np.float64]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]

MAX_LOG_SPREAD: Final = 3.0
SUBSLICES: Final = 16  # positions within a slice that its value may take


class Laws(NamedTuple):
    """The fields of `JointLaw` and its parts as arrays, for B rows, N indicators and H steps.

    Attributes:
        x: [K], knots' positions.
        y, slope: [B, N, H, K].
        mass: [B, N, H], 0 for tokens without active atoms.
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

    order: Ints
    left: Ints
    right: Ints
    stride: Ints


class _Room(NamedTuple):
    """Work arrays for one row of N indicators, H steps and S paths.

    Attributes:
        dependent: [N, H + 1, S], correlated standard normals; step 0 is the origin and holds zeros.
        parts: [S], a monotone map of the normals to (0, 1), by which they are sorted.
        order: [S], paths from the lowest to the highest.
        normals, values: [S], of one cell, ascending.
        table: for cells with atoms.
    """

    dependent: Single
    parts: Float
    order: Ints
    normals: Float
    values: Float
    table: MixtureTable


def joint_paths(laws: Laws, steps: Steps, noise: Single, normals: Float) -> Float:
    """Futures [B, N, H, S] from independent standard normals of the same shape.

    Args:
        normals: [16 * S], a normal in each sixteenth of each slice, ascending; empty where paths are not stratified.
    """
    n, horizon, paths = noise.shape[1:]
    out = np.empty(noise.shape)
    room = _Room(
        np.zeros((n, horizon + 1, paths), np.float32),
        np.empty(paths),
        np.empty(paths, np.int64),
        np.empty(paths),
        np.empty(paths),
        table_room(laws.atoms.shape[-1]),
    )
    _all_rows(laws, steps, noise, normals, room, out)
    return out


@compiled
def _all_rows(laws: Laws, steps: Steps, noise: Single, normals: Float, room: _Room, out: Float) -> None:
    rows, n, horizon, paths = noise.shape
    dependent, order, e, values, table = room.dependent, room.order, room.normals, room.values, room.table
    for b in range(rows):
        for i in range(n):
            for h in range(horizon):
                dependent[i, h + 1] = 0.0
                for j in range(i + 1):
                    share = laws.mixing[b, steps.stride[h], i, j]
                    for s in range(paths):
                        dependent[i, h + 1, s] += share * noise[b, j, h, s]
        for i in range(n):
            _couple(laws.coupling[b, i], steps, dependent[i])
            center, scale = laws.center[b, i], laws.scale[b, i]
            for h in range(horizon):
                _rank(dependent[i, h + 1], room)
                _normals_of_ranks(dependent[i, h + 1], order, normals, e)
                y, slope = laws.y[b, i, h], laws.slope[b, i, h]
                if laws.mass[b, i, h] > 0:
                    mixture_table(
                        laws.x, y, slope, laws.mass[b, i, h], laws.atoms[b, i], laws.weights[b, i], laws.width[b, i],
                        table,
                    )  # fmt: skip
                    mixed_values(table, e, values)
                else:
                    spline_values(laws.x, y, slope, e, values)
                for k in range(paths):
                    out[b, i, h, order[k]] = values[k] * scale + center


@compiled
def _rank(e: Single, room: _Room) -> None:
    """Sort the paths by their normals, in buckets that hold about as many each."""
    for s in range(len(e)):
        x = np.float64(e[s])
        room.parts[s] = 0.5 + 0.5 * x / math.sqrt(1.0 + x * x)
    ascending(room.parts, room.order)


@compiled
def _normals_of_ranks(e: Single, order: Ints, normals: Float, out: Float) -> None:
    """One normal in each slice, ascending; the given ones where paths are not stratified."""
    paths = len(e)
    if len(normals) == 0:
        for k in range(paths):
            out[k] = e[order[k]]
        return
    total = 0.0
    for s in range(paths):
        total += e[s]
    within = 0.5 * math.erfc(-total / math.sqrt(2.0 * paths))
    place = min(int(within * SUBSLICES), SUBSLICES - 1)
    for k in range(paths):
        out[k] = normals[SUBSLICES * k + (place if 2 * k < paths else SUBSLICES - 1 - place)]


@compiled
def _couple(coefficients: Single, steps: Steps, e: Single) -> None:
    """Turn noise into correlated normals in place, coarse steps first; step 0 of `e` [H + 1, S] is the origin."""
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
                e[h + 1, s] = mean + exponential(log_spread) * e[h + 1, s]
        elif left > 0:
            rho = 0.999 * math.tanh(coefficients[h, 4])
            spread = math.sqrt(1 - rho * rho)
            for s in range(e.shape[1]):
                e[h + 1, s] = rho * e[left, s] + spread * e[h + 1, s]


@compiled
def _log_above(x: float) -> float:
    """ln(1 + x) for x in [0, 15] within 1e-8, by square roots and the series of atanh, which vectorise."""
    root = math.sqrt(math.sqrt(math.sqrt(1.0 + x)))
    u = (root - 1.0) / (root + 1.0)
    v = u * u
    return 16.0 * u * (1.0 + v * (1 / 3 + v * (1 / 5 + v * (1 / 7 + v * (1 / 9)))))
