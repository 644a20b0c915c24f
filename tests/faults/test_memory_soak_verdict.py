"""What `make soak` makes of its looks."""

from __future__ import annotations

import random

import pytest

from tests.faults.soak import Look, slope_per_hour, verdict


def looks(mb_per_hour: float, files: int = 0, behind: int = 3, seconds: int = 3_600) -> list[Look]:
    rng = random.Random(1)
    return [
        Look(at, 400 + mb_per_hour * at / 3_600 + rng.gauss(0, 0.2), 60 + files * at // 600, behind)
        for at in range(0, seconds, 5)
    ]


def test_slopes_are_found() -> None:
    for wanted in (-3.0, 0.0, 0.5, 12.0):
        slope, error = slope_per_hour(looks(wanted))
        assert slope == pytest.approx(wanted, abs=4 * error)
        assert error < 0.1


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (looks(0.3), None),
        (looks(8.0), "GROWS"),
        (looks(0.0, files=2), "LEAKS"),
        (looks(0.0, behind=80), "FALLS BEHIND"),
        (looks(0.0, seconds=600), "too short"),
        ([], "too short"),
    ],
    ids=["well", "memory", "files", "lag", "ended", "never began"],
)
def test_each_ill_has_its_word(history: list[Look], words: str | None) -> None:
    lines, well = verdict(history, 3_600)
    assert well is (words is None)
    assert words is None or words in "\n".join(lines)
