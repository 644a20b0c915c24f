"""The pipeline of this worker, for the page: its checks, and the few numbers that say whether records flow."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from infra.observability.catalogue import METRICS, Metric
from infra.observability.health import HealthSnapshot
from infra.observability.metrics import PREFIX

# Counters and gauges that tell of the way from a sample to a command; histograms by their mean.
_SHOWN = (
    "lag_records",
    "samples_total",
    "dead_letters_total",
    "pages_total",
    "slots_total",
    "source_silent",
    "stage_seconds",
    "telemetry_to_command_seconds",
    "plan_seconds",
    "forecasts_total",
    "refusals_total",
    "commands_total",
    "plugin_calls_total",
    "kafka_errors_total",
)
_METRICS = {metric.name: metric for metric in METRICS}


def health_view(health: HealthSnapshot, registry: CollectorRegistry) -> dict[str, Any]:
    """Checks as `/readyz` has them, and figures since the worker's start; series at 0 are left out but for lags."""
    return {
        "live": health.live,
        "ready": health.ready,
        "checks": [{"name": c.name, "ok": c.ok, "detail": c.detail, "required": c.required} for c in health.checks],
        "figures": [figure for name in _SHOWN for figure in _figures(_METRICS[name], registry)],
    }


def _figures(metric: Metric, registry: CollectorRegistry) -> list[dict[str, Any]]:
    family = PREFIX + metric.name
    sums: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for collected in registry.collect():
        if collected.name in (family, family.removesuffix("_total")):
            for sample in collected.samples:
                if "le" not in sample.labels:
                    part = sample.name.removeprefix(family).lstrip("_") or "value"
                    sums.setdefault(tuple(sorted(sample.labels.items())), {})[part] = sample.value
    figures = []
    for labels, parts in sorted(sums.items()):
        if metric.kind == "histogram":
            count = parts.get("count", 0.0)
            value, unit = (parts.get("sum", 0.0) / count if count else None), "s, mean"
        else:
            value, unit = parts.get("value", parts.get("total")), ""
        if value or metric.name == "lag_records":
            told = ", ".join(text for _, text in labels)
            figures.append({"name": metric.name, "of": told, "value": value, "unit": unit, "help": metric.help})
    return figures
