"""The setting of a replay, equal for every policy: load, engine, objective, bounds, lead time and telemetry."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.simulator.arrivals import Arrivals, RateProfile
from infra.simulator.cluster import ConstantLeadTime, LeadTime, LognormalLeadTime, MixedLeadTime, MixedStarts
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile
from model.bursts.recurring import RecurringSurges
from streams.config import StreamConfig
from streams.windows.coarse import COARSE_STEP_MS

# History that HARMONY holds at the start of a replay: a week of ten-minute means, and the surges of the days before.


@dataclass(frozen=True, slots=True, eq=False)
class PriorDays:
    """The days before second 0.

    Attributes:
        means: float64 [R, 3], requests, prompt and generated tokens per second by ten minutes, oldest first.
        surges: snapshot of those remembered by then, in event time.
    """

    means: NDArray[np.float64]
    surges: list[list[float]]


def prior_days(profile: RateProfile, seed: int, step_s: float, end_ts_ms: int) -> PriorDays:
    """Return the history that one draw of a load leaves when it ends at `end_ts_ms`."""
    arrivals, step_ms = profile.arrivals(seed), round(step_s * 1000)
    surges, steps = RecurringSurges(), rates_of(arrivals, profile.end_s, step_s)
    for _ in observe_steps(surges, steps, end_ts_ms - end_ts_ms % step_ms, step_ms):
        pass
    return PriorDays(rates_of(arrivals, profile.end_s, COARSE_STEP_MS / 1000), surges.snapshot())


def rates_of(arrivals: Arrivals, end_s: float, bin_s: float) -> NDArray[np.float64]:
    """Requests, prompt and generated tokens per second by bins of which the last ends at `end_s`, [bins, 3]."""
    edges = end_s - bin_s * np.arange(int(end_s // bin_s), -1, -1)
    weights = (np.ones(len(arrivals)), arrivals.prompt_tokens, arrivals.output_tokens)
    return np.stack([np.histogram(arrivals.arrival_s, edges, weights=weight)[0] for weight in weights], axis=1) / bin_s


def observe_steps(surges: RecurringSurges, steps: NDArray[np.float64], end_ts_ms: int, step_ms: int) -> Iterator[int]:
    """Show steps of `rates_of`, of which the last ends at `end_ts_ms`, as a worker does; yields when each one ends."""
    num_context = StreamConfig(step_ms=step_ms).context_steps
    unknown = np.zeros((num_context, steps.shape[1]), np.float32)
    values = np.concatenate([unknown, steps.astype(np.float32)])
    observed = np.concatenate([unknown > 0, np.ones(steps.shape, np.bool_)])
    for step in range(1, len(steps) + 1):
        window, end_ms = slice(step, step + num_context), end_ts_ms - (len(steps) - step) * step_ms
        surges.observe(values[window], observed[window], range(steps.shape[1]), end_ms, step_ms)
        yield end_ms


# Faults of telemetry: missing, partial, frozen or late. Every policy meets the same ones.


Kind = Literal["gap", "silent", "frozen", "delayed"]
T = TypeVar("T")
_TEXT: Final = re.compile(r"(gap|silent|frozen|delayed)@([\d.]+)\+([\d.]+)(?::([\d.]+))?")
_LATEST_S: Final = 366 * 86_400.0
_AMOUNT_LIMITS: Final = {"delayed": _LATEST_S, "silent": 1.0}  # kinds that say how much, and the most that it may be


@dataclass(frozen=True, slots=True)
class TelemetryFault:
    """An interval in which the telemetry of the engines fails; the replica count stays available.

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

    def reads(self, replica_id: int) -> bool:
        """Return whether this replica can be read."""
        return self.kind != "silent" or math.floor((replica_id + 1) * self.share) == math.floor(replica_id * self.share)


def fault_at(faults: Sequence[TelemetryFault], now_s: float) -> TelemetryFault | None:
    """Return the first fault that is active at an instant."""
    return next((fault for fault in faults if fault.start_s <= now_s < fault.end_s), None)


def delay_at(faults: Sequence[TelemetryFault], now_s: float) -> float:
    """Return the extra delay of what is read now, seconds."""
    fault = fault_at(faults, now_s)
    return 0.0 if fault is None else fault.delay_s


class DelayLine(Generic[T]):
    """First-in, first-out queue of readings that are on their way.

    Args:
        delay_s: delay of every reading, beside the faults.
    """

    def __init__(self, faults: Sequence[TelemetryFault], delay_s: float = 0.0) -> None:
        self._faults = faults
        self._delay_s = delay_s
        self._sent: deque[tuple[float, T]] = deque()  # each with the instant at which it arrives

    def send(self, now_s: float, reading: T) -> None:
        """Add a reading that is taken now."""
        due_s = now_s + self._delay_s + delay_at(self._faults, now_s)
        self._sent.append((max(due_s, self._sent[-1][0] if self._sent else due_s), reading))

    def arrived(self, now_s: float) -> list[T]:
        """Remove and return the readings that have arrived, oldest first."""
        readings = []
        while self._sent and self._sent[0][0] <= now_s:
            readings.append(self._sent.popleft()[1])
        return readings


