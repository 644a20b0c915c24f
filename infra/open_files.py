"""How many files and connections this process may have open at once, and whether it has them all."""

from __future__ import annotations

import resource

from infra.console.errors import HarmonyError

# Some 30 with one broker at rest; each further broker, each reader of page and metrics, a restore come on top.
LEAST = 128
ENOUGH = 4096


def ensure_open_files() -> None:
    """Raise this process's own limit as far as the system lets it.

    Raises:
        HarmonyError: it lets it have too few (exit code 2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise HarmonyError(
            f"This process may open {soft} files and connections at once, a worker needs {LEAST}: raise the hard limit "
            "(`ulimit -Hn`, LimitNOFILE= of systemd, --ulimit nofile= of a container) and start again.",
            2,
        )
