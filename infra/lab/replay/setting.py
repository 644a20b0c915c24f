"""What a replay holds fixed for every policy: load, engine, objective, bounds, lead time and what telemetry shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from infra.replay.past import Past
from infra.replay.telemetry_faults import TelemetryFault, shifted
from infra.simulator.arrivals import Arrivals
from infra.simulator.lead_time import ConstantLeadTime, LeadTime, LognormalLeadTime, MixedLeadTime, MixedStarts
from infra.simulator.ledger import Objective
from infra.simulator.profiles import Profile

START_TS_MS = 1_704_067_200_000  # a midnight


@dataclass(frozen=True, slots=True)
class Load:
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
    """How a policy learns of the fleet.

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

    load: Load
    profile: Profile
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
    past: Past | None = None

    def lead_time(self, seed: int) -> LeadTime:
        """Lead times of one run; the same seed gives the same draws launch by launch."""
        if self.mixed_starts is not None:
            return MixedLeadTime(self.mixed_starts, seed)
        if self.lead_sigma_log > 0:
            return LognormalLeadTime(self.lead_s, self.lead_sigma_log, seed)
        return ConstantLeadTime(self.lead_s)

    @property
    def starts_differ(self) -> bool:
        """Whether lead times are drawn."""
        return self.mixed_starts is not None or self.lead_sigma_log > 0

    @property
    def careful_lead_s(self) -> float:
        """A lead time that most starts keep, for who orders beforehand."""
        return self.lead_s * (1.0 + self.lead_sigma_log) if self.mixed_starts is None else self.mixed_starts.slow_s

    def with_faults(self, faults: Sequence[TelemetryFault]) -> Setting:
        """The same cell whose telemetry fails; times are from the beginning of what is scored."""
        telemetry = replace(self.telemetry, faults=shifted(faults, self.load.score[0]))
        return replace(self, telemetry=telemetry)

    def with_load(self, load: Load) -> Setting:
        """The same cell under another load."""
        return replace(self, load=load)
