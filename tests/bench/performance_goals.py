"""What was aimed at, and what the stored results say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from infra.lab.bench.scale import workload_us

Results = Callable[[str], Mapping[str, Any]]


class Goal(NamedTuple):
    """One line of the list."""

    what: str
    aimed_at: str
    measured: str
    kept: bool


def goals(results: Results) -> list[Goal]:
    """All of them, kept or not.

    Args:
        results: gives the stored document of a bench by its file's name.
    """
    return [*_ingest(results("ingest")["results"]), *_answers(results), *_sizes(results)]


def _ingest(forms: Mapping[str, Any]) -> list[Goal]:
    single, packed = forms["single"]["subjects"], forms["packed"]["subjects"]
    rate = single["harmony"]["samples_per_s"]["median"]
    beside, fetched = single["harmony"]["ratio"]["median"], forms["binary"]["subjects"]["harmony"]["ratio"]["median"]
    runs = zip(packed["harmony"]["runs"], packed["confluent loop"]["runs"], strict=True)
    confluent = median(other["wall_s"] / mine["wall_s"] for mine, other in runs)
    return [
        Goal("one JSON record per sample", "200,000 samples/s", f"{rate:,.0f}", rate >= 200_000),
        Goal("the same, × the aiokafka loop by hand", "0.95", f"{beside:.2f}", beside >= 0.95),
        Goal("JSON columns, × the confluent loop by hand", "1.3", f"{confluent:.2f}", confluent >= 1.3),
        Goal("binary columns, of the fetch ceiling", "0.5", f"{fetched:.2f}", fetched >= 0.5),
    ]


def _answers(results: Results) -> list[Goal]:
    slowest = next(r for r in results("latency")["results"] if r["subject"] == "harmony" and r["workloads"] == 1_000)[
        "p99_ms"
    ]
    plan = next(
        f["wall_s"]["median"]
        for f in results("plan")["results"]["fleets"]
        if f["workloads"] == 10_000 and f["threads"] == 2
    )
    back = next(r for r in results("recovery-10000")["results"] if r["workloads"] == 10_000)["last_s"]
    return [
        Goal("tick to decision, 1,000 workloads, 5,000 samples/s, p99", "200 ms", f"{slowest:,.0f} ms", slowest <= 200),
        Goal("planning 10,000 workloads on two cores", "1 s", f"{plan:.2f} s", plan <= 1),
        Goal("kill -9 to the last of 10,000 workloads' decisions", "8 s", f"{back:.1f} s", back <= 8),
    ]


def _sizes(results: Results) -> list[Goal]:
    scale = results("scale")["results"]
    slope, planned = scale["kb_per_workload"][-1], scale["planned"]["kb_per_workload"][-1]
    bare, whole = ([workload_us(fleet) for fleet in its["fleets"]] for its in (scale, scale["planned"]))
    read = [f["ingest_us_per_sample"]["median"] for f in scale["fleets"]]
    growth = max(_growth(whole), _growth(read))
    eager = min(
        1 / r["of_eager"] for r in results("inference")["results"] if r["subject"] == "network" and r["windows"] > 1
    )
    return [
        Goal("memory of a further workload, both rings", "24 KB", f"{slope * 1.024:.1f} KB", slope * 1.024 <= 24),
        Goal("... of one that is planned and decided", "24 KB", f"{planned * 1.024:.1f} KB", planned * 1.024 <= 24),
        Goal(
            "CPU per workload or sample, dearest over cheapest fleet of 100 to 100,000",
            "1.3 ×",
            f"{growth:.2f} ×",
            growth <= 1.3,
        ),
        Goal("... of the workloads' bookkeeping alone", "1.3 ×", f"{_growth(bare):.2f} ×", _growth(bare) <= 1.3),
        Goal("the network in batches on a CPU, × eager PyTorch", "2", f"{eager:.1f}", eager >= 2),
    ]


def _growth(costs: Sequence[float]) -> float:
    """The dearest over the cheapest."""
    return max(costs) / min(costs)
