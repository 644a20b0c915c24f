"""Line pictures over time as SVG, without a plotting library.

The page that holds one has a style for the class `axis` and the colours `--ink`, `--soft` and `--line`. Colours of
policies are of the Okabe-Ito palette, and each has its own dashes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 900
LEFT, RIGHT, BOTTOM, TOP = 46, 22, 24, 14
COLOURS: Final = {"harmony": "#0072b2", "hpa": "#d55e00", "static_peak": "#767676"}
DASHES: Final = {"harmony": "", "hpa": "5 3", "static_peak": "2 3"}


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture from second 0 to `end_s` and from 0 to `top`, `WIDTH` wide.

    Attributes:
        y_from: where it begins, from the top of the SVG.
    """

    end_s: float
    top: float
    height: int = 210
    y_from: int = 0

    def x(self, at_s: float) -> float:
        """Place of an instant."""
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / max(self.end_s, 1e-9)

    def y(self, value: float) -> float:
        """Place of a value."""
        return self.y_from + self.height - BOTTOM - (self.height - BOTTOM - TOP) * value / self.top

    def points(self, pairs: Iterable[tuple[float, float]]) -> str:
        """Places of (second, value)."""
        return " ".join(f"{self.x(t):.1f},{self.y(v):.1f}" for t, v in pairs)

    def axes(self, unit: str) -> str:
        """Lines and numbers of both axes."""
        lines = []
        for value in ticks(self.top, 4):
            y = self.y(value)
            lines.append(f'<line class="axis" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
            lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        bottom = self.y_from + self.height - 6
        for at_s in ticks(self.end_s / 60, 7, (1, 2, 5, 10, 15, 30, 60, 120, 240)):
            text = f"{at_s / 60:g} h" if self.end_s > 7200 else f"{at_s:g} min"
            lines.append(f'<text x="{self.x(at_s * 60):.1f}" y="{bottom}" text-anchor="middle">{text}</text>')
        return f'{"".join(lines)}<text x="{LEFT}" y="{self.y_from + 10}">{escape(unit)}</text>'

    def line(self, pairs: Iterable[tuple[float, float]], colour: str, width: float = 1.6, dashes: str = "") -> str:
        """Straight from point to point."""
        stroke = f'stroke="{colour}" stroke-width="{width:g}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        return f'<polyline points="{self.points(pairs)}" fill="none" {stroke}/>'

    def area(self, pairs: Iterable[tuple[float, float]], colour: str) -> str:
        """The inside of an outline."""
        return f'<polygon points="{self.points(pairs)}" fill="{colour}" fill-opacity="0.22"/>'

    def picture(self, label: str, parts: Sequence[str]) -> str:
        """The whole, for a page."""
        size = f'viewBox="0 0 {WIDTH} {self.y_from + self.height}"'
        return f'<svg {size} role="img" aria-label="{escape(label, quote=True)}">{"".join(parts)}</svg>\n'


def steps(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points of a line that holds each value until the next.

    >>> steps([(0, 1), (5, 1), (9, 3)])
    [(0, 1), (9, 1), (9, 3)]
    """
    points = [*pairs[:1]]
    for k, (at_s, value) in enumerate(pairs[1:], 1):
        if value != points[-1][1]:
            points += [(at_s, points[-1][1]), (at_s, value)]
        elif k == len(pairs) - 1:
            points.append((at_s, value))
    return points


def ticks(top: float, most: int, rounds: Sequence[float] = ()) -> list[float]:
    """Round values from 0 to `top`.

    >>> ticks(17, 4)
    [0, 5, 10, 15]
    """
    base = 10 ** math.floor(math.log10(max(top, 1e-9)))
    step = next((s for s in (*rounds, *(base * m / 10 for m in (1, 2, 5, 10, 20, 50))) if top / s <= most), base)
    step = int(step) if step >= 1 else step
    return [k * step for k in range(int(top / step) + 1)]
