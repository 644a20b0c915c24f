"""The operating commands as a person types them. What they do is imported when one runs: help is there at once."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from infra.actuate.overrides import OverridesOption
from infra.console.errors import HarmonyError
from infra.console.options import BrokersOption, ConfigOption, JsonOption, print_json, replica_count, say
from infra.console.text import printable
from infra.operate.options import Brokers, Config, Json, Override, Place, plain_errors

Workload = Annotated[str, typer.Argument(help="Workload id, as in the telemetry.")]
MaybeWorkload = Annotated[str | None, typer.Argument(help="Workload id; none = the whole fleet.")]
Because = Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")]
Here = Annotated[
    bool,
    typer.Option("--here", help="By the actuators of this host alone: needs no Kafka, and holds while it is down."),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Newest ones.")]
Code = Annotated[str | None, typer.Option("--reason", help="Only these, such as schema.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only from this topic.")]


def register(app: typer.Typer) -> None:
    """Add the operating commands to the command line."""
    for command in (status, explain, decisions, pin, unpin, mode, pause, resume):
        app.command()(command)
    box = typer.Typer(help="Records that were refused.", no_args_is_help=True)
    box.command("list")(dlq_list)
    box.command("replay")(dlq_replay)
    app.add_typer(box, name="dlq")


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds.")] = False,
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Newest decision and lease of every workload, and what is wrong with telemetry."""
    with plain_errors():
        from infra.operate.commands import show_status

        show_status(Place(brokers, config), watch=watch, as_json=as_json)


