"""Averages of contestants, quantile by quantile, ordered like the ridge's paths so that they stay joint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from model.evaluation.rolling import Paths, Round

Contestant = Callable[[Round], Paths]


def quantile_average(members: Sequence[str], seasonal: str | None = None, order_of: str = "ridge") -> Contestant:
    """The mean of the members' sorted paths.

    Args:
        seasonal: one more member where there is a season and H is at least a sixth of it.
        order_of: the contestant whose ranks order the sample of every step and indicator.
    """

    def answer(asked: Round) -> Paths:
        names = list(members)
        if seasonal is not None and asked.season > 1 and 6 * asked.horizon >= asked.season:
            names.append(seasonal)
        mean = np.mean([np.sort(asked.ask(name), axis=1) for name in names], axis=0)
        return reorder(mean, asked.ask(order_of))

    return answer


def reorder(ordered: Paths, like: Paths) -> Paths:
    """Sorted samples [O, S, H, N] put in the order of the paths `like` (Schaake shuffle).

    Source: M. Clark et al., "The Schaake shuffle", Journal of Hydrometeorology 2004.
    """
    ranks = np.argsort(np.argsort(like, axis=1, kind="stable"), axis=1, kind="stable")
    return np.take_along_axis(ordered, ranks, axis=1)
