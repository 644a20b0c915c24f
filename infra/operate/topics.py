"""`harmony topics create|check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.console.options import BrokersOption, ConfigOption, JsonOption, print_json, say

if TYPE_CHECKING:
    from infra.settings.load import Settings

app = typer.Typer(no_args_is_help=True, help="Create and check the Kafka topics that HARMONY needs.")


@app.command()
def create(
    brokers: BrokersOption = None,
    config: ConfigOption = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Copies of each partition; default: the cluster's.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Also telemetry.raw, for `harmony map`.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Let the brokers only validate it.")] = False,
) -> None:
    """Create the topics that are missing; existing ones are left as they are."""
    from infra.kafka.admin import TopicAdmin

    settings, where, options = _connection(brokers, config)
    specs = settings.topics.specs() + ((settings.topics.raw_spec(),) if raw else ())
    factor = replication_factor or settings.advanced.kafka.replication_factor
    with TopicAdmin(where, options) as admin:
        created = admin.create_missing(specs, replication_factor=factor, dry_run=dry_run)
        left = [d for d in admin.differences(specs) if d.kind != "missing"]
    for name in created:
        typer.echo(f"{'would create' if dry_run else 'created'} {name}")
    say(f"{len(created)} of {len(specs)} topics {'would be created' if dry_run else 'created'} on {where}.")
    for difference in left:
        say(f"left as it is: {difference}")
    raise typer.Exit(1 if left else 0)


@app.command()
def check(brokers: BrokersOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Compare the cluster's topics with what HARMONY needs; exit code 1 on a difference."""
    from dataclasses import asdict

    from infra.kafka.admin import check_topics

    settings, where, options = _connection(brokers, config)
    specs = settings.topics.specs()
    differences = check_topics(where, specs, security=options)
    if as_json:
        print_json({"brokers": where, "topics": len(specs), "differences": [asdict(d) for d in differences]})
    else:
        for difference in differences:
            typer.echo(str(difference))
        say(
            f"{len(differences)} differences in {len(specs)} topics on {where}."
            if differences
            else f"All {len(specs)} topics fit."
        )
    raise typer.Exit(1 if differences else 0)


@app.command()
def rights(
    parts: Annotated[
        str, typer.Option("--for", help="all (a whole worker), or some of the parts, with commas.")
    ] = "all",
    principal: Annotated[str, typer.Option(help="Who is granted them.")] = "User:harmony",
    brokers: BrokersOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the least rights that a part of HARMONY needs, as kafka-acls.sh commands; asks no broker."""
    from dataclasses import asdict

    from infra.console.errors import HarmonyError
    from infra.kafka.rights import PARTS, as_commands, rights_of
    from infra.settings.limits import ROLES
    from infra.settings.load import load_settings

    chosen = (*ROLES, "page") if parts == "all" else tuple(part.strip() for part in parts.split(","))
    for part in chosen:
        if part not in PARTS:
            raise HarmonyError(f"There is no part {part!r}: use all, or some of {', '.join(PARTS)}.", 2)
    settings = load_settings(config, {"brokers": brokers})
    needed = rights_of(settings.topics, chosen)
    if as_json:
        print_json({"parts": chosen, "rights": [asdict(right) for right in needed]})
        return
    for line in as_commands(needed, principal, settings.brokers or "HOST:9092"):
        typer.echo(line)


def _connection(brokers: str | None, config: Path | None) -> tuple[Settings, str, dict[str, Any]]:
    from infra.kafka.discovery import find_fleet

    settings, where = find_fleet(config, brokers)
    return settings, where, settings.kafka_client_options()
