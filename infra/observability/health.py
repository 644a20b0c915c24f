"""What a worker knows of its own health: named checks and heartbeats, thread-safe, on a clock that is handed in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NOT_REPORTED = "not reported yet"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `/readyz`. One that is not `required` is shown but does not make the worker unready."""

    name: str
    ok: bool
    detail: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """Health at one instant.

    Attributes:
        live: every stage's heartbeat is young enough.
        live_reason: why not; empty when live.
        ready: live, and every required check is ok.
        checks: sorted by name, the stalled stages among them.
        heartbeat_age_s: per stage.
    """

    live: bool
    live_reason: str
    ready: bool
    checks: tuple[Check, ...]
    heartbeat_age_s: dict[str, float]


class Health:
    """Checks and heartbeats of one worker; every method may be called from any thread.

    Args:
        started_s: on the clock that is later passed as `now_s` (a monotonic one); counts as the first heartbeat, so
            that a worker that never gets going is seen too.
        expected: names of required checks; until set, they are not ok ("not reported yet").
        max_heartbeat_age_s: the bound.

    Attributes:
        look: called before each snapshot, to set the checks that are read off something else.
    """

    def __init__(self, started_s: float, expected: Iterable[str] = (), max_heartbeat_age_s: float = 30.0) -> None:
        if not max_heartbeat_age_s > 0:
            raise ValueError(f"max_heartbeat_age_s must be positive, got {max_heartbeat_age_s}")
        self.look: Callable[[], None] = lambda: None
        self._started_s = started_s
        self._max_age_s = max_heartbeat_age_s
        self._lock = threading.Lock()
        self._checks = {name: Check(name, ok=False, detail=NOT_REPORTED) for name in expected}
        self._beats: dict[str, float] = {}

    def set_check(self, name: str, ok: bool, detail: str = "", *, required: bool = True) -> None:
        """State of one check, for example `assigned`, `restored.ingest`, `telemetry`, `sources`."""
        with self._lock:
            self._checks[name] = Check(name, ok, detail, required)

    def drop_check(self, name: str) -> None:
        """Forget a check, for example of a stage that this worker no longer runs."""
        with self._lock:
            self._checks.pop(name, None)

    def beat(self, stage: str, now_s: float) -> None:
        """The stage had nothing left to do, or got something done, at this moment: a quiet log is no fault."""
        with self._lock:
            self._beats[stage] = max(now_s, self._beats.get(stage, now_s))

    def stop_beat(self, stage: str) -> None:
        """Expect no more heartbeats of this stage (its partitions went to another worker)."""
        with self._lock:
            self._beats.pop(stage, None)

    def snapshot(self, now_s: float) -> HealthSnapshot:
        """Health at `now_s`."""
        self.look()
        with self._lock:
            checks = dict(self._checks)
            beats = dict(self._beats)
        ages = {stage: max(0.0, now_s - at_s) for stage, at_s in sorted(beats.items())}
        for stage, age_s in ages.items():
            if age_s > self._max_age_s:
                name = f"heartbeat.{stage}"
                checks[name] = Check(name, ok=False, detail=f"no sign of life for {age_s:.1f} s")
        age_s = max(ages.values(), default=max(0.0, now_s - self._started_s))
        reason = ""
        if age_s > self._max_age_s:
            stalled = next((f"{stage}: no progress" for stage, age in ages.items() if age == age_s), "")
            last = stalled or "no heartbeat since the start"
            reason = f"{last} for {age_s:.1f} s, the bound is {self._max_age_s:g} s"
        return HealthSnapshot(
            live=not reason,
            live_reason=reason,
            ready=not reason and all(check.ok for check in checks.values() if check.required),
            checks=tuple(checks[name] for name in sorted(checks)),
            heartbeat_age_s=ages,
        )
