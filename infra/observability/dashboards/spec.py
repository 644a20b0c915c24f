"""The words in which dashboards are written down: rows of panels, each with its queries.

`RATE` stands for Grafana's rate interval, `WORKLOAD` for the chosen workloads and `FLEET` for the chosen fleets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

RATE = "$__rate_interval"
WORKLOAD = "$workload"
FLEET = "$fleet"

Unit = Literal["short", "percentunit", "s", "ops", "reqps", "bytes", "none"]


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how Grafana names its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One panel. `stacked` draws a share of a whole; `stat` shows the newest number only; spans are of 24 columns.

    `signed` lets the axis go below 0.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Literal["lines", "stacked", "stat"] = "lines"
    span: int = 12
    signed: bool = False


@dataclass(frozen=True, slots=True)
class RowSpec:
    title: str
    panels: tuple[PanelSpec, ...]


@dataclass(frozen=True, slots=True)
class DashboardSpec:
    """One dashboard; `by_workload` adds a choice of workloads."""

    uid: str
    title: str
    description: str
    rows: tuple[RowSpec, ...]
    by_workload: bool = False


_SERIES = re.compile(r"((?:\b\w+:)?\b(?:harmony_|process_)\w+(?::\w+)?)(\{)?")


def of_fleet(expr: str) -> str:
    """The expression with every series narrowed to the chosen fleets; of a single one the label may be missing."""
    return _SERIES.sub(lambda match: f'{match[1]}{{fleet=~"{FLEET}"' + ("," if match[2] else "}"), expr)


def _quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[{RATE}])))"


def quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """Median and 99th percentile of a histogram, per value of the label `by` if one is named."""
    suffix = f" {{{{{by}}}}}" if by else ""
    return tuple(Query(_quantile(q, metric, by), f"p{q * 100:g}{suffix}") for q in (0.5, 0.99))
