"""`harmony state reset`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from infra.console.errors import HarmonyError
from infra.console.options import BrokersOption, ConfigOption, JsonOption, print_json, say

app = typer.Typer(no_args_is_help=True, help="What the workers have learned: reset it.")


@app.callback()
def state() -> None:
    """What the workers have learned: reset it."""


@app.command()
def reset(
    brokers: BrokersOption = None,
    config: ConfigOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    telemetry: Annotated[
        bool, typer.Option("--telemetry", help="Empty the telemetry topics too, for a start with --history.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Forget all windows, posteriors, budgets and stabilization windows; telemetry and decisions stay."""
    from infra.kafka.discovery import find_fleet
    from infra.kafka.rights import workers_group
    from infra.operate.state_reset import StateReset, alive_message, raise_epoch

    settings, where = find_fleet(config, brokers)
    with StateReset(where, settings.topics, settings.kafka_client_options(), telemetry=telemetry) as cluster:
        holdings, alive = cluster.holdings(), cluster.members()
        epoch = max(settings.policy.epoch, cluster.newest_epoch() or 0) + 1
        records = sum(h.records for h in holdings)
        for holding in holdings:
            other = "" if holding.partitions in (0, holding.wanted) else f", made anew with {holding.wanted} partitions"
            say(f"{holding.name}: {holding.records} records in {holding.partitions} partitions{other}")
        say(f"group {workers_group(settings.topics)}: {len(alive)} workers alive, its offsets are forgotten")
        if alive:
            raise HarmonyError(alive_message(alive))
        if not dry_run:
            _confirm(records, where, yes)
            cluster.reset()
    raised = False if dry_run else raise_epoch(_settings_file(config), epoch)
    if as_json:
        topics = [asdict(holding) for holding in holdings]
        print_json({"dry_run": dry_run, "topics": topics, "records": records, "epoch": epoch, "epoch_written": raised})
    if dry_run:
        say(f"Nothing was deleted: --dry-run. Without it: {records} records.")
        return
    rest = "there is no telemetry any more" if telemetry else "read the telemetry that is still retained"
    say(f"Deleted {records} records. The next workers start empty and {rest}.")
    if raised:
        say(f"The epoch in {_settings_file(config)} is {epoch} now: give that file to every worker and actuator.")
    else:
        say(
            f"Now set the epoch to {epoch} for workers and actuators (advanced: {{planning: {{epoch: {epoch}}}}} in "
            f"the settings, or HARMONY_ADVANCED__PLANNING__EPOCH={epoch})."
        )
    say("Start the actuators again with it before the workers: they take no command of an epoch above their own.")


def _confirm(records: int, where: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise HarmonyError("This deletes the workers' state: say --yes where nobody can be asked.", 2)
    typer.confirm(f"Delete {records} records of state on {where}?", abort=True, err=True)


def _settings_file(config: Path | None) -> Path | None:
    import os

    from infra.settings.errors import CONFIG_VARIABLE
    from infra.settings.load import DEFAULT_FILE

    if config is not None:
        return config
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else Path(DEFAULT_FILE)
