"""The dashboards; `build` turns them into Grafana's JSON."""

from __future__ import annotations

from infra.monitoring.fleet_dashboard import FLEET
from infra.monitoring.pipeline_dashboard import PIPELINE
from infra.monitoring.workload_dashboard import WORKLOADS

DASHBOARDS = (FLEET, WORKLOADS, PIPELINE)
