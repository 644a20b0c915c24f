"""Exporters read directly, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import time

from infra.collect.formats.exposition import UnreadableError, read_exposition
from infra.collect.points import Point
from infra.collect.sources.http import FetchError, Http
from infra.collect.targets import Target
from infra.console.web import shown

# prometheus_client's parser knows the older format best; exporters that only speak OpenMetrics are read as well.
_ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;q=0.5,*/*;q=0.1"
_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class Round:
    """What one look at a source brought.

    Attributes:
        points: all of it.
        failures: what could not be read, named without passwords, and why.
        asked: how many sources were asked.
    """

    points: list[Point]
    failures: dict[str, str] = field(default_factory=dict)
    asked: int = 1


class Scraper:
    """Reads the targets once per call.

    Args:
        targets: asked anew each time, so that a file of targets may change.
        wanted: true for the names of series to read.
        now_ms: the time that samples get, asked when a target begins to answer.
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[Target]],
        wanted: Callable[[str], bool],
        http: Http,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
    ) -> None:
        self._targets, self._wanted, self._http, self._now_ms = targets, wanted, http, now_ms

    def __call__(self) -> Round:
        """All targets' samples; a target that does not answer is a failure, the others are read all the same."""
        targets = self._targets()
        with ThreadPoolExecutor(min(_MOST_THREADS, max(1, len(targets)))) as pool:
            results = list(pool.map(self._read, targets))
        points = [point for result in results if not isinstance(result, str) for point in result]
        failures = {shown(t.url): r for t, r in zip(targets, results, strict=True) if isinstance(r, str)}
        return Round(points, failures, len(targets))

    def _read(self, target: Target) -> list[Point] | str:
        ts_ms = self._now_ms()
        try:
            text = self._http.get(target.url, _ACCEPT)
            return read_exposition(text, self._wanted, ts_ms, target.labels)
        except (FetchError, UnreadableError) as error:
            return str(error)
