"""Ends or stops a worker at named points of its life, so that tests can prove what survives.

`HARMONY_TEST_FAIL_POINTS=forecast.after_outputs:3,restore.partition:1:stop`: at the third hit of the first point the
process kills itself (SIGKILL), at the first hit of the second one it stops itself (SIGSTOP) until it is continued.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping

from infra.console.errors import HarmonyError

VARIABLE = "HARMONY_TEST_FAIL_POINTS"
LANE_POINTS = ("before_outputs", "after_outputs", "before_commit", "after_commit", "after_revoked")
RESTORE_POINTS = ("restore.begin", "restore.partition", "restore.end")
ALL_POINTS = (*(f"{s}.{p}" for s in ("ingest", "forecast", "decide") for p in LANE_POINTS), *RESTORE_POINTS)
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def hit_line(point: str, action: str = "kill") -> str:
    """What a process says on stderr before it acts on a point."""
    return f"harmony fail point {point}: {action}"


def no_fail_point(_name: str) -> None:
    """Nothing fails."""


def fail_points(environ: Mapping[str, str]) -> Callable[[str], None]:
    """The function that stages call at each named point; does nothing where the variable is not set.

    Raises:
        HarmonyError: the variable names no such point, or is not `point:count[:kill|stop]` separated by commas.
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return no_fail_point
    plan = dict(_parse(part) for part in text.split(","))
    hits: dict[str, int] = dict.fromkeys(plan, 0)

    def reached(name: str) -> None:
        if name not in plan:
            return
        count, action = plan[name]
        hits[name] += 1
        if hits[name] == count:
            sys.stderr.write(hit_line(name, action) + "\n")
            sys.stderr.flush()
            os.kill(os.getpid(), _SIGNALS[action])

    return reached


def _parse(part: str) -> tuple[str, tuple[int, str]]:
    name, _, rest = part.strip().partition(":")
    count, _, action = rest.partition(":")
    action = action or "kill"
    if name not in ALL_POINTS or not count.isdecimal() or int(count) < 1 or action not in _SIGNALS:
        raise HarmonyError(
            f"{VARIABLE}: {part!r} is not point:count[:kill|stop]; points are {', '.join(ALL_POINTS)}.", 2
        )
    return name, (int(count), action)
