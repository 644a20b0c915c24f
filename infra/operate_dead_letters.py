"""`harmony dlq`: look at refused records, and send them again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from infra import dead_letter_box as letters
from infra.operate_place import Brokers, Config, Json, Place, emit, plain_errors

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Newest ones.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Only these, such as schema.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only from this topic.")]


def dead_letter_commands() -> typer.Typer:
    """The sub-commands list and replay."""
    box = typer.Typer(help="Records that were refused.", no_args_is_help=True)
    box.command("list")(dlq_list)
    box.command("replay")(dlq_replay)
    return box


def dlq_list(
    limit: Limit = 50,
    reason: Reason = None,
    topic: Topic = None,
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Dead letters, oldest first."""
    with plain_errors():
        place = Place(brokers, config)
        found = _letters(place, limit, reason, topic)
        if as_json:
            emit({"dead_letters": [x.to_dict() for x in found]})
        else:
            Console().print(letters.letters_table(found))


def dlq_replay(
    limit: Limit = 50,
    reason: Reason = None,
    topic: Topic = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent.")] = False,
    as_json: Json = False,
    brokers: Brokers = None,
    config: Config = None,
) -> None:
    """Send dead letters to their topics again, byte for byte. What is still wrong comes back."""
    with plain_errors():
        place = Place(brokers, config)
        found = _letters(place, limit, reason, topic)
        topics = place.topics
        ours = (topics.telemetry_gpu, topics.telemetry_requests, topics.telemetry_raw)
        sent = 0 if dry_run else letters.replay(found, ours, place.brokers, place.security)
        if as_json:
            emit({"found": len(found), "sent": sent})
        elif dry_run:
            Console().print(letters.letters_table(found))
        else:
            typer.echo(f"{sent} of {len(found)} dead letters sent again")


def _letters(place: Place, limit: int, reason: str | None, topic: str | None) -> list[letters.DeadLetterView]:
    found: list[letters.DeadLetterView] = []
    with place.tail(place.topics.dead_letters) as tail:
        for stretch in tail.back():
            found = letters.chosen((letters.read_letter(r) for r in stretch), reason, topic) + found
            if len(found) >= limit:
                break
    return found[-limit:]
