"""Telemetry that fails for a while: not there, of some, stuck, or late. Every policy lives through the same."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, TypeVar, cast, get_args

from infra.console.errors import HarmonyError

Kind = Literal["gap", "silent", "frozen", "delayed"]
T = TypeVar("T")
_TEXT: Final = re.compile(r"(gap|silent|frozen|delayed)@([\d.]+)\+([\d.]+)(?::([\d.]+))?")
_LATEST_S: Final = 366 * 86_400.0
_WITH_MORE: Final = {"delayed": _LATEST_S, "silent": 1.0}  # kinds that say how much, and the most that it may be


@dataclass(frozen=True, slots=True)
class TelemetryFault:
    """One time in which engines are read as they should not be; how many replicas there are stays known.

    Attributes:
        kind: `gap`: nothing is read; `silent`: some replicas are not; `frozen`: what was read last is read again;
            `delayed`: what is read comes later.
        start_s, end_s: when, end excluded.
        delay_s: by how much later.
        share: of the replicas, which are silent; others are that are added meanwhile, in the same proportion.
    """

    kind: Kind
    start_s: float
    end_s: float
    delay_s: float = 0.0
    share: float = 1.0

    def hears(self, replica_id: int) -> bool:
        """Whether a replica is read."""
        return self.kind != "silent" or math.floor((replica_id + 1) * self.share) == math.floor(replica_id * self.share)


def fault_at(faults: Sequence[TelemetryFault], now_s: float) -> TelemetryFault | None:
    """The first that holds at an instant."""
    return next((fault for fault in faults if fault.start_s <= now_s < fault.end_s), None)


def delay_at(faults: Sequence[TelemetryFault], now_s: float) -> float:
    """By how much later what is read now comes."""
    fault = fault_at(faults, now_s)
    return 0.0 if fault is None else fault.delay_s


class OnItsWay(Generic[T]):
    """What was read and has not arrived; nothing overtakes what was read before it.

    Args:
        delay_s: by how much later everything comes, beside the faults.
    """

    def __init__(self, faults: Sequence[TelemetryFault], delay_s: float = 0.0) -> None:
        self._faults = faults
        self._delay_s = delay_s
        self._sent: deque[tuple[float, T]] = deque()  # each with the instant at which it arrives

    def send(self, now_s: float, told: T) -> None:
        """Take what is read now."""
        due_s = now_s + self._delay_s + delay_at(self._faults, now_s)
        self._sent.append((max(due_s, self._sent[-1][0] if self._sent else due_s), told))

    def arrived(self, now_s: float) -> list[T]:
        """What has arrived by now, oldest first; it is given out once."""
        found = []
        while self._sent and self._sent[0][0] <= now_s:
            found.append(self._sent.popleft()[1])
        return found


def shifted(faults: Sequence[TelemetryFault], by_s: float) -> tuple[TelemetryFault, ...]:
    """The same, so much later."""
    return tuple(replace(fault, start_s=fault.start_s + by_s, end_s=fault.end_s + by_s) for fault in faults)


def read_faults(text: str | None) -> tuple[TelemetryFault, ...]:
    """`KIND@START+LENGTH`, several with commas between; a delay also says by how much, silence of what share: `:BY`.

    Raises:
        HarmonyError: it says nothing of the kind.
    """
    return tuple(_read_fault(part.strip()) for part in (text or "").split(",") if part.strip())


def _read_fault(text: str) -> TelemetryFault:
    told = _TEXT.fullmatch(text)
    if told is not None:
        kind, start, length, by = told.groups()
        start_s, length_s, much = _seconds(start), _seconds(length), _seconds(by or "0")
        in_order = start_s >= 0 and length_s > 0 and (much > 0) == (kind in _WITH_MORE)
        if in_order and start_s + length_s <= _LATEST_S and much <= _WITH_MORE.get(kind, 0.0):
            delay_s, share = (much, 1.0) if kind == "delayed" else (0.0, much or 1.0)
            return TelemetryFault(cast(Kind, kind), start_s, start_s + length_s, delay_s, share)
    raise HarmonyError(
        f"--faults must be of {', '.join(get_args(Kind))}, with seconds after scoring begins and how long it lasts, "
        "such as gap@600+300, silent@600+300:0.25 (a quarter of the replicas), frozen@600+300 or delayed@600+300:60 "
        f"(by 60 s), got {text!r}.",
        2,
    )


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
