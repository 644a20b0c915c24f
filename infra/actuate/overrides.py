"""The operator's overrides of this host: kill switch and pins, in a file that needs no Kafka."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.console.errors import HarmonyError
from infra.console.options import ConfigOption, print_json, say
from infra.console.text import printable

if TYPE_CHECKING:
    from agents.actuation.guard import Overrides
    from infra.actuate.store import OverridesFile

OverridesOption = Annotated[
    Path | None,
    typer.Option("--words", help="File of the operator's words; default: in the state directory.", dir_okay=False),
]


def register(app: typer.Typer) -> None:
    """Add the command that shows them; `harmony pin` and `pause` with `--here` write them."""
    app.command()(words)


def stop(reason: str, file: Path | None, config: Path | None) -> None:
    """The kill switch of this host's actuators: they change nothing and answer with errors. Pins still count."""
    text = f"stopped by {_user()}" + (f": {printable(reason, 200)}" if reason else "")
    _change(file, config, lambda _: {"stopped": text})
    say("The actuators of this host change nothing more, until `harmony resume --here`.")


def resume(file: Path | None, config: Path | None) -> None:
    """Undo stop."""
    _change(file, config, lambda _: {"stopped": None})
    say("The actuators of this host act again.")


def pin(workload: str, replicas: int, duration: str, reason: str, file: Path | None, config: Path | None) -> None:
    """Hold a workload at a count, whatever commands say, even when none come.

    Raises:
        HarmonyError: a workload, count or duration that cannot be.
    """
    from agents.records import Pin
    from infra.actuate.runner import wall_ms
    from infra.kafka.operator import encode_checked, parse_duration_ms, word

    now_ms = wall_ms()
    until_ms = now_ms + parse_duration_ms(duration)
    # The two ways to pin take the same workloads and counts.
    encode_checked(word("pin", workload, now_ms, replicas=replicas, until_ts_ms=until_ms))
    new_pin = Pin(replicas, until_ms, _user(), printable(reason, 200))
    _change(file, config, lambda w: {"pins": {**w.pins, workload: new_pin}})


def unpin(workload: str, file: Path | None, config: Path | None) -> None:
    """Let commands count again.

    Raises:
        HarmonyError: nothing pins it.
    """
    from infra.console.text import nearest

    def without(w: Overrides) -> Mapping[str, Any]:
        if workload not in w.pins:
            raise HarmonyError(printable(f"Nothing on this host pins {workload!r}{nearest(workload, w.pins)}."), 2)
        return {"pins": {name: p for name, p in w.pins.items() if name != workload}}

    _change(file, config, without)
    say(f"{printable(workload)}: no longer held by the actuators of this host.")


def words(file: OverridesOption = None, config: ConfigOption = None) -> None:
    """Print the words in force, as JSON."""
    import msgspec

    from agents.actuation.guard import Overrides

    print_json(msgspec.to_builtins(_file(file, config).read() or Overrides()))


def _change(file: Path | None, config: Path | None, edit: Callable[[Overrides], Mapping[str, Any]]) -> None:
    """Replace the fields that `edit` returns."""
    from msgspec.structs import replace

    _file(file, config).change(lambda w: replace(w, **edit(w)))


def _file(file: Path | None, config: Path | None) -> OverridesFile:
    from infra.actuate.store import OverridesFile, overrides_path
    from infra.settings.load import load_settings

    return OverridesFile(overrides_path(load_settings(config).state_dir, file))


def _user() -> str:
    try:
        return printable(getpass.getuser(), 64)
    except (OSError, KeyError, ImportError):
        return "somebody"
