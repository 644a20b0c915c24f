"""Writes the Grafana dashboards: `python -m infra.observability.dashboards.build`.

Needs the development dependencies.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh, VariableSort

from infra.observability.dashboards.fleet import FLEET
from infra.observability.dashboards.pipeline import PIPELINE
from infra.observability.dashboards.spec import DashboardSpec, PanelSpec, of_fleet
from infra.observability.dashboards.workload import WORKLOADS

# The dashboards; `build` turns them into Grafana's JSON.


DASHBOARDS = (FLEET, WORKLOADS, PIPELINE)


HERE = Path(__file__).parents[2] / "deploy/grafana/dashboards"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = {"stat": 4, "lines": 8, "stacked": 8}


def dashboard_json(spec: DashboardSpec) -> str:
    """The dashboard as Grafana imports it, with a fixed order of keys."""
    board = (
        Dashboard(spec.title)
        .uid(spec.uid)
        .description(spec.description)
        .tags(["harmony"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("utc")
        .readonly()
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    board.with_variable(
        QueryVariable("fleet")
        .label("Fleet")
        .query("label_values(harmony_build_info, fleet)")
        .datasource(_SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)  # noqa: FBT003 - the builder's own style
        .include_all(True)  # noqa: FBT003
        .all_value(".*")  # also of targets without the label
    )
    if spec.by_workload:
        board.with_variable(
            QueryVariable("workload")
            .label("Workload")
            .query(f"label_values({of_fleet('harmony_replicas_wanted')}, workload)")
            .datasource(_SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True)  # noqa: FBT003 - the builder's own style
            .include_all(True)  # noqa: FBT003
        )
    ids = itertools.count(1)
    for row in spec.rows:
        board.with_row(Row(row.title).id(next(ids)))
        for panel in row.panels:
            board.with_panel(_panel(panel).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _panel(spec: PanelSpec) -> Stat | TimeSeries:
    panel: Stat | TimeSeries = Stat() if spec.kind == "stat" else TimeSeries()
    panel.title(spec.title).description(spec.description).unit(spec.unit).datasource(_SOURCE)
    panel.span(spec.span).height(_HEIGHT[spec.kind])
    if not spec.signed:
        panel.min(0.0)
    if isinstance(panel, TimeSeries):
        legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        panel.legend(legend.show_legend(True)).line_width(1.0)  # noqa: FBT003
        panel.fill_opacity(30.0 if spec.kind == "stacked" else 0.0)
        if spec.kind == "stacked":
            panel.stacking(StackingConfig().mode(StackingMode.NORMAL))
    for number, query in enumerate(spec.queries):
        target = Dataquery().expr(of_fleet(query.expr)).legend_format(query.legend).ref_id(chr(ord("A") + number))
        panel.with_target(target.datasource(_SOURCE))
    return panel


def main() -> None:
    """Write every dashboard."""
    for spec in DASHBOARDS:
        (HERE / f"{spec.uid}.json").write_text(dashboard_json(spec), encoding="utf-8")


if __name__ == "__main__":
    main()
