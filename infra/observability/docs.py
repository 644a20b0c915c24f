"""Writes docs/metrics.md from the catalogue: `python -m infra.observability.docs`."""

from __future__ import annotations

from pathlib import Path

from infra.observability.catalogue import METRICS, OTHER, Label, Metric
from infra.observability.metrics import PREFIX

PAGE = Path(__file__).parents[2] / "docs/metrics.md"

_HEAD = """# Metrics

Every worker serves these at `/metrics` of its web port (default 9464), in Prometheus' text format or, when asked,
OpenMetrics. Beyond loopback it needs a token: `Authorization: Bearer <advanced.worker.metrics_token>`.

* Units are base units; a ratio is 0 to 1; `_total` counts since the worker's start, and starts at 0.
* A number that is not known has no series, rather than 0.
* Labels take values from fixed sets; whatever else comes up is shown as `other`. Only metrics with the label `workload`
  grow with the fleet: the first `advanced.worker.metrics_max_workloads` (default 100) get theirs, further ones are
  counted in `harmony_workload_gauges_dropped_total`. A retired workload makes room.
* Each worker tells of what it does itself: sum counters over workers; of gauges take the maximum. When partitions go to
  another worker, the gauges of that stage go with them.
* Measurements are not part of the state: a restart begins them anew. The scores of forecasts, too, start empty; nothing
  that is decided reads them.
* Times to a command compare the worker's clock with the broker's; a worker whose clock is behind shows 0.
* Several fleets in one Prometheus are told apart by a label `fleet` on their targets (`relabel_configs` in
  `infra/deploy/prometheus/prometheus.yml`; the chart gives it by itself, from `settings.fleet`). Rules and alerts are
  then of each fleet, and dashboards offer a choice. Of a single fleet it may be missing.

Dashboards are in `infra/deploy/grafana`, rules and a Prometheus configuration in `infra/deploy/prometheus`. Each alert
has a page in [operations/runbooks](operations/runbooks/README.md).

| metric | type | labels | what it says |
|---|---|---|---|
"""

_TAIL = """
`forecast_coverage_ratio` and `forecast_pinball` hold published forecasts of demand, 1, 4 and 16 steps ahead,
against what was then observed. A seasonal naive forecast of the same workloads is made and scored beside them, in the
background and from 64 sample paths; one that is not ready when its value arrives is not scored. Of a partition with
more than 64 workloads 64 are scored in each slot, the next ones in the next.

`replica_seconds_total` compares, in event time: with `mode="observe"`, `held` is what another scaler holds and `wanted`
what HARMONY would have held in its place, the largest proposal within the stabilization window; `needed` is the
reactive need of each step's own load, known only afterwards. `1 - rate(wanted) / rate(held)` is the share that would be
saved.
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_row(metric) for metric in METRICS) + _TAIL


def _row(metric: Metric) -> str:
    kind = "gauge, always 1" if metric.kind == "info" else metric.kind
    labels = "<br>".join(_label(label) for label in metric.labels) or "none"
    return f"| `{PREFIX}{metric.name}` | {kind} | {labels} | {metric.help} |\n"


def _label(label: Label) -> str:
    if label.domain == "workload":
        return f"`{label.name}`: its id"
    if label.domain == "text":
        return f"`{label.name}`"
    values = (*label.values, OTHER) if label.domain == "open" and OTHER not in label.values else label.values
    return f"`{label.name}`: {', '.join(values)}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
