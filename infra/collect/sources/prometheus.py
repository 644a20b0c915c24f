"""What a Prometheus server already holds, asked through its HTTP API."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time
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

    def _matchers(self, names: Sequence[str]) -> Iterator[str]:
        for start in range(0, len(names), _NAMES_PER_QUERY):
            pattern = "|".join(re.escape(name) for name in names[start : start + _NAMES_PER_QUERY])
            matchers = f'__name__=~"{pattern.replace(chr(92), chr(92) * 2)}"'
            yield f"{{{matchers}{',' + self._selector if self._selector else ''}}}"

    def _ask(self, url: str, form: dict[str, str]) -> list[Point]:
        try:
            answer = json.loads(self._http.get(url, "application/json", urlencode(form).encode()))
            if answer["status"] != "success":
                raise PrometheusError(printable(str(answer.get("error", "the query failed")), 300))
            return [point for series in answer["data"]["result"] for point in series_points(series, 0, Counter())]
        except FetchError as error:
            raise PrometheusError(_error_text(str(error))) from None
        except (MalformedError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PrometheusError("the answer is not that of a Prometheus server") from None


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
