"""Where HARMONY keeps files of its own: the cache (may be deleted at any time) and the state."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Container
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from infra.console.errors import HarmonyError


def _xdg(variable: str, fallback: str) -> Path:
    # The XDG rules: a relative path in the variable counts as unset.
    value = os.environ.get(variable, "")
    if value and Path(value).is_absolute():
        return Path(value) / "harmony"
    try:
        return Path.home() / fallback / "harmony"
    except RuntimeError:  # as under a user id that a container made up
        raise HarmonyError(
            f"This user (id {os.getuid()}) has no home directory: HOME is not set, and there is no entry in "
            "/etc/passwd. Set HOME to a directory that it may write, or XDG_CACHE_HOME and XDG_STATE_HOME.",
            2,
        ) from None


def cache_home() -> Path:
    """`$XDG_CACHE_HOME/harmony`, else `~/.cache/harmony`.

    Raises:
        HarmonyError: there is neither, nor a home directory (exit code 2).
    """
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_home() -> Path:
    """`$XDG_STATE_HOME/harmony`, else `~/.local/state/harmony`.

    Raises:
        HarmonyError: there is neither, nor a home directory (exit code 2).
    """
    return _xdg("XDG_STATE_HOME", ".local/state")


# The version of HARMONY that runs.


def own_version() -> str:
    """As installed; "unknown" where the source runs without having been."""
    try:
        return version("harmony-scaler")
    except PackageNotFoundError:
        return "unknown"


# Whether a process still runs, and whether a pid still means the same process.


def is_alive(pid: int) -> bool:
    """True while a process of this pid exists, ours or not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def birth_mark(pid: int) -> str:
    """Start of the process in ticks since boot, to tell it from a later one of its pid; empty without /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command name may hold anything, so fields are counted behind its closing parenthesis.
    return text.rpartition(")")[2].split()[19]


# Free ports on the loopback interface, below the range from which systems draw ephemeral ones.


FIRST_PORT = 10_240
LAST_PORT = 32_767
LOOPBACK = "127.0.0.1"


def is_free(port: int) -> bool:
    """True when nothing answers on the port and it can be bound."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return False
    with socket.socket() as probe:
        # As the JVM does: connections of a predecessor still in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(used_ports: Container[int] = ()) -> int:
    """A free port that is not among `used_ports`.

    Raises:
        OSError: none found in a thousand draws.
    """
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randint(FIRST_PORT, LAST_PORT)
        if port not in used_ports and is_free(port):
            return port
    raise OSError(f"no free port between {FIRST_PORT} and {LAST_PORT}")


# How many files and connections this process may have open at once, and whether it has them all.


# Some 30 with one broker at rest; each further broker, each reader of page and metrics, a restore come on top.
LEAST = 128
ENOUGH = 4096


def ensure_open_files() -> None:
    """Raise this process's own limit as far as the system lets it.

    Raises:
        HarmonyError: it lets it have too few (exit code 2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise HarmonyError(
            f"This process may open {soft} files and connections at once, a worker needs {LEAST}: raise the hard limit "
            "(`ulimit -Hn`, LimitNOFILE= of systemd, --ulimit nofile= of a container) and start again.",
            2,
        )


# A child process that must not outlive its parent, however that one ends.


_POLL_S = 0.5
_GRACE_S = 20.0


def watch_parent(poll_s: float = _POLL_S, grace_s: float = _GRACE_S) -> None:
    """From now on: when the parent is gone, SIGTERM to ourselves, and the end after `grace_s` at the latest."""
    threading.Thread(target=_watch, args=(os.getppid(), poll_s, grace_s), name="parent-watch", daemon=True).start()


def _watch(parent: int, poll_s: float, grace_s: float) -> None:
    # The parent's pid is polled because the kernel's own signal follows the thread that forked, not the process.
    while os.getppid() == parent:
        time.sleep(poll_s)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)


# Packages that only some collectors need: imported when used, with a clear word when absent.


def need(module: str, purpose: str) -> Any:
    """The module.

    Raises:
        HarmonyError: it is not installed; says how to.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise HarmonyError(
            f"{purpose} needs a package that is not installed ({error.name or module}): "
            "pip install 'harmony-scaler[collect]'.",
            2,
        ) from None
