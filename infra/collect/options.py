"""What every collector is told on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from infra.console.options import BrokersOption, ConfigOption, JsonOption

if TYPE_CHECKING:
    from infra.settings.load import Settings


@dataclass(frozen=True, slots=True)
class Common:
    """Where records go, and how that is said."""

    config: ConfigOption = None
    brokers: BrokersOption = None
    as_json: JsonOption = False

    def settings(self) -> tuple[Settings, str]:
        """Settings and brokers.

        Raises:
            HarmonyError: a mistake in the settings, or no brokers anywhere (exit code 2).
        """
        from infra.kafka.discovery import find_fleet

        return find_fleet(self.config, self.brokers)


@dataclass(frozen=True, slots=True)
class Dry(Common):
    """The same for collectors that can do without Kafka."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the records instead of publishing them.")] = False

    def settings(self) -> tuple[Settings, str]:
        """Settings, and brokers unless nothing is to be published."""
        from infra.settings.load import load_settings

        if self.dry_run:
            return load_settings(self.config, {"brokers": self.brokers}), ""
        return Common.settings(self)
