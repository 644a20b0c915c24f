"""A linear pool: some paths from each member, so that the law is the mixture of theirs.

Where members disagree the mixture is wide, where they agree it is as sharp as they are; every path stays one member's
joint future. Pooling quantile by quantile would be sharper, and would hide the disagreement that decisions need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from model.baselines.context import check_request
from model.contract import ContextBatch, ForecastBatch, Forecaster
from model.paths import PathWriter, empty_paths, put_paths


class PoolForecaster:
    """Mixture of forecasters in whole shares.

    Args:
        members: forecaster and share; of every sum(shares) paths in a row a member gives its share, whatever their
            number, so that any prefix of the paths holds the mixture as nearly as its length allows.

        name: of its forecasts' source.

    Raises:
        ValueError: no member, or a share below 1.
    """

    def __init__(self, members: Sequence[tuple[Forecaster, int]], name: str = "pool") -> None:
        if not members or min(share for _, share in members) < 1:
            raise ValueError("a pool needs members, each with a share of at least 1")
        self._name = name
        self._members = tuple(forecaster for forecaster, _ in members)
        self._turns = _turns([share for _, share in members])
        body = "|".join(f"{forecaster.fingerprint}*{share}" for forecaster, share in members)
        self._fingerprint = "pool-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return min(member.max_horizon for member in self._members)

    @property
    def min_context(self) -> int:
        return max(member.min_context for member in self._members)

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: horizon above `max_horizon`, inconsistent shapes, or what a member refuses.
        """
        check_request(batch, horizon, num_paths, self.max_horizon)
        b, _, n = batch.values.shape
        out = empty_paths(b, num_paths, horizon, n, batch.values.device)
        turn = np.resize(self._turns, num_paths)
        for k, member in enumerate(self._members):
            places = np.flatnonzero(turn == k)
            if not len(places):
                continue
            if isinstance(member, PathWriter):
                member.write_paths(batch, horizon, places, out)
            else:
                put_paths(member.forecast(batch, horizon, len(places)).paths, places, out)
        return ForecastBatch(out, (self._name,) * b, self._fingerprint)


def _turns(shares: Sequence[int]) -> list[int]:
    """Whose turn it is, spread as evenly as whole turns allow: shares 2, 1 take turns 0, 1, 0."""
    total, given, order = sum(shares), [0] * len(shares), []
    for place in range(1, total + 1):
        behind = [share * place / total - have for share, have in zip(shares, given, strict=True)]
        k = max(range(len(shares)), key=behind.__getitem__)
        given[k] += 1
        order.append(k)
    return order
