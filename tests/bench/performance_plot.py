"""The picture of docs/lab/performance.md: rates beside rivals, latency, and what a larger fleet costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra.lab.plots import GREY, INK, PALETTE, pyplot, save

OURS, THEIRS = PALETTE[0], GREY
Results = Callable[[str], Mapping[str, Any]]


def draw(where: Path, results: Results) -> Path:
    """Four panels.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    plt = pyplot(where)
    figure, axes = plt.subplots(2, 2, figsize=(9.2, 6.4))
    _ingest(axes[0, 0], results("ingest")["results"])
    _latency(axes[0, 1], results("latency")["results"])
    _scale(axes[1, 0], results("scale")["results"])
    _recovery(axes[1, 1], [r for name in ("recovery", "recovery-10000") for r in results(name)["results"]])
    figure.tight_layout(h_pad=2.0, w_pad=2.0)
    return save(figure, where)


def _ingest(axis: Any, forms: Mapping[str, Any]) -> None:
    labels, rates, low, high, colours = [], [], [], [], []
    for form, measured in forms.items():
        for name, its in measured["subjects"].items():
            rate = its["samples_per_s"]
            labels.append(f"{form}: {name}")
            rates.append(rate["median"])
            low.append(rate["median"] - rate["min"])
            high.append(rate["max"] - rate["median"])
            colours.append(OURS if name == "harmony" else THEIRS)
    at = range(len(labels))
    axis.barh(at, rates, xerr=(low, high), color=colours, height=0.7, ecolor=INK, error_kw={"lw": 0.8})
    axis.set_yticks(at, labels, fontsize=7.5)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="samples/s, one process", title="Telemetry to acknowledged pages")
    axis.set_xticks([1e4, 1e5, 1e6], ["10,000", "100,000", "1 million"])
    axis.minorticks_off()
    axis.grid(visible=False, axis="y")


def _latency(axis: Any, measured: list[Mapping[str, Any]]) -> None:
    for subject, name, colour in (("harmony", "HARMONY", OURS), ("hpa_loop", "HPA loop by hand", THEIRS)):
        mine = [r for r in measured if r["subject"] == subject]
        fleets = [r["workloads"] for r in mine]
        axis.plot(fleets, [r["p99_ms"] for r in mine], "o-", color=colour, label=f"{name}, p99")
        axis.plot(fleets, [r["p50_ms"] for r in mine], "o--", color=colour, lw=1.0, ms=3, label=f"{name}, p50")
    axis.axhline(200, color=INK, lw=0.8, ls=":", label="aimed at with 1,000, p99")
    axis.set(xscale="log", yscale="log", ylim=(1, 2e4), xlabel="workloads", ylabel="ms")
    axis.set_title("Tick to decision, 5,000 samples/s")
    axis.set_xticks(fleets, [f"{n:,}" for n in fleets])
    axis.minorticks_off()
    axis.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axis.legend(fontsize=7, loc="upper left", ncols=2, columnspacing=1.0)


def _scale(axis: Any, measured: Mapping[str, Any]) -> None:
    planned, bare = measured["planned"]["fleets"], measured["fleets"]
    for fleets, key, name, colour in (
        (planned, "forecast_us_per_workload", "forecast and plan, per workload", OURS),
        (bare, "forecast_us_per_workload", "... without model and planner", PALETTE[8]),
        (planned, "decide_us_per_workload", "decide, per workload", PALETTE[2]),
        (bare, "ingest_us_per_sample", "ingest, per sample", PALETTE[1]),
    ):
        at = [f["workloads"] for f in fleets]
        middle = [f[key]["median"] for f in fleets]
        axis.plot(at, middle, "o-", color=colour, label=name)
        axis.fill_between(at, [f[key]["min"] for f in fleets], [f[key]["max"] for f in fleets], color=colour, alpha=0.2)
    axis.set(xscale="log", yscale="log", xlabel="workloads", ylabel="CPU µs", title="Cost of a slot as the fleet grows")
    axis.set_xticks(at, [f"{n:,}" for n in at])
    axis.set_ylim(5, 1.5e4)
    axis.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    axis.minorticks_off()
    axis.legend(fontsize=7, loc="upper left", ncols=2, columnspacing=1.0)


def _recovery(axis: Any, measured: list[Mapping[str, Any]]) -> None:
    at = range(len(measured))
    axis.bar([k - 0.18 for k in at], [r["first_s"] for r in measured], 0.34, color=PALETTE[8], label="first decision")
    axis.bar([k + 0.18 for k in at], [r["last_s"] for r in measured], 0.34, color=OURS, label="last workload's first")
    axis.set_xticks(at, [f"{r['workloads']:,}" for r in measured])
    axis.axhline(8, color=INK, lw=0.8, ls=":", label="aimed at with 10,000")
    axis.set(xlabel="workloads", ylabel="seconds from kill -9", title="Recovery")
    axis.grid(visible=False, axis="x")
    axis.legend(fontsize=7.5)
