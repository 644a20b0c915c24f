"""Which fleet a command speaks of: its settings and its brokers."""

from __future__ import annotations

from pathlib import Path

from infra.kafka.discovery import read_run_state, resolve_brokers
from infra.settings.load import Settings, load_settings


def find_fleet(config: Path | None, brokers: str | None) -> tuple[Settings, str]:
    """Settings and brokers: of flags, environment or file, else of a running `harmony run`.

    Who names the brokers names the topics too: when only the run in progress does, its settings are taken, unless
    `config` says otherwise.

    Raises:
        HarmonyError: a mistake in the settings, or no brokers anywhere (exit code 2).
    """
    settings = load_settings(config, {"brokers": brokers})
    if not settings.brokers and config is None:
        run = read_run_state(settings.state_dir)
        if run is not None and Path(run.config).is_file():
            settings = load_settings(Path(run.config), {"brokers": run.brokers, "state_dir": settings.state_dir})
    return settings, resolve_brokers(settings.brokers or None, settings.state_dir)
