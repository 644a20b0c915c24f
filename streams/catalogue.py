"""The indicator catalogue: which numbers exist, their unit and level, and how telemetry becomes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["requests", "gpu"]
SOURCES: tuple[Source, ...] = ("requests", "gpu")


@dataclass(frozen=True, slots=True)
class Indicator:
    """One column of the window table.

    Attributes:
        name: `<thing>.<what>_<unit>`, stable; pages are matched by it.
        unit: in the notation of UCUM, for people.
        level: of the indicator hierarchy: 1 demand, 2 engine, 3 device.
        source: telemetry topic that carries it.
        rule: how raw values become it:
            `rate`: increase of a counter per second, summed over sources (several `fields` = first one present wins,
            later ones mark the value censored);
            `mean` / `max`: over the step per source, then `over_sources`;
            `ratio`: fields[0] / fields[1] per sample (a part of a whole), then mean over the step;
            `miss_ratio`: 1 - increase(fields[0]) / increase(fields[1]), increases summed over sources;
            `p95`: 95th percentile of the increase of the histogram `fields[0]`, merged over sources.
        fields: names in the record's `values` (or `hist`).
        over_sources: sum | mean | max.
        lower, upper: physical bounds of the *raw* value, for the range check; None = open.
        forecast: whether it is forecast of a workload without demand; a state or a fault of a device is not.
    """

    name: str
    unit: str
    level: int
    source: Source
    rule: Literal["rate", "mean", "max", "ratio", "miss_ratio", "p95"]
    fields: tuple[str, ...]
    over_sources: Literal["sum", "mean", "max"] = "sum"
    lower: float | None = 0.0
    upper: float | None = None
    forecast: bool = True


ARRIVAL_RATE = "request.arrival_rate"
UNCACHED_PROMPT_RATE = "request.uncached_prompt_token_rate"
# Fields that show whether an exporter is stuck: while requests run, the count of generated tokens grows.
RUNNING, GENERATED = "num_requests_running", "generation_tokens_total"

DEFAULT_CATALOGUE: tuple[Indicator, ...] = (
    Indicator(ARRIVAL_RATE, "1/s", 1, "requests", "rate", ("requests_started_total", "requests_finished_total")),
    Indicator("request.prompt_token_rate", "1/s", 1, "requests", "rate", ("prompt_tokens_total",)),
    Indicator("request.output_token_rate", "1/s", 1, "requests", "rate", ("generation_tokens_total",)),
    Indicator("engine.running", "1", 2, "requests", "mean", ("num_requests_running",)),
    Indicator("engine.waiting", "1", 2, "requests", "mean", ("num_requests_waiting",)),
    Indicator("engine.waiting_max", "1", 2, "requests", "max", ("num_requests_waiting",)),
    Indicator("engine.kv_cache_usage_ratio", "1", 2, "requests", "max", ("kv_cache_usage_ratio",), "mean", upper=1.0),
    Indicator("slo.miss_ratio", "1", 2, "requests", "miss_ratio", ("slo_good_total", "slo_total")),
    Indicator("request.ttft_p95_s", "s", 2, "requests", "p95", ("ttft_s",)),
    Indicator("request.tpot_p95_s", "s", 2, "requests", "p95", ("tpot_s",)),
    Indicator(UNCACHED_PROMPT_RATE, "1/s", 2, "requests", "rate", ("uncached_prompt_tokens_total",)),
    Indicator("engine.inter_token_s", "s", 2, "requests", "mean", ("inter_token_s",), "mean"),
    Indicator("engine.preemption_rate", "1/s", 2, "requests", "rate", ("preemptions_total",)),
    Indicator("gpu.utilization_ratio", "1", 3, "gpu", "mean", ("sm_active_ratio",), "mean", upper=1.0),
    Indicator("gpu.tensor_active_ratio", "1", 3, "gpu", "mean", ("tensor_active_ratio",), "mean", upper=1.0),
    Indicator("gpu.memory_used_ratio", "1", 3, "gpu", "ratio", ("memory_used_bytes", "memory_total_bytes"), "mean"),
    Indicator("gpu.power_w", "W", 3, "gpu", "mean", ("power_w",), "sum"),
    Indicator("gpu.temperature_c", "Cel", 3, "gpu", "mean", ("temperature_c",), "mean", lower=-50.0, upper=150.0),
    Indicator("gpu.sm_clock_mhz", "MHz", 3, "gpu", "mean", ("sm_clock_mhz",), "mean", forecast=False),
    Indicator("gpu.throttled_ratio", "1", 3, "gpu", "mean", ("throttled_ratio",), "mean", upper=1.0, forecast=False),
    Indicator("gpu.energy_w", "W", 3, "gpu", "rate", ("energy_total_j",), forecast=False),
    Indicator("gpu.ecc_error_rate", "1/s", 3, "gpu", "rate", ("ecc_errors_total",), forecast=False),
    Indicator("gpu.xid_code", "1", 3, "gpu", "max", ("xid_code",), "max", forecast=False),
)


def of_source(catalogue: tuple[Indicator, ...], source: Source) -> tuple[Indicator, ...]:
    """The indicators of one telemetry topic, in catalogue order.

    >>> [indicator.name for indicator in of_source(DEFAULT_CATALOGUE, "gpu")][:2]
    ['gpu.utilization_ratio', 'gpu.tensor_active_ratio']
    """
    return tuple(i for i in catalogue if i.source == source)
