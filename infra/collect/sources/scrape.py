"""Exporters read directly, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from infra.collect.formats.exposition import UnreadableError, read_exposition
from infra.collect.points import Point
from infra.console.errors import HarmonyError
from infra.console.web import FetchError, HttpClient, printable_url, split_url
from infra.settings.yaml import load_yaml

# What is scraped: addresses on the command line, or a file as Prometheus' file_sd_configs reads it.


_PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Target:
    """One exporter: where it answers, and the labels that its samples get."""

    url: str
    labels: dict[str, str] = field(default_factory=dict)


def parse_target(text: str, labels: dict[str, str] | None = None) -> Target:
    """`host:port` or a URL -> a target with label `instance`.

    Raises:
        HarmonyError: neither (exit code 2).
    """
    url = text if "://" in text else f"http://{text}"
    parts = split_url(url, "address of an exporter: write http://host:port/metrics or host:port")
    if not parts.path.strip("/"):
        url = url.rstrip("/") + _PATH
    return Target(url, {"instance": parts.netloc.rpartition("@")[2], **(labels or {})})


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """`name=value` each.

    Raises:
        HarmonyError: one that is not (exit code 2).
    """
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise HarmonyError(f"--label {text!r}: write name=value, such as namespace=prod.", 2)
        labels[name] = value
    return labels


def read_targets(path: Path) -> list[Target]:
    """A file of targets, YAML or JSON: a list of `{targets: [host:port, …], labels: {name: value}}`.

    Raises:
        HarmonyError: unreadable, or not such a list; names the entry (exit code 2).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarmonyError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.", 2) from error
    _, content = load_yaml(text, path)
    if not isinstance(content, list):
        raise HarmonyError(f"{path}: must hold a list of {{targets: [...], labels: {{...}}}}.", 2)
    all_targets = []
    for number, entry in enumerate(content):
        targets = entry.get("targets") if isinstance(entry, dict) else None
        labels = entry.get("labels") or {} if isinstance(entry, dict) else None
        if not isinstance(targets, list) or not isinstance(labels, dict):
            raise HarmonyError(f"{path}: entry {number} must hold targets, a list, and may hold labels, a mapping.", 2)
        all_targets += [parse_target(str(t), {str(k): str(v) for k, v in labels.items()}) for t in targets]
    return all_targets


# Both formats are read. Exporters keep their own names in the older one; in OpenMetrics every counter ends in _total.
_ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;q=0.5,*/*;q=0.1"
_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class Round:
    """What one look at a source brought.

    Attributes:
        points: all of it.
        failures: what could not be read, named without passwords, and why.
        num_targets: how many sources were asked.
    """

    points: list[Point]
    failures: dict[str, str] = field(default_factory=dict)
    num_targets: int = 1


class Scraper:
    """Reads the targets once per call.

    Args:
        targets: asked anew each time, so that a file of targets may change.
        name_filter: true for the names of series to read.
        now_ms: the time that samples get, asked when a target begins to answer.
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[Target]],
        name_filter: Callable[[str], bool],
        http: HttpClient,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
    ) -> None:
        self._targets, self._name_filter, self._http, self._now_ms = targets, name_filter, http, now_ms

    def __call__(self) -> Round:
        """All targets' samples; a target that does not answer is a failure, the others are read all the same."""
        targets = self._targets()
        with ThreadPoolExecutor(min(_MOST_THREADS, max(1, len(targets)))) as pool:
            results = list(pool.map(self._read, targets))
        points = [point for result in results if not isinstance(result, str) for point in result]
        failures = {printable_url(t.url): r for t, r in zip(targets, results, strict=True) if isinstance(r, str)}
        return Round(points, failures, len(targets))

    def _read(self, target: Target) -> list[Point] | str:
        ts_ms = self._now_ms()
        try:
            text = self._http.get(target.url, _ACCEPT)
            return read_exposition(text, self._name_filter, ts_ms, target.labels)
        except (FetchError, UnreadableError) as error:
            return str(error)
