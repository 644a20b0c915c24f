"""The operating half of the command line: look at decisions, explain one, and give the fleet orders through the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from agents.decide.records import decode_command, decode_decision
from agents.records import Command, Decision
from infra.console.errors import HarmonyError
from infra.console.output import output
from infra.console.text import nearest, printable
from infra.explain import dead_letters as letters
from infra.explain.views import (
    decision_line,
    explanation,
    newest_by_workload,
    newest_commands,
    status_rows,
    status_table,
)
from infra.kafka.operator import parse_duration_ms, publish, word
from infra.kafka.tail import TailRecord, TopicTail
from infra.operate.options import Override, Place, emit
from streams.records.schema import DEAD_LETTER_CODES

_WATCH_S = 2.0
# Problems are looked for less often than decisions: each time takes connections of its own.
_LOOKS_PER_PROBLEMS = 5


def decisions_of(records: Iterable[TailRecord]) -> list[Decision]:
    """The decisions among the records; anything else on the topic is passed over."""
    return [d for d in (_decision(r) for r in records) if d is not None]


def commands_of(records: Iterable[TailRecord]) -> list[Command]:
    """The commands among the records; anything else on the topic is passed over."""
    commands = []
    for r in records:
        try:
            commands.append(decode_command(r.value or b""))
        except msgspec.MsgspecError:
            continue
    return commands


def find_decision(stretches: Iterable[Iterable[TailRecord]], query: str) -> Decision:
    """The decision whose id starts with `query` (six digits or more), or the newest one of the workload of that name.

    Raises:
        HarmonyError: none, or several ids that start so.
    """
    digits = query.lower() if len(query) >= 6 and set(query.lower()) <= set("0123456789abcdef") else None
    for stretch in stretches:
        decisions = decisions_of(stretch)
        matches = newest_by_workload(d for d in decisions if d.workload == query)
        if matches:
            return matches[query]
        hits = {d.decision_id: d for d in decisions if digits and d.decision_id.startswith(digits)}
        if len(hits) > 1:
            raise HarmonyError(
                f"{len(hits)} decisions start with {query}: {', '.join(sorted(hits)[:5])}. Give more digits.", 2
            )
        if hits:
            return next(iter(hits.values()))
    raise HarmonyError(
        f"No decision and no workload is called {printable(query, 64)!r}. `harmony status` lists both; "
        "ids may be cut to six digits, decisions are kept for 30 days."
    )


def newest_decisions(
    stretches: Iterable[Iterable[TailRecord]], enough: Callable[[Mapping[str, Decision]], bool] = lambda _: False
) -> dict[str, Decision]:
    """The newest decision of each workload, from stretches back from the end.

    Args:
        enough: true when no older stretch need be read; without it, until one shows no workload for the first time.
    """
    newest: dict[str, Decision] = {}
    for stretch in stretches:
        merged = newest_by_workload([*decisions_of(stretch), *newest.values()])
        if newest and len(merged) == len(newest):
            break
        newest = merged
        if newest and enough(newest):
            break
    return newest


def stranger(workload: str, declared: Collection[str], newest: Mapping[str, Decision]) -> str | None:
    """A sentence about a workload that is neither declared nor decided about; None for one that is."""
    workload_ids = {*declared, *(w for w, d in newest.items() if d.action != "retired")}
    if workload in workload_ids:
        return None
    return printable(f"Nobody knows a workload {workload!r} yet{nearest(workload, workload_ids)}.")


def show_status(place: Place, *, watch: bool, as_json: bool) -> None:
    """Print the newest decision and lease of every workload, and problems; with `watch` every two seconds."""
    with place.tail(place.topics.decisions) as decided, place.tail(place.topics.commands) as ordered:
        sentences: list[str] = []
        looks = 0

        def look() -> tuple[list[dict[str, Any]], list[str]]:
            nonlocal sentences, looks
            if looks % _LOOKS_PER_PROBLEMS == 0:
                sentences = list(place.problems().sentences())
            looks += 1
            return _status_rows(decided, ordered), sentences

        if as_json:
            while True:
                rows, problems = look()
                emit({"workloads": rows, "problems": problems})
                if not watch:
                    return
                time.sleep(_WATCH_S)
        console = output()
        if not watch:
            console.print(_status(*look()))
            return
        with Live(_status(*look()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_WATCH_S)
                live.update(_status(*look()), refresh=True)


def _status(rows: list[dict[str, Any]], sentences: Iterable[str]) -> Group:
    return Group(status_table(rows), *(Text(f"! {sentence}", style="yellow") for sentence in sentences))


def show_explanation(place: Place, query: str, *, as_json: bool) -> None:
    """Print why a decision is what it is, and what is wrong with the workload's telemetry now."""
    with place.tail(place.topics.decisions) as tail:
        decision = find_decision(tail.back(), query)
    if as_json:
        emit(msgspec.to_builtins(decision))
        return
    output().print(explanation(decision))
    for sentence in place.problems().sentences(decision.workload):
        output().print(Text(f"! now: {sentence}", style="yellow"))


