"""Tables of what `harmony bench` measured, from the stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from infra.lab.bench.scale import slots_of
from tests.bench.markdown import conditions, table
from tests.bench.stored import results

_BASELINES = {"single": "aiokafka loop", "packed": "aiokafka loop", "binary": "fetch only"}
_LATENCIES = ("latency", "latency-10000", "latency-50000", "latency-network")
_ARRANGEMENTS = ("workers", "workers-1000")
_RECOVERIES = ("recovery", "recovery-10000")


def _range(figure: Mapping[str, float], digits: int = 0) -> str:
    return f"{figure['median']:,.{digits}f} ({figure['min']:,.{digits}f}–{figure['max']:,.{digits}f})"


def _ingest() -> str:
    found = results("ingest")
    job = found["job"]
    parts = [f"{conditions(found)}{job['samples']:,} samples, medians of {job['rounds']} rounds (range).\n"]
    for form, measured in found["results"].items():
        base, subjects = _BASELINES[form], measured["subjects"]
        headings = (
            f"{form} ({measured['bytes_per_sample']:.0f} bytes per sample)", "samples/s", "CPU µs per sample",
            "RSS MB", f"× {base}", "× by CPU",
        )  # fmt: skip
        rows = [
            (
                name,
                _range(its["samples_per_s"]),
                f"{its['cpu_us_per_sample']['median']:.2f}",
                f"{its['rss_mb']['median']:.0f}",
                f"{its['ratio']['median']:.2f}",
                f"{its['cpu_ratio']:.2f}",
            )
            for name, its in subjects.items()
        ]
        parts.append(table(headings, rows))
        if form == "packed" and "confluent loop" in subjects:
            parts.append(f"Beside the confluent loop: {_beside_confluent(subjects)}.\n")
    return "\n".join(parts)


def _beside_confluent(subjects: Mapping[str, Any]) -> str:
    pairs = list(zip(subjects["harmony"]["runs"], subjects["confluent loop"]["runs"], strict=True))
    ratios = [other["wall_s"] / mine["wall_s"] for mine, other in pairs]
    thrift = median(other["cpu_s"] / mine["cpu_s"] for mine, other in pairs)
    return f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) by rate, {thrift:.2f} by CPU"


def _plan() -> str:
    found = results("plan")
    fleets, check = found["results"]["fleets"], found["results"]["exhaustive"]
    rows = []
    for one in (f for f in fleets if f["threads"] == 1):
        two = next(f for f in fleets if f["threads"] == 2 and f["workloads"] == one["workloads"])
        rows.append(
            (
                f"{one['workloads']:,}",
                _range(one["cpu_s"], 2),
                f"{one['cpu_us_per_workload']['median']:.0f}",
                _range(two["wall_s"], 2),
            )
        )
    headings = ("workloads", "CPU seconds", "CPU µs per workload", "wall seconds, two threads")
    checked = sum(check[verdict] for verdict in ("same", "as_good", "wrong"))
    return (
        f"{conditions(found)}Medians of {found['job']['rounds']} rounds (range).\n\n{table(headings, rows)}\n"
        f"CPU grows {found['results']['growth_over_linear'][-1]:.2f} × as fast as the fleet. Of {checked} plans held "
        f"against all candidates, simulated on 16,384 independent\ndraws each, {check['same']} have the count that "
        f"trying all finds, {check['as_good']} one as good within the error of those draws, {check['wrong']} a worse "
        "one.\n"
    )


def _scale() -> str:
    found = results("scale")
    job, measured = found["job"], found["results"]
    rows = [*_fleets(measured, ""), *_fleets(measured["planned"], "planned")]
    headings = (
        "workloads", "", "ingest, µs per sample", "stage 2, µs per workload", "stage 3", "memory, MiB",
        "KiB per further workload",
    )  # fmt: skip
    return (
        f"{conditions(found)}Medians of {job['slots']} slots, with up to 1,000 workloads of "
        f"{slots_of(job['slots'], 1_000)}; where planned of {job['planned_slots']} and "
        f"{slots_of(job['planned_slots'], 1_000)}; CPU time.\n\n"
        f"{table(headings, rows)}"
    )


def _fleets(measured: Mapping[str, Any], how: str) -> list[tuple[str, ...]]:
    slopes = ["–", *(f"{kb:.1f}" for kb in measured["kb_per_workload"])]
    return [
        (
            f"{f['workloads']:,}",
            how,
            f"{f['ingest_us_per_sample']['median']:.1f}",
            f"{f['forecast_us_per_workload']['median']:.0f}",
            f"{f['decide_us_per_workload']['median']:.0f}" if how else "–",
            f"{f['resident_kb'] / 1024:,.0f}",
            slope,
        )
        for f, slope in zip(measured["fleets"], slopes, strict=True)
    ]


def _latency() -> str:
    measured = [results(name)["results"] for name in _LATENCIES]
    return f"{_latencies(measured)}\n{_latency_parts(measured)}\n{_sources(_LATENCIES)}"


def _latencies(runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    headings = (
        "workloads", "slots of", "samples/s", "forecasts by", "decided", "p50 / p99 ms", "an HPA loop by hand",
        "caught up with 72 slots after",
    )  # fmt: skip
    rows = []
    for measured in runs:
        for mine, beside in _with_rival(measured):
            rows.append(
                (
                    f"{mine['workloads']:,}",
                    f"{mine.get('step_ms', 5_000) / 1000:g} s",
                    f"{mine['samples_per_s']:,.0f}",
                    ", ".join(mine["forecasts"]),
                    "all" if mine["decisions"] == mine["expected"] else f"{mine['decisions']} of {mine['expected']}",
                    f"{mine['p50_ms']:,.0f} / {mine['p99_ms']:,.0f}",
                    f"{beside['p50_ms']:.0f} / {beside['p99_ms']:.0f}",
                    f"{mine['catch_up_s']:.0f} s",
                )
            )
    return table(headings, rows)


def _latency_parts(runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    headings = (
        "workloads", "samples/s", "tick to page, ms", "page to plan", "plan to decision", "a batch waits",
        "is forecast", "is planned",
    )  # fmt: skip
    rows = [
        (
            f"{mine['workloads']:,}",
            f"{mine['samples_per_s']:,.0f}",
            *(f"{part['p50_ms']:,.0f} / {part['p99_ms']:,.0f}" for part in mine["parts"].values()),
            *(f"{mean_ms:.0f}" for mean_ms in mine["batch_ms"].values()),
        )
        for measured in runs
        for mine, _ in _with_rival(measured)
        if "parts" in mine
    ]
    return table(headings, rows)


def _with_rival(measured: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """What HARMONY did with each fleet, and beside it the loop by hand."""
    rivals = {r["workloads"]: r for r in measured if r["subject"] != "harmony"}
    return ((mine, rivals[mine["workloads"]]) for mine in measured if mine["subject"] == "harmony")


def _workers() -> str:
    headings = (
        "workloads", "arrangement", "CPU µs per sample", "of one worker", "CPU, worker by worker", "partitions", "MiB",
        "p50 / p99 ms",
    )  # fmt: skip
    rows = [
        (
            f"{r['workloads']:,}",
            r["arrangement"],
            f"{r['cpu_us_per_sample']:.0f}",
            f"{r['cpu_us_per_sample'] / measured[0]['cpu_us_per_sample']:.2f}",
            ", ".join(f"{100 * share:.0f}" for share in r["cpu_share_by_worker"]) + " %",
            ", ".join(map(str, r["partitions_by_worker"])),
            ", ".join(map(str, r["resident_mib_by_worker"])),
            f"{r['p50_ms']:.0f} / {r['p99_ms']:.0f}",
        )
        for measured in (results(name)["results"] for name in _ARRANGEMENTS)
        for r in measured
    ]
    return f"{table(headings, rows)}\n{_sources(_ARRANGEMENTS)}"


def _sources(names: Sequence[str]) -> str:
    """Where the figures of several files stand, and how they were measured."""
    return "".join(f"* {_file(name)}: {conditions(results(name))}" for name in names)


def _recovery() -> str:
    rows = [
        (f"{r['workloads']:,}", f"{r['step_ms'] / 1000:g} s", f"{r['first_s']:.1f} s", f"{r['last_s']:.1f} s")
        for name in _RECOVERIES
        for r in results(name)["results"]
    ]
    headings = ("workloads", "slots of", "first decision", "last workload's first")
    return f"{table(headings, rows)}\n{_sources(_RECOVERIES)}"


def _inference() -> str:
    found = results("inference")
    by_size: dict[str, dict[int, Mapping[str, Any]]] = {}
    for r in found["results"]:
        by_size.setdefault(r["subject"], {})[r["windows"]] = r
    sizes = sorted(by_size["eager"])
    rows = [
        (
            subject,
            *(f"{its[n]['ms']['median']:,.2f}" for n in sizes),
            f"{its[sizes[-1]]['us_per_window']:,.0f}",
            " / ".join(f"{its[n]['of_eager']:.2f}" for n in sizes),
            f"{its[sizes[-1]]['over_floor']:.1f}",
        )
        for subject, its in by_size.items()
    ]
    headings = (
        "ms a call", *(f"{n:,} windows" if n > 1 else "1 window" for n in sizes), f"µs a window at {sizes[-1]:,}",
        "of eager", "over the floor",
    )  # fmt: skip
    job = found["job"]
    return f"{conditions(found)}{job['threads']} thread, medians of {job['rounds']}.\n\n{table(headings, rows)}"


def _file(name: str) -> str:
    return f"[{name}.json](../../tests/bench/results/{name}.json)"


def _ingest_short() -> str:
    forms = results("ingest")["results"]
    names = list(forms["single"]["subjects"])
    rows = []
    for form, words in (("single", "one JSON sample per record"), ("packed", "256 samples per JSON record")):
        subjects = forms[form]["subjects"]
        told = (subjects.get(name) for name in names)
        rows.append(
            (
                words,
                *(f"{s['cpu_us_per_sample']['median']:.1f} ({s['cpu_ratio']:.2f})" if s else "" for s in told),
            )
        )
    return table(("", *("HARMONY" if name == "harmony" else name for name in names)), rows)


def _latency_short() -> str:
    rows = []
    for mine, beside in _with_rival(results("latency")["results"]):
        both = [f"{r['p50_ms']:.0f} / {r['p99_ms']:.0f}" for r in (mine, beside)]
        rows.append((f"{mine['workloads']:,} workloads", *both))
    return table(("p50 / p99", "HARMONY", "a bare HPA loop by hand"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "ingest": _ingest,
    "ingest_short": _ingest_short,
    "plan": _plan,
    "scale": _scale,
    "latency": _latency,
    "latency_short": _latency_short,
    "workers": _workers,
    "recovery": _recovery,
    "inference": _inference,
}
