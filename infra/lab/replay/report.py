"""What a replay has found, as other programs read it and as people do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from infra.console.options import say
from infra.json_report import plain
from infra.lab.replay.calibration import pooled_interval, reliability
from infra.lab.replay.matrix import Bound, CellResult
from infra.lab.replay.prepare import Options
from infra.lab.replay.records import Row
from infra.replay.intervals import paired_interval, paired_windows

_BOUND: Final = ("attainment", "gpu_hours", "mean_replicas")


def as_json(result: CellResult, options: Options) -> dict[str, Any]:
    """The results as other programs read them."""
    return plain(
        {
            "trace": result.name,
            "slo": {
                "ttft_s": options.objective.ttft_s,
                "tpot_s": options.objective.tpot_s,
                "objective": options.share,
            },
            "lead_time_s": {
                "mean": options.lead_s,
                "sigma_log": options.lead_sigma_log,
                **({} if options.mixed_starts is None else {"mixed_starts": asdict(options.mixed_starts)}),
            },
            "profile": options.profile.name,
            "benchmark_rps": result.benchmark_rps,
            "policies": [asdict(row) for row in result.rows],
            "oracle": {
                "lead_constrained": {str(seed): asdict(b) for seed, b in result.oracle.items()},
                "free_moves": None if result.free_oracle is None else asdict(result.free_oracle),
                "rate_known": {str(seed): asdict(b) for seed, b in result.rate_known.items()},
                "causal": {str(seed): asdict(b) for seed, b in result.causal.items()},
            },
            "surprises_s": result.surprises_s,
            "tuning": {
                p: [{"params": str(t.choice), "attainment": t.attainment, "gpu_hours": t.gpu_hours} for t in trials]
                for p, trials in result.trials.items()
            },
            "against_hpa": _against(result.rows, "hpa"),
            "calibration": {
                p: {
                    "bins": [asdict(b) for b in reliability(risks)],
                    "stated": sum(s.p_miss for s in risks) / len(risks),
                    "realized_and_interval": pooled_interval(risks),
                }
                for p, risks in result.stated.items()
            },
        }
    )


def _against(rows: Sequence[Row], peer: str) -> dict[str, Any] | None:
    """95 % intervals of HARMONY minus a peer, paired by seed and by window of time; None without one of both."""
    ours = {r.seed: r for r in rows if r.policy == "harmony"}
    theirs = {r.seed: r for r in rows if r.policy == peer}
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    windows = paired_windows([ours[s].windows for s in seeds], [theirs[s].windows for s in seeds])
    by_seed = {
        name: paired_interval([getattr(ours[s], name) for s in seeds], [getattr(theirs[s], name) for s in seeds])
        for name in ("attainment", "gpu_hours")
        if len(seeds) > 1
    }
    return {**by_seed, "by_window": None if windows is None else windows._asdict()}


def mean_of(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def print_table(result: CellResult, share: float) -> None:
    """The policies, then the bounds; `share` is the objective."""
    bound = mean_of([b.gpu_hours for b in result.oracle.values()])
    table = Table(box=None, pad_edge=False, title=result.name)
    for heading in (
        "policy",
        "attainment",
        "worst window",
        "GPU-hours",
        "of oracle",
        "replicas",
        "switches/h",
        "tuned",
    ):
        table.add_column(heading, justify="left" if heading in ("policy", "tuned") else "right")
    for policy in dict.fromkeys(r.policy for r in result.rows):
        mine = [r for r in result.rows if r.policy == policy]
        n = len(mine)
        attained, hours = sum(r.attainment for r in mine) / n, sum(r.gpu_hours for r in mine) / n
        table.add_row(
            policy,
            f"{attained:.2%}" + ("" if attained >= share else " !"),
            f"{min(r.worst_window_attainment for r in mine):.2%}",
            f"{hours:.3f}",
            f"{hours / bound:.2f}" if bound else "",
            f"{sum(r.mean_replicas for r in mine) / n:.2f}",
            f"{sum(r.switches_per_hour for r in mine) / n:.1f}",
            mine[0].params,
        )
    free = [] if result.free_oracle is None else [result.free_oracle]
    known = list(result.rate_known.values())
    ready = [b.ready for b in result.causal.values()]
    bounds: dict[str, Sequence[Bound | None]] = {
        "oracle": [*result.oracle.values()][:1],
        "oracle, free moves": free,
        "oracle, rate known": known,
        "oracle, surprised": [b.unready for b in result.causal.values()],
        "oracle, surprised, ready": [] if None in ready else ready,
    }
    for name, found in bounds.items():
        if found:
            kept, hours, held = (mean_of([getattr(b, what) for b in found]) or 0.0 for what in _BOUND)
            table.add_row(
                name, f"{kept:.2%}", "", f"{hours:.3f}", f"{hours / bound:.2f}" if bound else "", f"{held:.2f}"
            )
    Console(width=150).print(table)
    harmony = [r for r in result.rows if r.policy == "harmony"]
    if harmony:
        say(
            f"holds of harmony by reason: {_shares(harmony, 'holds')}; "
            f"forecasts by source: {_shares(harmony, 'forecasts')}"
        )


def _shares(rows: Sequence[Row], what: str) -> str:
    total: dict[str, int] = {}
    for row in rows:
        for name, count in getattr(row, what).items():
            total[name] = total.get(name, 0) + count
    whole = max(1, sum(total.values()))
    return (
        ", ".join(f"{name} {count / whole:.0%}" for name, count in sorted(total.items(), key=lambda x: -x[1])) or "none"
    )
