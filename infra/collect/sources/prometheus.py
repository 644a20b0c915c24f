"""What a Prometheus server already holds, asked through its HTTP API."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import time
from typing import Any
from urllib.parse import urlencode

from infra.collect.formats.prometheus_api import series_points
from infra.collect.points import Point
from infra.collect.sources.scrape import Round
from infra.console.text import printable
from infra.console.web import FetchError, HttpClient, split_url
from streams.records.strict_json import MalformedError

# Names are asked for in portions, so that the regular expression stays short.
_NAMES_PER_QUERY = 60
_OVERLAP_S = 10
# Prometheus scrapes once a minute where nothing else is said.
_FIRST_LOOK_BACK_S = 60
_LONGEST_LOOK_BACK_S = 300
_NO_ANSWER = "the answer is not that of a Prometheus server"
# A server answers at most 11,000 steps.
_MAX_STEPS = 10_000
_COARSE_S = 600


class PrometheusError(Exception):
    """The server did not answer a query; the message says why."""


class PrometheusApi:
    """Raw samples of a server.

    Args:
        url: such as http://prometheus:9090, with the path it is served under, if any.
        selector: label matchers that every series must fit, such as `namespace="prod"`.

    Raises:
        HarmonyError: the URL is none (exit code 2).
    """

    def __init__(self, url: str, http: HttpClient, selector: str = "") -> None:
        split_url(url, "address of a Prometheus server: write http://host:port")
        self._url = url.rstrip("/") + "/api/v1/query"
        self._http = http
        self._selector = selector.strip().removeprefix("{").removesuffix("}").strip().strip(",")

    def samples(self, names: Sequence[str], window_s: int, at_s: float | None = None) -> list[Point]:
        """Every sample of these series in the window before an instant, each with the time of its scrape.

        A range is asked for, not the newest values: those would carry the time of the question, so that rates would
        jitter by as much as a scrape interval, and would stand for minutes after their target is gone.

        Args:
            at_s: end of the window, Unix time; None = the server's now.

        Raises:
            PrometheusError: no answer, or a refusal.
        """
        times = {} if at_s is None else {"time": f"{at_s:.3f}"}
        points: list[Point] = []
        for matchers in self._matchers(names):
            points += self._ask(self._url, {"query": f"{matchers}[{window_s}s]", **times})
        return points

    def graph(self, names: Sequence[str], start_s: float, end_s: float, step_s: int) -> list[Point]:
        """These series' values at every step of `[start_s, end_s]`, as a graph would show them.

        Raises:
            PrometheusError: no answer, or a refusal (such as more than 11,000 steps).
        """
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": str(step_s)}
        points: list[Point] = []
        for matchers in self._matchers(names):
            points += self._ask(self._url + "_range", {"query": matchers, **times})
        return points

    def now_s(self) -> float:
        """The server's clock, Unix time.

        Raises:
            PrometheusError: no answer, or a refusal.
        """
        return float(self._result(self._url, {"query": "time()"})[1])

    def presence(self, names: Sequence[str], start_s: float, end_s: float, step_s: int) -> list[float]:
        """Those steps of `[start_s, end_s]`, Unix time, at which the server holds any of these series, in order.

        Raises:
            PrometheusError: no answer, or a refusal (such as more than 11,000 steps).
        """
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": str(step_s)}
        found: set[float] = set()
        for matchers in self._matchers(names):
            for series in self._result(self._url + "_range", {"query": f"count({matchers})", **times}):
                found |= {float(at) for at, _ in series["values"]}
        return sorted(found)

    def _matchers(self, names: Sequence[str]) -> Iterator[str]:
        for start in range(0, len(names), _NAMES_PER_QUERY):
            pattern = "|".join(re.escape(name) for name in names[start : start + _NAMES_PER_QUERY])
            matchers = f'__name__=~"{pattern.replace(chr(92), chr(92) * 2)}"'
            yield f"{{{matchers}{',' + self._selector if self._selector else ''}}}"

    def _ask(self, url: str, form: dict[str, str]) -> list[Point]:
        found = self._result(url, form)
        try:
            return [point for series in found for point in series_points(series, 0, Counter())]
        except (MalformedError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PrometheusError(_NO_ANSWER) from None

    def _result(self, url: str, form: dict[str, str]) -> Any:
        try:
            answer = json.loads(self._http.get(url, "application/json", urlencode(form).encode()))
            if answer["status"] != "success":
                raise PrometheusError(printable(str(answer.get("error", "the query failed")), 300))
            return answer["data"]["result"]
        except FetchError as error:
            raise PrometheusError(_error_text(str(error))) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PrometheusError(_NO_ANSWER) from None


class PrometheusSource:
    """Asks for what is new since the last time it was answered.

    Args:
        names: series to ask for.
        where: the server as people read it.
        now_s: this machine's clock; only how much time has passed is taken from it.
    """

    def __init__(self, api: PrometheusApi, names: Iterable[str], where: str, now_s: Callable[[], float] = time) -> None:
        self._api, self._names, self._where, self._now_s = api, sorted(names), where, now_s
        self._answered_s: float | None = None
        self._newest: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}

    def __call__(self) -> Round:
        """New samples; a server that does not answer is a failure."""
        now_s = self._now_s()
        passed_s = _FIRST_LOOK_BACK_S if self._answered_s is None else now_s - self._answered_s
        window_s = min(int(passed_s) + 1 + _OVERLAP_S, _LONGEST_LOOK_BACK_S)
        try:
            points = self._api.samples(self._names, window_s)
        except PrometheusError as error:
            return Round([], {self._where: str(error)})
        self._answered_s = now_s
        return Round(self._fresh(points))

    @contextmanager
    def asking(self, api: PrometheusApi) -> Iterator[None]:
        """Ask through another client within the block."""
        before, self._api = self._api, api
        try:
            yield
        finally:
            self._api = before

    def server_now_s(self) -> float:
        """The server's clock, Unix time.

        Raises:
            PrometheusError: no answer, or a refusal.
        """
        return self._api.now_s()

    def oldest_s(self, start_s: float, end_s: float) -> float | None:
        """About when the server's samples of `[start_s, end_s]` begin, and not later; None where there are none.

        Raises:
            PrometheusError: no answer, or a refusal.
        """
        step_s = max(_COARSE_S, int((end_s - start_s) / _MAX_STEPS) + 1)
        found = self._api.presence(self._names, start_s, end_s, step_s)
        # Where the newest samples are younger than a step, the end of the time shows them.
        found = found or self._api.presence(self._names, end_s, end_s, step_s)
        return None if not found else max(start_s, found[0] - step_s)

    def between(self, start_s: float, end_s: float) -> list[Point]:
        """The samples of `(start_s, end_s]`, with those before that no earlier answer held; then come later ones.

        Raises:
            PrometheusError: no answer, or a refusal.
        """
        points = self._api.samples(self._names, math.ceil(end_s - start_s) + _OVERLAP_S, end_s)
        self._answered_s = self._now_s()
        return self._fresh(points)

    def _fresh(self, points: Sequence[Point]) -> list[Point]:
        """Those later than what an earlier answer held of their series."""
        fresh: list[Point] = []
        newest: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        for point in points:
            series = point.name, tuple(sorted(point.labels.items()))
            previous_ms = self._newest.get(series)
            newest[series] = max(point.ts_ms, newest.get(series, previous_ms or 0))
            if previous_ms is None or point.ts_ms > previous_ms:
                fresh.append(point)
        # A series that is not in the window any more has no samples that could come again.
        self._newest = newest
        return fresh


def _error_text(text: str) -> str:
    """The server's own words, where an error's body holds them."""
    match = re.search(r'"error"\s*:\s*"((?:[^"\\]|\\.)*)"', text)
    return f"{text.partition(':')[0]}: {match.group(1)}"[:300] if match else text[:300]
