"""What every actuator is told on the command line: options declared once, on the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from infra.actuate.overrides import WordsOption
from infra.console.options import BrokersOption, ConfigOption

if TYPE_CHECKING:
    from infra.actuate.assembly import Chosen


@dataclass(frozen=True, slots=True)
class Told:
    """Where the commands are, which words and caps hold, how events are printed."""

    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line on stdout.")] = False
    brokers: BrokersOption = None
    config: ConfigOption = None
    words: WordsOption = None
    max_added: Annotated[int | None, typer.Option(min=0, help="Replicas one workload may gain within a minute.")] = None
    max_removed: Annotated[int | None, typer.Option(min=0, help="Replicas one workload may lose within a minute.")] = (
        None
    )
    max_removed_fleet: Annotated[
        int | None, typer.Option(min=0, help="Replicas all may lose together within a minute.")
    ] = None

    def chosen(self, name: str, web: tuple[str | None, int] | None = None) -> Chosen:
        """Settings, brokers and limits of the actuator of this name; `web` is address (None = the settings') and port.

        Raises:
            HarmonyError: a mistake in the settings, or no brokers anywhere (exit code 2).
        """
        from agents.actuation.guard import RateCaps
        from infra.actuate.assembly import Chosen
        from infra.connection import find_fleet
        from infra.observability.logs import configure_logging

        settings, where = find_fleet(self.config, self.brokers)
        configure_logging(settings.worker.log_level, output=settings.worker.log_format)
        caps = RateCaps(self.max_added, self.max_removed, self.max_removed_fleet)
        host, port = web or (None, None)
        return Chosen(settings, where, name, self.words, caps, web_host=host or settings.web_host, web_port=port)


@dataclass(frozen=True, slots=True)
class ToldToAct(Told):
    """The same, and which memory is its own, and where it is watched."""

    name: Annotated[str | None, typer.Option("--name", help="Of this actuator's memory; two on one host need two.")] = (
        None
    )
    web_host: Annotated[
        str | None, typer.Option(help="Address of metrics, probes and JSON; default: the settings'.")
    ] = None
    web_port: Annotated[int, typer.Option(min=0, max=65_535, help="Their port; 0 = any free one.")] = 9465

    def acting(self, name: str) -> Chosen:
        """As `chosen`, under the name that was given, else this one, and watched."""
        return self.chosen(self.name or name, (self.web_host, self.web_port))
