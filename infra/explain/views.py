"""What operators read: the newest decisions as a table, one decision in plain words, decisions as lines."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from agents.records import Command, Decision, ForecastView, JumpsAhead, PromiseCapacity, Quantiles, SurgeAhead
from infra.console.output import FittedTable, TableColumn
from infra.console.text import printable
from streams.catalogue import ARRIVAL_RATE

# Which promise of the SLO gives way first, in words: for `harmony explain` and the page.


_NAMES = {"ttft": "TTFT", "tpot": "TPOT"}
# Factor on the work of a request from which on it is told.
_HEAVIER_TOLD = 1.1


def load_unit(decision: Decision) -> str:
    """What load and capacity are counted in."""
    return "req/s" if decision.forecast.indicator == ARRIVAL_RATE else "tokens/s"


def promise_lines(decision: Decision) -> list[str]:
    """`TPOT gives way first: a replica keeps it up to 2.1 req/s (1.9 to 2.4), TTFT up to 3 (2.6 to 3.9)`, if known.

    And by what share of requests each is expected to be missed.
    """
    unit = load_unit(decision)
    match decision.risk.promises:
        case [only]:
            other = next(name for promise, name in _NAMES.items() if promise != only.promise)
            limit_text = f"a replica keeps it {_up_to(only, unit)}"
            summary = f"{_name(only)} gives way first: {limit_text}; {other} is not known to have been missed"
        case [first, second] if _surely(first, second):
            limit_text = f"a replica keeps it {_up_to(first, unit)}"
            summary = f"{_name(first)} gives way first: {limit_text}, {_name(second)} {_up_to(second)}"
        case [first, second]:
            limit_text = f"a replica keeps {_name(first)} {_up_to(first, unit)}"
            summary = f"it is not clear which promise gives way first: {limit_text}, {_name(second)} {_up_to(second)}"
        case _:
            return []
    missed = ", ".join(f"{_name(one)} by {100 * one.miss_share:.2f} %" for one in decision.risk.promises)
    return [f"{summary}; missed at the expected peak: {missed}"]


_BINDINGS = {"tpot": "the time per token", "kv_cache": "the cache"}


def work_lines(decision: Decision) -> list[str]:
    """`a request: 1,150 prompt and 246 generated tokens, 0.31 s of a replica; the time per token binds first`."""
    work = decision.work
    if work is None:
        return []
    tokens = f"{work.prompt_tokens:,.0f} prompt and {work.output_tokens:,.0f} generated tokens"
    limit = f"{_BINDINGS[work.binding]} reaches its limit first, at {100 * work.utilization:.0f} % utilization"
    lines = [f"a request: {tokens}, {work.work_s:.3g} s of a replica; {limit}"]
    if work.heavier_ratio is not None and work.heavier_ratio > _HEAVIER_TOLD:
        lines.append(f"requests may become {work.heavier_ratio:.3g} times as heavy in that time (p95)")
    if work.contradiction is not None:
        lines.append(f"counters contradict each other ({work.contradiction}); nothing is learned of the engines")
    return lines


def _surely(first: PromiseCapacity, second: PromiseCapacity) -> bool:
    """Whether the middle of neither lies within what is believed possible of the other."""
    (_, middle, high), (low, other, _) = _low_middle_high(first), _low_middle_high(second)
    return middle < low and high < other


def _up_to(one: PromiseCapacity, unit: str = "") -> str:
    low, middle, high = _low_middle_high(one)
    return f"up to {middle:.3g}{' ' if unit else ''}{unit} ({low:.3g} to {high:.3g})"


def _low_middle_high(one: PromiseCapacity) -> tuple[float, float, float]:
    values = one.capacity.values
    return values[0], values[len(values) // 2], values[-1]


def _name(one: PromiseCapacity) -> str:
    return _NAMES[one.promise]


_ARROWS = {"up": "▲", "down": "▼", "hold": "=", "retired": "×"}

GUARD_MEANINGS = {
    "pin": "an operator has pinned the replicas",
    "kill_switch": "scaling is paused",
    "mode": "observed only",
    "expired": "the plan was read too late",
    "warm_up": "too little has been observed so far",
    "silent": "no telemetry arrives",
    "horizon": "the lead time is longer than forecasts reach",
    "plan_full": "the plans of its partition had no room for it",
    "no_fleet_facts": "nobody says how many replicas run",
    "retired": "the workload is gone",
    "fence": "a newer decision exists",
    "freshness": "the telemetry is old",
    "coverage": "too few sources speak",
    "zero_after_nonzero": "a sudden zero is not believed",
    "cliff": "a sudden fall is not believed",
    "flat": "a frozen value is not believed",
    "censored": "only completed requests are counted",
    "missing_metric": "silent sources count as loaded",
    "bounds": "the declared minimum and maximum",
    "fleet_budget": "the fleet's GPU budget",
    "fleet_power": "the fleet's power ceiling",
    "fleet_floor": "the fleet's minimum",
    "step_limit": "how fast it may change",
    "removal_limit": "removals per minute of the fleet",
    "stabilization": "the largest recent proposal counts",
    "tolerance": "too small a change",
    "model_guard": "never below what the load needs now",
    "reclaim": "workloads of higher priority lack GPUs",
    "first_request": "requests wait and no replica is there",
    "batch": "work with deadlines",
    "schedule": "the calendar or a known event",
    "fallback": "no proposal was made",
}


def low_maximum(d: Decision) -> int | None:
    """The declared maximum, where it lies below the replicas that are ready and takes some of them away; else None."""
    ready, final = d.replicas.ready, d.replicas.final
    if ready is None or final is None or final >= ready:
        return None
    step = next((step for step in reversed(d.guards) if step.guard == "bounds" and step.after < step.before), None)
    if step is not None:
        return step.after if step.after == final else None
    return final if d.proposer == "maximum" and d.replicas.proposed == final else None


def low_maximum_text(d: Decision) -> str | None:
    """A warning in words; None where there is nothing to warn of."""
    most = low_maximum(d)
    if most is None:
        return None
    return (
        f"the declared maximum of {most} is below the {d.replicas.ready} replicas that are ready: the bound takes "
        "replicas away, not a lack of load; check replicas.max"
    )


def surge_text(surge: SurgeAhead) -> str:
    """What a plan expects to come again: `a surge of every hour expected at 14:00:00Z, ...`."""
    period, length = (_span(seconds) for seconds in (surge.period_s, surge.length_s))
    when = datetime.fromtimestamp(surge.start_ts_ms / 1000, UTC).strftime("%H:%M:%SZ")
    comes = (
        f"under way since {when}" if surge.begun else f"expected at {when} with probability {_percent(surge.chance)}"
    )
    return (
        f"a surge every {period} is {comes}: {surge.arrival_rate:.3g} requests/s more for {length}, "
        f"came {surge.seen} of {surge.due} times"
    )


def jumps_text(jumps: JumpsAhead) -> str:
    """What a plan expects of jumps that no forecast has in it."""
    often = f"{jumps.per_hour:.2g} an hour" if jumps.per_hour >= 1.0 else f"one in {1 / jumps.per_hour:.2g} h"
    more = f"{jumps.arrival_rate:.3g} requests/s more"
    return f"jumps that nothing foretells come {often}, {more} ({jumps.seen} remembered)"


def expected_lines(forecast: ForecastView) -> list[str]:
    """What a plan expects beyond its forecast, a sentence each."""
    lines = [] if forecast.surge is None else [surge_text(forecast.surge)]
    return lines if forecast.jumps is None else [*lines, jumps_text(forecast.jumps)]


def newest_by_workload(decisions: Iterable[Decision]) -> dict[str, Decision]:
    """The decision with the newest origin of each workload, workloads sorted."""
    newest: dict[str, Decision] = {}
    for d in decisions:
        if d.workload not in newest or d.origin_ts_ms > newest[d.workload].origin_ts_ms:
            newest[d.workload] = d
    return dict(sorted(newest.items()))


def newest_commands(commands: Iterable[Command]) -> dict[str, Command]:
    """The command with the highest epoch and sequence of each workload."""
    newest: dict[str, Command] = {}
    for c in commands:
        previous = newest.get(c.workload)
        if previous is None or (c.epoch, c.sequence) > (previous.epoch, previous.sequence):
            newest[c.workload] = c
    return newest


def status_rows(decisions: dict[str, Decision], commands: dict[str, Command]) -> list[dict[str, Any]]:
    """`harmony status --json`: one object per workload.

    `event_ts_ms` is the newest origin of all: a lease has run out when it does not lie beyond it.
    """
    event_ts_ms = max((d.origin_ts_ms for d in decisions.values()), default=0)
    rows = []
    for workload, d in decisions.items():
        command = commands.get(workload)
        lease = None
        if command is not None:
            lease = {
                "command_id": command.command_id,
                "replicas": command.replicas,
                "valid_until_ts_ms": command.valid_until_ts_ms,
                "in_force": command.valid_until_ts_ms > event_ts_ms,
            }
        rows.append(
            {
                "workload": workload,
                "mode": d.mode,
                "action": d.action,
                "reason": d.reason,
                "replicas": msgspec.to_builtins(d.replicas),
                "p_miss": _p_miss(d),
                "epsilon": d.risk.epsilon,
                "decision_id": d.decision_id,
                "origin_ts_ms": d.origin_ts_ms,
                "behind_ms": event_ts_ms - d.origin_ts_ms,
                "command": lease,
            }
        )
    return rows


def status_table(rows: list[dict[str, Any]]) -> FittedTable:
    """A row per workload; a narrow terminal shows fewer columns."""
    columns = [
        TableColumn("workload"), TableColumn("mode", 2), TableColumn("replicas"), TableColumn("decision", wraps=True),
        TableColumn("P(miss)", 1, right=True), TableColumn("lease", 3), TableColumn("id", 4),
    ]  # fmt: skip
    table = FittedTable(columns)
    for row in rows:
        r, lease = row["replicas"], row["command"]
        lease_text = "-" if lease is None else f"{lease['replicas']}" if lease["in_force"] else "run out"
        behind = f" ({row['behind_ms'] // 1000} s behind)" if row["behind_ms"] else ""
        table.rows.append(
            (
                Text(printable(row["workload"]), style="bold"),
                row["mode"],
                _change(r["current"], r["final"]),
                f"{_ARROWS.get(row['action'], '?')} {printable(row['reason']).replace('_', ' ')}{behind}",
                _percent(row["p_miss"]),
                Text(lease_text, style="" if lease and lease["in_force"] else "dim"),
                Text(row["decision_id"][:8], style="dim"),
            )
        )
    # Once for all of them, so that the rest fits into 80 columns.
    table.caption = f"decided for {_instant(max(row['origin_ts_ms'] for row in rows))}" if rows else "no decision yet"
    return table


def decision_line(d: Decision) -> str:
    """One decision on one line."""
    return (
        f"{_instant(d.origin_ts_ms)}  {printable(d.workload)}  {_ARROWS.get(d.action, '?')} {d.action} "
        f"{_change(d.replicas.current, d.replicas.final)}  {printable(d.reason)}  "
        f"P(miss) {_percent(_p_miss(d))}  {d.mode}  {d.decision_id[:8]}"
    )


def explanation(d: Decision) -> Group:
    """One decision in plain words: what, why, and what each guard said."""
    warning = low_maximum_text(d)
    evidence = [Text(f"warning: {warning}", style="yellow")] if warning is not None else []
    evidence += [Text(line) for line in _evidence(d)]
    # A line that does not fit goes on below its own beginning.
    lines: list[RenderableType] = [
        Text(_headline(d), style="bold"),
        Padding(Group(*evidence), (0, 0, 0, 2), expand=False),
    ]
    table = FittedTable([TableColumn("who"), TableColumn("replicas"), TableColumn("because", wraps=True)])
    if d.replicas.proposed is not None:
        table.rows.append(("proposal", str(d.replicas.proposed), f"by {printable(d.proposer or 'the planner')}"))
    for step in d.guards:
        change = str(step.after) if step.before == step.after else f"{step.before} → {step.after}"
        meaning = GUARD_MEANINGS.get(step.guard)
        why = printable(step.reason) if meaning is None else f"{meaning}: {printable(step.reason)}"
        table.rows.append((printable(step.guard), change, why))
    if not d.guards:
        table.rows.append(("guards", _count(d.replicas.final), "none objected"))
    return Group(*lines, Text(), table)


def _headline(d: Decision) -> str:
    now, final = d.replicas.current, d.replicas.final
    what = {
        "up": f"grows from {now} to {final} replicas",
        "down": f"shrinks from {now} to {final} replicas",
        "hold": "holds" if final is None else f"stays at {final} replicas",
        "retired": "is retired",
    }.get(d.action, d.action)
    if d.mode != "act" and d.action in ("up", "down"):
        what = what.replace("grows", "would grow").replace("shrinks", "would shrink")
    because = GUARD_MEANINGS.get(d.reason, f"proposed by {d.reason}")
    return f"{printable(d.workload)} {what} ({printable(because)})"


def _evidence(d: Decision) -> list[str]:
    lines = [f"decision {d.decision_id}, decided for {_instant(d.origin_ts_ms)}, mode {d.mode}"]
    risk = _p_miss(d)
    if risk is not None:
        stderr = "" if d.risk.p_miss_stderr is None else f" ± {_percent(d.risk.p_miss_stderr)}"
        lines.append(
            f"risk of missing {d.risk.objective:.2%} in SLO with {d.replicas.final} replicas: {_percent(risk)}{stderr}"
        )
        others = ", ".join(f"{n}: {_percent(p)}" for n, p in list(d.risk.p_miss.items())[:12])
        lines.append(f"risk by replicas: {others}")
    if d.risk.miss_price is not None and d.risk.miss_share:
        expected = ", ".join(f"{n}: {_percent(share)}" for n, share in list(d.risk.miss_share.items())[:12])
        lines.append(f"requests expected to miss: {expected}; the objective allows {_percent(1.0 - d.risk.objective)}")
        lines.append(f"a replica's worth of missed requests costs {d.risk.miss_price:.3g} replicas")
    if d.risk.classes:
        counts = ", ".join(f"{printable(c.name)}: {_count(c.replicas)}" for c in d.risk.classes)
        lines.append(f"replicas by SLO class: {counts}; risks are those of {printable(d.risk.slo_class or 'all')}")
    if d.risk.p_needed is not None:
        lines.append(f"a request comes before a replica could come back: {_percent(d.risk.p_needed)}")
    unit = load_unit(d)
    if d.forecast.peak is not None:
        window = "" if d.forecast.window_s is None else f" over {d.forecast.window_s:g} s"
        lines.append(f"forecast peak{window} ({d.forecast.source or 'unknown'}): {_quantiles(d.forecast.peak)} {unit}")
    lines += expected_lines(d.forecast)
    if d.capacity_per_replica is not None:
        lines.append(f"one replica carries {_quantiles(d.capacity_per_replica)} {unit}")
        lines += work_lines(d)
    lines += promise_lines(d)
    if d.lead_time_s is not None:
        starts = d.lead_time_starts
        origin = f"learned from {starts} start{'s' if starts != 1 else ''}" if starts else "as declared, no start yet"
        lines.append(f"a new replica serves after {_quantiles(d.lead_time_s)} s ({origin})")
    rate = "not observed" if d.inputs.arrival_rate is None else f"{d.inputs.arrival_rate:.4g} req/s"
    age = "unknown" if d.inputs.oldest_age_ms is None else f"{d.inputs.oldest_age_ms / 1000:.1f} s"
    lines.append(f"load {rate}, oldest source {age} old, {d.inputs.coverage_ratio:.0%} of the sources heard")
    if d.shadow:
        lines.append("others would say " + ", ".join(_other(d, rule, n) for rule, n in sorted(d.shadow.items())))
    lines.append("no command was published" if d.command_id is None else f"command {d.command_id}")
    return lines


def _other(d: Decision, rule: str, replicas: int) -> str:
    risk = d.risk.p_miss.get(str(replicas))
    return f"{printable(rule).replace('_', ' ')}: {replicas}" + ("" if risk is None else f" (risk {_percent(risk)})")


def _p_miss(d: Decision) -> float | None:
    return d.risk.p_miss.get(str(d.replicas.final))


def _quantiles(q: Quantiles) -> str:
    if not q.values:
        return "unknown"
    indices = sorted({0, len(q.values) // 2, len(q.values) - 1})
    return ", ".join(f"p{100 * q.levels[i]:g} {q.values[i]:.4g}" for i in indices)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.3g} %"


def _change(current: int | None, final: int | None) -> str:
    return _count(current) if current == final else f"{_count(current)} → {_count(final)}"


def _count(n: int | None) -> str:
    return "-" if n is None else str(n)


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _instant(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
