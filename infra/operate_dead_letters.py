"""`harmony dlq`: look at refused records, and send them again."""

from __future__ import annotations

import typer
from rich.console import Console

from infra.console.errors import HarmonyError
from infra.console.text import printable
from infra.explain import dead_letters as letters
from infra.near_names import nearest
from infra.operate.options import Place, emit
from streams.records.schema import DEAD_LETTER_CODES


def show_letters(place: Place, limit: int, reason: str | None, topic: str | None, *, as_json: bool) -> None:
    """Print the newest dead letters, oldest first."""
    found = _letters(place, limit, reason, topic)
    if as_json:
        emit({"dead_letters": [x.to_dict() for x in found]})
    else:
        Console().print(letters.letters_table(found))


def replay_letters(
    place: Place, limit: int, reason: str | None, topic: str | None, *, dry_run: bool, as_json: bool
) -> None:
    """Send dead letters to their topics again, and say how many."""
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
    if reason is not None and reason not in DEAD_LETTER_CODES:
        near = nearest(reason, DEAD_LETTER_CODES)
        raise HarmonyError(f"--reason: nothing is refused as {printable(reason, 32)!r}{near}.", 2)
    found: list[letters.DeadLetterView] = []
    with place.tail(place.topics.dead_letters) as tail:
        for stretch in tail.back():
            found = letters.chosen((letters.read_letter(r) for r in stretch), reason, topic) + found
            if len(found) >= limit:
                break
    return found[-limit:]
