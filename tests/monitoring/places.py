"""Where the monitoring files are."""

from __future__ import annotations

from tests.programs import ROOT

MONITORING = ROOT / "infra/monitoring"
RULES = MONITORING / "rules"
