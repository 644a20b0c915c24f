"""The operating commands as a person types them. What they do is imported when one runs: help is there at once."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.console.errors import HarmonyError
from infra.console.options import replica_count
from infra.console.text import printable
from infra.operate.options import Brokers, Config, Json, Place, plain_errors

Workload = Annotated[str, typer.Argument(help="Workload id, as in the telemetry.")]
MaybeWorkload = Annotated[str | None, typer.Argument(help="Workload id; none = the whole fleet.")]
Because = Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")]
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
    """Newest decision and lease of every workload."""
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
    workload: Annotated[str | None, typer.Option("--workload", "-w", help="Only of this one.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Of the newest ones, before following.")] = 20,
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """The newest decisions, one per line, oldest first."""
    with plain_errors():
        from infra.operate.commands import show_decisions

        show_decisions(Place(brokers, config), follow=follow, workload=workload, limit=limit, as_json=as_json)


def pin(
    workload: Workload,
    replicas: Annotated[int, typer.Argument(callback=replica_count, min=0, help="Replicas to hold.")],
    for_: Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 1d.")] = "1h",
    reason: Because = "",
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Hold a workload at a replica count, whatever the guards say."""
    with plain_errors():
        from infra.kafka.operator import parse_duration_ms
        from infra.operate.commands import order

        ms, done = parse_duration_ms(for_), f"pinned at {replicas} for {for_}"
        order(Place(brokers, config), "pin", workload, reason, done, ms, replicas=replicas)


def unpin(workload: Workload, reason: Because = "", brokers: Brokers = None, config: Config = None) -> None:
    """Let the guards decide again."""
    with plain_errors():
        from infra.operate.commands import order

        order(Place(brokers, config), "unpin", workload, reason, "no longer pinned")


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


def pause(workload: MaybeWorkload = None, reason: Because = "", brokers: Brokers = None, config: Config = None) -> None:
    """The kill switch: publish no commands, for one workload or for all. Pins still count."""
    with plain_errors():
        from infra.operate.commands import order

        order(Place(brokers, config), "pause", workload, reason, "paused: leases run out, nothing is scaled")


def resume(
    workload: MaybeWorkload = None, reason: Because = "", brokers: Brokers = None, config: Config = None
) -> None:
    """Undo pause."""
    with plain_errors():
        from infra.operate.commands import order

        order(Place(brokers, config), "resume", workload, reason, "resumed")


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
        from infra.operate_dead_letters import show_letters

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
        from infra.operate_dead_letters import replay_letters

        replay_letters(Place(brokers, config), limit, reason, topic, dry_run=dry_run, as_json=as_json)
