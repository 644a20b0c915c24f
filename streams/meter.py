"""The port through which the core reports measurements; `infra.observability.metrics` binds it to Prometheus."""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Names are Prometheus names without the `harmony_` prefix; label values come from fixed sets only."""

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Record one value in a histogram."""


class NullMeter:
    """Measures nothing; the default in tests and tools."""

    def count(self, name: str, value: float = 1.0, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...
