"""The committed dashboards are those that the sources say, and what Grafana can read."""

from __future__ import annotations

import json
import re

import pytest

from infra.observability.catalogue import METRICS
from infra.observability.dashboards.build import DASHBOARDS
from infra.observability.dashboards.spec import DashboardSpec
from infra.observability.metrics import PREFIX
from tests.infra.observability.places import DASHBOARD_FILES

NAMES = {PREFIX + metric.name for metric in METRICS}


@pytest.mark.parametrize("spec", DASHBOARDS, ids=lambda s: s.uid)
def test_the_committed_dashboard_is_current(spec: DashboardSpec) -> None:
    build = pytest.importorskip(
        "infra.observability.dashboards.build", reason="grafana-foundation-sdk is not installed"
    )
    committed = (DASHBOARD_FILES / f"{spec.uid}.json").read_text()
    assert committed == build.dashboard_json(spec), "python -m infra.observability.dashboards.build"


@pytest.mark.parametrize("spec", DASHBOARDS, ids=lambda s: s.uid)
def test_panels_have_names_ids_and_places_of_their_own(spec: DashboardSpec) -> None:
    board = json.loads((DASHBOARD_FILES / f"{spec.uid}.json").read_text())
    assert board["uid"] == spec.uid
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        mine = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not mine & cells, panel["title"]
        cells |= mine
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_queries_name_declared_metrics_and_every_metric_is_shown_somewhere() -> None:
    exprs = [query.expr for d in DASHBOARDS for row in d.rows for panel in row.panels for query in panel.queries]
    shown = {
        name if name in NAMES else re.sub(r"_(bucket|sum|count)$", "", name)
        for expr in exprs
        for name in re.findall(r"(?<!:)harmony_\w+", expr)
    }
    assert shown <= NAMES
    left_out = {"harmony_unknown_names_total"}
    assert NAMES - shown == left_out


def test_no_dashboard_shows_every_workload_of_a_large_fleet() -> None:
    for d in DASHBOARDS:
        for row in d.rows:
            for panel in row.panels:
                for query in panel.queries:
                    if "by (workload)" in query.expr:
                        assert "topk(20, " in query.expr or "$workload" in query.expr, panel.title
