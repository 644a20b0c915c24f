"""A forecaster that asks another: its limits are the other's, its fingerprint covers the other's."""

from __future__ import annotations

import hashlib

from model.contract import Forecaster


class WrappedForecaster:
    """What those that change the batches or the paths of one other forecaster share.

    Args:
        inner: makes the paths.
        name: begins the fingerprint.
        version: of what is done to them; another one gives another fingerprint.
    """

    def __init__(self, inner: Forecaster, name: str, version: str = "") -> None:
        self._inner = inner
        body = f"{version}{inner.fingerprint}"
        self._fingerprint = f"{name}-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return self._inner.max_horizon

    @property
    def min_context(self) -> int:
        return self._inner.min_context
