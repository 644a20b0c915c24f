"""`harmony actuate check`: the conformance kit on our core, on a Python subject, or on any program."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.console.errors import HarmonyError
from infra.console.options import JsonOption, print_json, say

if TYPE_CHECKING:
    from infra.actuate.conformance.kit import ActuatorSubject as Subject
    from infra.actuate.conformance.kit import Result


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    python: Annotated[
        str | None, typer.Option("--python", metavar="MODULE:NAME", help="Makes a subject of the kit; in Python.")
    ] = None,
    program: Annotated[
        str | None, typer.Option("--exec", metavar="COMMAND", help="A program that speaks JSON lines.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random sequences.")] = 0,
    runs: Annotated[int, typer.Option(min=0, help="Random sequences of sixty steps.")] = 25,
    as_json: JsonOption = False,
) -> None:
    """Run the conformance kit; exit code 1 when the actuator does what it must not."""
    from infra.actuate.conformance.run import run_kit

    results = run_kit(_maker(python, program), seed=seed, runs=runs)
    counts = {o: sum(r.outcome == o for r in results) for o in ("passed", "failed", "skipped")}
    if as_json:
        print_json({**counts, "seed": seed, "cases": [r._asdict() for r in results]})
    else:
        _print_table(results)
        say(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped (seed {seed}).")
    raise typer.Exit(1 if counts["failed"] else 0)


def _maker(python: str | None, program: str | None) -> Callable[[], Subject]:
    for flag, given in (("--python", python), ("--exec", program)):
        # Such as a variable of a CI job that is not set: to check our own core instead would certify the wrong one.
        if given is not None and not given.strip():
            raise HarmonyError(f"{flag} is empty: name what is to be checked, or leave it out for our own core.", 2)
    if python is not None and program is not None:
        raise HarmonyError("--python and --exec exclude each other: drop one of them.", 2)
    if program is not None:
        from infra.actuate.conformance.subjects import ExecSubject

        try:
            command = shlex.split(program)
        except ValueError as error:
            raise HarmonyError(f"--exec: {error}.", 2) from error
        return lambda: ExecSubject(command)
    if python is not None:
        return _imported(python)
    from infra.actuate.conformance.subjects import ControllerSubject, MemoryWorld

    return lambda: ControllerSubject(MemoryWorld())


def _imported(where: str) -> Any:
    from importlib import import_module

    module, _, name = where.partition(":")
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise HarmonyError(f"--python {where}: {error}. Write MODULE:NAME of something importable.", 2) from error
    if not callable(factory):
        raise HarmonyError(f"--python {where} is no class and no function.", 2)
    return factory


def _print_table(results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("case", "", ""):
        table.add_column(heading, overflow="fold")
    colours = {"passed": "green", "failed": "bold red", "skipped": "yellow"}
    for r in results:
        table.add_row(r.case.replace("_", " "), Text(r.outcome, colours[r.outcome]), Text(r.detail))
    Console().print(table)