def shift_faults(faults: Sequence[TelemetryFault], by_s: float) -> tuple[TelemetryFault, ...]:
    """Return the faults, later by `by_s` seconds."""
    return tuple(replace(fault, start_s=fault.start_s + by_s, end_s=fault.end_s + by_s) for fault in faults)


def read_faults(text: str | None) -> tuple[TelemetryFault, ...]:
    """`KIND@START+LENGTH`, several with commas between; a delay also says by how much, silence of what share: `:BY`.

    Raises:
        HarmonyError: it says nothing of the kind.
    """
    return tuple(_read_fault(part.strip()) for part in (text or "").split(",") if part.strip())


def _read_fault(text: str) -> TelemetryFault:
    match = _TEXT.fullmatch(text)
    if match is not None:
        kind, start, length, by = match.groups()
        start_s, length_s, much = _seconds(start), _seconds(length), _seconds(by or "0")
        in_order = start_s >= 0 and length_s > 0 and (much > 0) == (kind in _AMOUNT_LIMITS)
        if in_order and start_s + length_s <= _LATEST_S and much <= _AMOUNT_LIMITS.get(kind, 0.0):
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


START_TS_MS = 1_704_067_200_000  # a midnight


@dataclass(frozen=True, slots=True)
class ScoredLoad:
    """Arrivals of a whole replay. Seconds from its start.

    Attributes:
        score: `[start, end)` that is scored; policies live through everything from second 0 on.
    """

    name: str
    arrivals: Arrivals
    score: tuple[float, float]

    @property
    def end_s(self) -> float:
        return self.score[1]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """How and how well a policy observes the fleet.

    Attributes:
        scrape_s: gauges and counters are read this often; 0 = at each policy's own tick.
        delay_s: a reading reaches the policy so much later.
        noise: relative standard deviation of what gauges show.
        faults: times in which it fails.
    """

    scrape_s: float = 0.0
    delay_s: float = 0.0
    noise: float = 0.0
    faults: tuple[TelemetryFault, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell: everything but the policy and the seed.

    Attributes:
        share: the objective, wanted share of good requests.
        lead_s, lead_sigma_log: mean lead time and the sigma of its logarithm; 0 = constant.
        mixed_starts: starts of two kinds, whose mean is `lead_s`; None = of one.
        initial_replicas: ready at second 0, the same for every policy.
        step_s: slot length of HARMONY's telemetry.
        start_ts_ms: event time of second 0; a full ten minutes.
        past: what HARMONY has seen before second 0; None = nothing.
    """

    load: ScoredLoad
    profile: EngineProfile
    objective: Objective
    share: float = 0.99
    lead_s: float = 100.0
    lead_sigma_log: float = 0.0
    mixed_starts: MixedStarts | None = None
    min_replicas: int = 1
    max_replicas: int = 32
    initial_replicas: int = 1
    step_s: float = 5.0
    telemetry: Telemetry = field(default_factory=Telemetry)
    start_ts_ms: int = START_TS_MS
    past: PriorDays | None = None

    def lead_time(self, seed: int) -> LeadTime:
        """Lead times of one run; the same seed gives the same draws launch by launch."""
        if self.mixed_starts is not None:
            return MixedLeadTime(self.mixed_starts, seed)
        if self.lead_sigma_log > 0:
            return LognormalLeadTime(self.lead_s, self.lead_sigma_log, seed)
        return ConstantLeadTime(self.lead_s)

    @property
    def starts_differ(self) -> bool:
        """Return whether lead times are random."""
        return self.mixed_starts is not None or self.lead_sigma_log > 0

    @property
    def careful_lead_s(self) -> float:
        """Return a lead time that most starts keep, for schedules that order in advance."""
        return self.lead_s * (1.0 + self.lead_sigma_log) if self.mixed_starts is None else self.mixed_starts.slow_s

    def with_faults(self, faults: Sequence[TelemetryFault]) -> Setting:
        """The same cell whose telemetry fails; times are from the beginning of what is scored."""
        telemetry = replace(self.telemetry, faults=shift_faults(faults, self.load.score[0]))
        return replace(self, telemetry=telemetry)

    def with_load(self, load: ScoredLoad) -> Setting:
        """The same cell under another load."""
        return replace(self, load=load)
