"""A workload's past from a Prometheus server, in portions of some hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infra.collect.mapping.readings import Reader
from infra.collect.sources.prometheus import PrometheusApi, PrometheusError
from infra.console.errors import HarmonyError
from infra.lab.backtest.history import BIN_S, HistoryBuilder

_PORTION_S = 6 * 3600


def fetch(
    api: PrometheusApi,
    reader: Reader,
    names: Sequence[str],
    start_s: float,
    end_s: float,
    progress: Callable[[str], None],
) -> HistoryBuilder:
    """Histories of every workload of `[start_s, end_s)`.

    Args:
        names: series to ask for.

    Raises:
        HarmonyError: the server does not answer.
    """
    builder = HistoryBuilder()
    at_s = start_s - start_s % BIN_S
    total = max(1.0, end_s - at_s)
    begun_s = at_s
    while at_s < end_s:
        until_s = min(at_s + _PORTION_S, end_s)
        try:
            points = api.graph(names, at_s, until_s - BIN_S, BIN_S)
        except PrometheusError as error:
            raise HarmonyError(f"The Prometheus server does not answer: {error}") from None
        builder.add(reader.read(points))
        at_s = until_s
        progress(f"read {(at_s - begun_s) / total:.0%} of the history")
    return builder
