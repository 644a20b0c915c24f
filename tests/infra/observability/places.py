"""Where the monitoring files are."""

from __future__ import annotations

from tests.programs import ROOT

DEPLOY = ROOT / "infra/deploy"
RULES = DEPLOY / "prometheus/rules"
DASHBOARD_FILES = DEPLOY / "grafana/dashboards"
