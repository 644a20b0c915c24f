"""The dashboards; `build` turns them into Grafana's JSON."""

from __future__ import annotations

from infra.observability.dashboards.fleet import FLEET
from infra.observability.dashboards.pipeline import PIPELINE
from infra.observability.dashboards.workload import WORKLOADS

DASHBOARDS = (FLEET, WORKLOADS, PIPELINE)