def explain(
    decision: Annotated[str, typer.Argument(metavar="ID", help="Decision id (six digits or more), or a workload.")],
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Why a decision is what it is: evidence, and every guard's word."""
    with plain_errors():
        from infra.operate.commands import show_explanation

        show_explanation(Place(brokers, config), decision, as_json=as_json)


def decisions(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones.")] = False,
    changes: Annotated[bool, typer.Option("--changes", help="Only those that change a count or a mode.")] = False,
    workload: Annotated[str | None, typer.Option("--workload", "-w", help="Only of this one.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Of the newest ones, before following.")] = 20,
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """The newest decisions, one per line, oldest first."""
    with plain_errors():
        from infra.operate.commands import show_decisions

        show_decisions(
            Place(brokers, config), follow=follow, workload=workload, limit=limit, as_json=as_json, changes=changes
        )


def pin(
    workload: Workload,
    replicas: Annotated[int, typer.Argument(callback=replica_count, min=0, help="Replicas to hold.")],
    for_: Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 1d.")] = "1h",
    reason: Because = "",
    here: Here = False,
    words: OverridesOption = None,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Hold a workload at a replica count, whatever the guards say, bounds and pause included."""
    _override(Override("pin", workload, reason, replicas, for_), here, words, brokers, config)


def unpin(
    workload: Workload,
    reason: Because = "",
    here: Here = False,
    words: OverridesOption = None,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Let the guards decide again."""
    _override(Override("unpin", workload, reason), here, words, brokers, config)


def mode(
    workload: Workload,
    mode: Annotated[str, typer.Argument(metavar="act|observe", help="act publishes commands, observe does not.")],
    reason: Because = "",
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Switch a declared workload between acting and observing."""
    with plain_errors():
        from infra.operate.commands import order

        if mode not in ("act", "observe"):
            raise HarmonyError(f"The mode is act or observe, not {printable(mode, 32)!r}.", 2)
        order(Place(brokers, config), "mode", workload, reason, f"set to {mode}", mode=mode)


def pause(
    workload: MaybeWorkload = None,
    reason: Because = "",
    here: Here = False,
    words: OverridesOption = None,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """The kill switch: publish no commands, for one workload or for all. Pins still count."""
    _override(Override("pause", workload, reason), here, words, brokers, config)


def resume(
    workload: MaybeWorkload = None,
    reason: Because = "",
    here: Here = False,
    words: OverridesOption = None,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Undo pause."""
    _override(Override("resume", workload, reason), here, words, brokers, config)


def _override(asked: Override, here: bool, words: Path | None, brokers: str | None, config: Path | None) -> None:
    with plain_errors():
        from infra.operate.commands import override, override_here

        if here or words:
            override_here(asked, words, config)
        else:
            override(asked, brokers, config)


def dlq_list(
    limit: Limit = 50,
    reason: Code = None,
    topic: Topic = None,
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Dead letters, oldest first."""
    with plain_errors():
        from infra.operate.commands import show_letters

        show_letters(Place(brokers, config), limit, reason, topic, as_json=as_json)


def dlq_replay(
    limit: Limit = 50,
    reason: Code = None,
    topic: Topic = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent.")] = False,
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Send dead letters to their topics again, byte for byte. What is still wrong comes back."""
    with plain_errors():
        from infra.operate.commands import replay_letters

        replay_letters(Place(brokers, config), limit, reason, topic, dry_run=dry_run, as_json=as_json)


# `harmony plugins`: what is installed, and whether it keeps the contract.


def plugins(
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="KIND:NAME", help="Hold one against the contract, such as forecaster:mine."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the installed plug-ins, or check one; exit code 1 when it breaks the contract."""
    from infra.settings.plugins import GROUPS, find, installed

    if check is None:
        rows = [
            {"kind": p.kind, "name": p.name, "package": p.distribution, "version": p.version, "from": p.entry.value}
            for p in installed()
        ]
        if as_json:
            print_json({"plugins": rows})
        elif rows:
            for row in rows:
                typer.echo("  ".join(row.values()))
        else:
            say(f"No plug-ins are installed. A package declares them under {', '.join(GROUPS.values())}.")
        return
    kind, _, name = check.partition(":")
    if kind not in GROUPS or not name:
        raise HarmonyError(f"--check {check!r}: write KIND:NAME; kinds are {', '.join(GROUPS)}.", 2)
    from infra.operate.plugins import examine
    from infra.settings.load import load_settings

    section = load_settings(config).advanced.plugins
    findings = examine(find(kind, name), section.options.get(kind, {}))
    if as_json:
        print_json({"ok": all(f.ok for f in findings), "findings": [f._asdict() for f in findings]})
    else:
        for finding in findings:
            typer.echo(
                f"{'ok  ' if finding.ok else 'FAIL'}  {finding.law}{f': {finding.detail}' if finding.detail else ''}"
            )
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)


# `harmony export` as a person types it.


def export(
    out: Annotated[
        str, typer.Argument(metavar="FILE", help="CSV to write (.csv, .csv.gz); - for stdout.", show_default=False)
    ] = "-",
    workload: Annotated[
        list[str] | None, typer.Option("--workload", "-w", help="Only this one. Repeatable; default: all.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only so long before the newest slot: 6h, 2d; default: all that is kept.")
    ] = None,
    config: ConfigOption = None,
    brokers: BrokersOption = None,
) -> None:
    """Write what the workers have folded, slot by slot, to a file for `forecast`, `train --data` or your own tools."""
    from infra.console.text import printable
    from infra.kafka.discovery import find_fleet
    from infra.kafka.tail import TopicTail
    from infra.operate.export import PageHistory, write_csv

    since_s = None if since is None else _duration_s(since)
    if out != "-" and not out.endswith((".csv", ".csv.gz")):
        raise HarmonyError(f"{out}: the file is .csv or .csv.gz.", 2)
    settings, where = find_fleet(config, brokers)
    stream, topics = settings.stream, settings.topics
    history = PageHistory(stream, topics.partitions, workload or (), topics.pages)
    with TopicTail(where, topics.pages, security=settings.kafka_client_options()) as tail:
        for record in tail.read(tail.bounds()):
            history.take(record)
    strangers = sorted(set(workload or ()) - history.workloads)
    if strangers:
        names = ", ".join(printable(name, 64) for name in sorted(history.workloads)[:10]) or "none"
        raise HarmonyError(f"No slot of workload {printable(strangers[0], 64)!r} on {topics.pages}; it holds: {names}.")
    if not history.workloads:
        raise HarmonyError(f"{topics.pages} at {where} holds no workload yet; a worker writes it a slot after another.")
    with _opened(out) as file:
        rows, indicators = write_csv(file, history.histories(since_s), stream.step_ms)
    say(f"{rows} slots of {stream.step_ms / 1000:g} s, {len(indicators)} indicators: {out}")


def _duration_s(text: str) -> float:
    from infra.console.text import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise HarmonyError(f"--since: {error}.", 2) from None


@contextmanager
def _opened(out: str) -> Iterator[TextIO]:
    """The file as it will be: it stands there whole, or not at all."""
    if out == "-":
        yield sys.stdout
        return
    path, part = Path(out), Path(f"{out}.part")
    try:
        with part.open("wb") as raw:
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if out.endswith(".gz") else raw
            with io.TextIOWrapper(packed, encoding="utf-8", newline="") as file:
                yield file
        part.replace(path)
    except OSError as error:
        raise HarmonyError(f"{out}: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)
