"""Writes docs/metrics.md from the catalogue: `python -m infra.observability.docs`."""

from __future__ import annotations

from pathlib import Path

from infra.observability.catalogue import METRICS, OTHER, Label, Metric
from infra.observability.metrics import PREFIX

PAGE = Path(__file__).parents[2] / "docs/metrics.md"

_HEAD = """# Metrics

Every worker serves these metrics at `/metrics` of its web port (default 9464), in Prometheus' text format or in
OpenMetrics. Beyond loopback it needs a token: `Authorization: Bearer <advanced.worker.metrics_token>`.

* Units are base units. A ratio is 0 to 1. `_total` counts since the worker's start, and starts at 0.
* An unknown number has no series, rather than 0.
* Labels take values from fixed sets; others are shown as `other`. Only metrics with the label `workload` grow with the
  fleet. The first `advanced.worker.metrics_max_workloads` (default 100) have series.
  `harmony_workload_gauges_dropped_total` counts the others. A retired workload makes room.
* Each worker reports its own work: sum counters over workers, and take the maximum of gauges. When partitions move to
  another worker, the gauges of that stage move with them.
* Measurements are not part of the state: a restart resets them, including the scores of forecasts. No decision reads
  them.
* Times to a command compare the worker's clock with the broker's. A worker whose clock is behind shows 0.
* For several fleets in one Prometheus, set a label `fleet` on their targets (`relabel_configs` in
  `infra/deploy/prometheus/prometheus.yml`). The chart sets it from `settings.fleet`. Rules and alerts are then per
  fleet, and dashboards offer a choice. A single fleet needs no label.

Dashboards are in `infra/deploy/grafana`, rules and a Prometheus configuration in `infra/deploy/prometheus`. Each alert
has a page in [operations/runbooks](operations/runbooks/README.md).

| metric | type | labels | meaning |
|---|---|---|---|
"""

_TAIL = """
`forecast_coverage_ratio` and `forecast_pinball` compare published forecasts of demand with the observed values, 1, 4
and 16 steps ahead. A seasonal naive forecast of the same workloads is scored beside them, in the background and from
64 sample paths. It is not scored if it is late. A partition with more than 64 workloads scores 64 of them in each slot,
in turns.

`replica_seconds_total` compares counts in event time. With `mode="observe"`, `held` is the count of another scaler.
`wanted` is the count of HARMONY in its place, the largest proposal within the stabilization window. `needed` is the
reactive need of each step's own load, computed afterwards. `1 - rate(wanted) / rate(held)` is the possible saving.
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
