"""What a running `harmony run` tells the other commands: where its brokers and its page are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.console.errors import HarmonyError
from infra.console.host import birth_mark, is_alive, state_home
from infra.settings.brokers import format_brokers, parse_brokers
from infra.settings.load import Settings, load_settings

FILE = "run.json"
BROKERS_VARIABLE = "HARMONY_BROKERS"


@dataclass(frozen=True, slots=True)
class RunState:
    """One run.

    Attributes:
        brokers: bootstrap address.
        pid: of the process that serves it.
        web: URL of its page and metrics.
        config: settings file of its workers; other commands find its topics by it.
        born: birth mark of the process, so that a reused pid is not taken for it.
    """

    brokers: str
    pid: int
    web: str
    config: str
    born: str

    @classmethod
    @contextmanager
    def written(cls, *, brokers: str, config: str, web: str, state_dir: Path | None = None) -> Iterator[RunState]:
        """Announce this process's run for as long as the block runs.

        Raises:
            HarmonyError: the state directory cannot be written.
        """
        state = cls(brokers, os.getpid(), web, config, birth_mark(os.getpid()))
        path = (state_dir or state_home()) / FILE
        unfinished = path.with_name(f"{FILE}.{state.pid}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Atomic: a reader sees the old file or the new one.
            unfinished.write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            raise HarmonyError(
                f"Cannot write {path}: {error.strerror}. Choose another directory with HARMONY_STATE_DIR."
            ) from error
        try:
            yield state
        finally:
            if _read(path) == state:
                path.unlink(missing_ok=True)


def _read(path: Path) -> RunState | None:
    try:
        return RunState(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_run_state(state_dir: Path | None = None) -> RunState | None:
    """The run in progress, or None: no file, not readable, or its process is gone."""
    state = _read((state_dir or state_home()) / FILE)
    if state is not None and is_alive(state.pid) and birth_mark(state.pid) == state.born:
        return state
    return None


def resolve_brokers(brokers: str | None, state_dir: Path | None = None) -> str:
    """Brokers to talk to: the given ones, else `$HARMONY_BROKERS`, else those of a running `harmony run`.

    Raises:
        HarmonyError: none of these, or a malformed address (exit code 2).
    """
    named = brokers or os.environ.get(BROKERS_VARIABLE)
    if named:
        return format_brokers(parse_brokers(named))
    state = read_run_state(state_dir)
    if state is not None:
        return state.brokers
    raise HarmonyError(
        "No brokers named: give --brokers host:port, set HARMONY_BROKERS, or start `harmony run` in another terminal.",
        2,
    )


# Which fleet a command speaks of: its settings and its brokers.


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