class ChangeFilter:
    """Lets a decision pass that differs from the one before of its workload: in the count, the mode, or by an end."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[object, ...]] = {}

    def __call__(self, d: Decision) -> bool:
        count = d.replicas.final if d.replicas.final is not None else d.replicas.current
        here = count, d.mode, d.action == "retired"
        before = self._newest.get(d.workload)
        self._newest[d.workload] = here
        return before is None or before != here


def show_decisions(
    place: Place, *, follow: bool, workload: str | None, limit: int, as_json: bool, changes: bool = False
) -> None:
    """Print the newest decisions, one per line, oldest first, and go on with new ones.

    Args:
        changes: only those that differ from the one before of their workload.
    """

    def show(d: Decision) -> None:
        if as_json:
            emit(msgspec.to_builtins(d))
        else:
            typer.echo(decision_line(d))

    with place.tail(place.topics.decisions) as tail:
        newest: list[Decision] = []
        shown: list[Decision] = []
        passes = ChangeFilter()
        for stretch in tail.back() if limit else ():
            newest = [d for d in decisions_of(stretch) if workload in (None, d.workload)] + newest
            newest.sort(key=lambda d: (d.origin_ts_ms, d.workload))
            # Of the oldest one read it is not known whether it differs, so one more is looked for.
            passes = ChangeFilter()
            shown = [d for d in newest if passes(d)] if changes else newest
            if len(shown) > limit if changes else len(shown) >= limit:
                break
        if workload is not None and limit and not newest:
            by_workload = newest_decisions(tail.back())
            typer.echo(
                stranger(workload, place.declared, by_workload) or f"No decision for {printable(workload)} yet.",
                err=True,
            )
        for d in shown[-limit:] if limit else ():
            show(d)
        for record in tail.follow() if follow else ():
            new = _decision(record)
            if new is not None and workload in (None, new.workload) and (passes(new) or not changes):
                show(new)


def beyond_bounds(replicas: int, bounds: tuple[int, int] | None) -> str:
    """What to say of a pin outside the declared bounds; "" for one within, or where none are declared.

    >>> beyond_bounds(20, (1, 16)), beyond_bounds(4, (1, 16))
    (', above the declared maximum of 16: a pin wins over bounds', '')
    """
    if bounds is None or bounds[0] <= replicas <= bounds[1]:
        return ""
    low, high = bounds
    which = f"above the declared maximum of {high}" if replicas > high else f"below the declared minimum of {low}"
    return f", {which}: a pin wins over bounds"


_DONE = {
    "unpin": "no longer pinned",
    "pause": "paused: leases run out, nothing is scaled",
    "resume": "resumed",
}


def override(asked: Override, brokers: str | None, config: Path | None) -> None:
    """Order it through Kafka.

    Raises:
        HarmonyError: no duration, or it cannot be published.
    """
    if asked.action != "pin":
        order(Place(brokers, config), asked.action, asked.workload, asked.reason, _DONE[asked.action])
        return
    duration_ms, place = parse_duration_ms(asked.duration), Place(brokers, config)
    beyond = beyond_bounds(asked.replicas, place.bounds.get(asked.workload or ""))
    done = f"pinned at {asked.replicas} for {asked.duration}{beyond}"
    order(place, "pin", asked.workload, asked.reason, done, duration_ms, replicas=asked.replicas)


def override_here(asked: Override, file: Path | None, config: Path | None) -> None:
    """The same by the actuators of this host alone, and without Kafka.

    Raises:
        HarmonyError: it is about one workload where only all can be meant, or cannot be stored.
    """
    from infra.actuate import overrides

    action, workload, reason = asked[:3]
    if action == "pin" and workload is not None:
        _pin_here(workload, asked, file, config)
    elif action == "unpin" and workload is not None:
        overrides.unpin(workload, file, config)
    elif workload is not None:
        raise HarmonyError(
            f"--here pauses all workloads of this host; to hold one, `harmony pin {printable(workload, 64)} N --here`.",
            2,
        )
    elif action == "pause":
        overrides.stop(reason, file, config)
    else:
        overrides.resume(file, config)


def _pin_here(workload: str, asked: Override, file: Path | None, config: Path | None) -> None:
    from infra.actuate import overrides
    from infra.settings.load import load_settings

    overrides.pin(workload, asked.replicas, asked.duration, asked.reason, file, config)
    bounds = {spec.id: (spec.min_replicas, spec.max_replicas) for spec in load_settings(config).policy.workloads}
    beyond = beyond_bounds(asked.replicas, bounds.get(workload))
    held = f"the actuators of this host hold {asked.replicas} replicas for {asked.duration}"
    typer.echo(f"{printable(workload)}: {held}{beyond}", err=True)
    problem = stranger(workload, bounds, {}) if bounds else None
    if problem:
        typer.echo(f"{problem} Actuators only touch declared workloads.", err=True)


def order(
    place: Place,
    action: str,
    workload: str | None,
    reason: str,
    done: str,
    duration_ms: int | None = None,
    **settings: Any,
) -> None:
    """Publish an operator's word; `done` is what to say afterwards.

    A word about a workload of which nothing was heard yet is published, too, for it may be about to come.

    Raises:
        HarmonyError: it cannot be ordered, or not published; a workload that nobody knows would be made to act.
    """
    with place.tail(place.topics.decisions) as tail:
        newest = newest_decisions(tail.back(64), lambda n: workload is None or workload in {*place.declared, *n})
    # The fleet's own time, which an accelerated run keeps in the past. Without one, now.
    now_ms = max((d.origin_ts_ms for d in newest.values()), default=time.time_ns() // 1_000_000)
    problem = None if workload is None else stranger(workload, place.declared, newest)
    if problem and settings.get("mode") == "act":
        raise HarmonyError(f"{problem} Declare it in harmony.yaml before it may act; nothing was ordered.", 2)
    until = {} if duration_ms is None else {"until_ts_ms": now_ms + duration_ms}
    control = word(action, workload, now_ms, reason=reason, **until, **settings)
    publish(control, place.brokers, place.topics.controls, place.security)
    who = "the fleet" if workload is None else printable(workload)
    typer.echo(f"{who}: {done} (order {control.control_id})", err=True)
    if problem:
        typer.echo(f"{problem} The order is kept for it.", err=True)


def _status_rows(decided: TopicTail, ordered: TopicTail) -> list[dict[str, Any]]:
    newest = newest_decisions(decided.back())
    commands: dict[str, Command] = {}
    for stretch in ordered.back():
        commands = newest_commands([*commands_of(stretch), *commands.values()])
        if newest.keys() <= commands.keys():
            break
    return status_rows({w: d for w, d in newest.items() if d.action != "retired"}, commands)


def _decision(record: TailRecord) -> Decision | None:
    try:
        return decode_decision(record.value or b"")
    except msgspec.MsgspecError:
        return None


# `harmony dlq`: look at refused records, and send them again.


def show_letters(place: Place, limit: int, reason: str | None, topic: str | None, *, as_json: bool) -> None:
    """Print the newest dead letters, oldest first."""
    views = _letters(place, limit, reason, topic)
    if as_json:
        emit({"dead_letters": [x.to_dict() for x in views]})
    else:
        output().print(letters.letters_table(views))


def replay_letters(
    place: Place, limit: int, reason: str | None, topic: str | None, *, dry_run: bool, as_json: bool
) -> None:
    """Send dead letters to their topics again, and say how many."""
    views = _letters(place, limit, reason, topic)
    topics = place.topics
    ours = (topics.telemetry_gpu, topics.telemetry_requests, topics.telemetry_raw)
    sent = 0 if dry_run else letters.replay(views, ours, place.brokers, place.security)
    if as_json:
        emit({"found": len(views), "sent": sent})
    elif dry_run:
        output().print(letters.letters_table(views))
    else:
        typer.echo(f"{sent} of {len(views)} dead letters sent again")


def _letters(place: Place, limit: int, reason: str | None, topic: str | None) -> list[letters.DeadLetterView]:
    if reason is not None and reason not in (codes := (*DEAD_LETTER_CODES, letters.UNUSED)):
        near = nearest(reason, codes)
        raise HarmonyError(f"--reason: nothing is refused as {printable(reason, 32)!r}{near}.", 2)
    views: list[letters.DeadLetterView] = []
    with place.tail(place.topics.dead_letters) as tail:
        for stretch in tail.back():
            views = letters.chosen((letters.read_letter(r) for r in stretch), reason, topic) + views
            if len(views) >= limit:
                break
    return views[-limit:]
