"""Quantiles of one cell whose law mixes a spline with atoms, compiled: a table of its distribution function.

The same as `model.network.marginal.Marginal` says for tensors.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Single = NDArray[np.float32]

GRID: Final = 96
MAX_E: Final = 5.5
LEAST_RISE: Final = 1e-20  # of two knots that float32 cannot tell apart: 0 / 0 would be no number
_ROOT_HALF: Final = math.sqrt(0.5)


class MixtureTable(NamedTuple):
    """Distribution function at the quantiles of the spline on a grid and at the edges of the atoms.

    Attributes:
        points: [G], values, ascending.
        normals: [G], what the spline maps to them.
        level: [G], never falling.
        edges: [2 A].
    """

    points: Float
    normals: Float
    level: Float
    edges: Float


def table_room(num_atoms: int) -> MixtureTable:
    """Room for cells with so many atoms."""
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
    step, taken, bin_of = 2 * MAX_E / (GRID - 1), 0, 0
    for g in range(GRID):
        e = -MAX_E + g * step
        value, bin_of = _forward(x, y, slope, e, bin_of)
        while taken < len(edges) and edges[taken] < value:
            points[g + taken] = edges[taken]
            normals[g + taken] = np.nan
            taken += 1
        points[g + taken], normals[g + taken] = value, e
    for k in range(taken, len(edges)):
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
    """The values whose levels are those of ascending standard normals, between the points of the table."""
    level, points = table.level, table.points
    low = 0
    for k in range(len(e)):
        wanted = 0.5 * math.erfc(-min(max(e[k], -MAX_E), MAX_E) * _ROOT_HALF)
        while low < len(level) - 2 and level[low + 1] < wanted:
            low += 1
        share = (wanted - level[low]) / max(level[low + 1] - level[low], 1e-12)
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
    """What the spline maps to a value."""
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
