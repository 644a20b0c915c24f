"""`harmony plugins`: what is installed, and whether it keeps the contract."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.console.errors import HarmonyError
from infra.console.options import ConfigOption, JsonOption, print_json, say


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
