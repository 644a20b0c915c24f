"""Figures of the workers of this run, read from their own metrics pages."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Self

_METRIC = re.compile(r'^harmony_(\w+)\{[^}]*="(\w+)"\} (\S+)$', re.MULTILINE)
_PERIOD_S = 1.0


def metric(url: str, name: str, label: str) -> int:
    """A worker's counter with one label, 0 when the worker does not answer."""
    return sum(int(float(value)) for label_, value in labelled(url, name) if label_ == label)


def labelled(url: str, name: str) -> list[tuple[str, str]]:
    """(label value, value) of a metric with one label; empty when the worker does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:  # noqa: S310 - our own loopback page
            text = response.read().decode()
    except (urllib.error.URLError, OSError):
        return []
    return [(label, value) for found, label, value in _METRIC.findall(text) if found == name]


class LagWatch:
    """Reads the workers' lag once a second, in a thread, so that the run does not wait for their pages.

    Attributes:
        lag_records: records not read yet, all stages of all workers; None while no worker has said.
    """

    def __init__(self, urls: Sequence[str], period_s: float = _PERIOD_S) -> None:
        self.lag_records: int | None = None
        self._urls = tuple(urls)
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)

    def look(self) -> None:
        """Read every worker once."""
        said = [int(float(value)) for url in self._urls for _, value in labelled(url, "lag_records")]
        self.lag_records = sum(said) if said else None

    def _watch(self) -> None:
        while not self._ended.wait(self._period_s):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._period_s)
