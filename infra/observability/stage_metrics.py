"""What the ingest and decide stages say of themselves, told to the meter after each batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agents.decide.decision import command_id
from agents.policy import GuardLimits
from infra.observability.catalogue import PEAK_QUANTILES
from infra.observability.metrics import PrometheusMeter, TallyingMeter
from streams.catalogue import ARRIVAL_RATE
from streams.log import Emission
from streams.pages.page import Counters
from streams.topics import Topics

if TYPE_CHECKING:  # the decide role does without its compiled loops
    from streams.ingest.kernel import IngestKernel

# Of the gauge `replicas`, and where a decision says it.
_STATES = {"ready": "ready", "pending": "pending", "wanted": "final"}
_OUTCOMES = ("late", "duplicate", "dead", "future", "refused")


class IngestMetrics:
    """Turns a kernel's cumulative counts, which survive restarts in its pages, into counters of this process."""

    def __init__(self, meter: PrometheusMeter) -> None:
        self._meter = meter
        self._before: dict[tuple[str, int], tuple[IngestKernel, _Snapshot]] = {}

    def __call__(self, kernel: IngestKernel) -> None:
        """Report one folded batch; what a kernel brings when first seen was counted by an earlier life."""
        previous_kernel, previous = self._before.get((kernel.source, kernel.partition), (None, None))
        news = _Snapshot.of(kernel)
        self._before[kernel.source, kernel.partition] = kernel, news
        if previous is None or previous_kernel is not kernel:
            return
        before, now = previous.counters, news.counters
        accepted = now.samples - before.samples
        for outcome in _OUTCOMES:
            count = getattr(now, outcome) - getattr(before, outcome)
            if count > 0:
                self._meter.count("samples_total", count, outcome=outcome)
        if accepted > 0:
            self._meter.count("samples_total", accepted, outcome="accepted")
        if now.unknown_names > before.unknown_names:
            self._meter.count("unknown_names_total", now.unknown_names - before.unknown_names)
        if news.num_pages > previous.num_pages:
            self._meter.count("pages_total", news.num_pages - previous.num_pages, source=kernel.source)
        for code, count in news.dead_letters.items():
            self._meter.count("dead_letters_total", count - previous.dead_letters.get(code, 0), code=code)
        counts, sum_ms = kernel.lateness.take()
        self._meter.observe_counts("sample_lateness_seconds", counts, sum_ms / 1000, source=kernel.source)


class _Snapshot(NamedTuple):
    """A kernel's cumulative counts at one instant."""

    counters: Counters
    num_pages: int
    dead_letters: dict[str, int]

    @staticmethod
    def of(kernel: IngestKernel) -> _Snapshot:
        return _Snapshot(kernel.counters, kernel.num_pages, kernel.dead_letter_counts)


class _Replicas(msgspec.Struct):
    ready: int | None
    pending: int | None
    final: int | None
    current: int | None = None
    proposed: int | None = None


class _Risk(msgspec.Struct):
    p_miss: dict[str, float]
    objective: float
    miss_share: dict[str, float] = {}
    budget_left_ratio: float | None = None


class _Inputs(msgspec.Struct):
    coverage_ratio: float | None = None
    arrival_rate: float | None = None


class _Peak(msgspec.Struct, frozen=True):
    levels: tuple[float, ...]
    values: tuple[float, ...]


class _Forecast(msgspec.Struct, frozen=True):
    indicator: str = ARRIVAL_RATE
    peak: _Peak | None = None


class _DecisionGlance(msgspec.Struct):
    """The few fields of a decision that metrics need."""

    workload: str
    action: str
    reason: str
    replicas: _Replicas
    risk: _Risk
    inputs: _Inputs
    command_id: str | None
    mode: str = "observe"
    origin_ts_ms: int = 0
    shadow: dict[str, int] = {}
    forecast: _Forecast = _Forecast()


_GLANCES = msgspec.json.Decoder(_DecisionGlance)


class DecideMetrics:
    """Reads the decisions of an emission; fleet totals are sums over the newest decision of each workload.

    Args:
        topics: names of those with decisions and dead letters.
        fleet, epoch: of the policy, of which command ids are made.
        step_s: that each decision speaks for.
        hold_s: in `observe`, the largest proposal of so long counts as what HARMONY would have held.

    Attributes:
        attainment: share of a workload's requests within the SLO over the steps that this worker stores; None: not
            known. Whoever stores them sets it.
    """

    def __init__(
        self,
        meter: PrometheusMeter,
        topics: Topics,
        *,
        fleet: str,
        epoch: int,
        step_s: float = 15.0,
        hold_s: float = GuardLimits().stabilization_down_s,
    ) -> None:
        self._meter = meter
        self._fleet, self._epoch = fleet, epoch
        self._topics = topics
        self._step_s, self._hold_ms = step_s, round(hold_s * 1000)
        self.attainment: Callable[[str], float | None] = lambda _workload: None
        self._proposals: dict[str, deque[tuple[int, int]]] = {}
        self._newest: dict[str, _Replicas] = {}
        self._totals = dict.fromkeys(_STATES, 0)  # of the newest; a large fleet is not added up for each emission

    def __call__(self, emission: Emission) -> None:
        """Report its decisions."""
        meter = TallyingMeter()
        for group in emission.outputs:
            for record in group:
                if record.topic == self._topics.decisions and record.value is not None:
                    self._decision(_GLANCES.decode(record.value), meter)
                elif record.topic == self._topics.dead_letters:
                    self._meter.count("dead_letters_total", code=dict(record.headers)["reason"].decode())
        if not meter.counts:
            return
        self._meter.count_all(meter.counts)
        for state, number in self._totals.items():
            self._meter.gauge("replicas", number, state=state)

    def _decision(self, decision: _DecisionGlance, meter: TallyingMeter) -> None:
        workload, replicas = decision.workload, decision.replicas
        meter.count("decisions_total", action=decision.action, reason=decision.reason)
        if decision.action == "retired":
            self._replace(workload, None)
            self._proposals.pop(workload, None)
            self._meter.forget_workload(workload)
            return
        self._replace(workload, replicas)
        self._count_time(decision, meter)
        if self._is_new(decision):
            meter.count("commands_total")
        risk, count = decision.risk, str(replicas.final)
        share = risk.miss_share.get(count)
        # What this decision does not know must not go on as an earlier one knew it.
        self._meter.workload_gauges(
            workload,
            {
                "replicas_ready": _or_nan(replicas.ready),
                "replicas_wanted": _or_nan(replicas.final),
                "p_miss": _or_nan(risk.p_miss.get(count)),
                "miss_share": _or_nan(share),
                "miss_share_allowed": _or_nan(None if share is None else 1.0 - risk.objective),
                "telemetry_coverage_ratio": _or_nan(decision.inputs.coverage_ratio),
                "acting": float(decision.mode == "act"),
                "replicas_held": _or_nan(replicas.current),
                "replicas_needed": _or_nan(decision.shadow.get("reactive")),
                "load_requests_per_second": _or_nan(decision.inputs.arrival_rate),
                "error_budget_left_ratio": _or_nan(risk.budget_left_ratio),
            },
        )
        if self._meter.fits(workload):
            self._show_peak(workload, decision.forecast)
            self._meter.gauge("attainment_ratio", _or_nan(self.attainment(workload)), workload=workload)

    def _show_peak(self, workload: str, forecast: _Forecast) -> None:
        """The forecast of the load; of a workload that is planned by tokens there is none in requests."""
        peak = forecast.peak if forecast.indicator == ARRIVAL_RATE else None
        known = {} if peak is None else {f"{q:g}": v for q, v in zip(peak.levels, peak.values, strict=True)}
        for quantile in PEAK_QUANTILES:
            value = known.get(quantile, math.nan)
            self._meter.gauge("forecast_peak_requests_per_second", value, workload=workload, level=quantile)

    def _replace(self, workload: str, replicas: _Replicas | None) -> None:
        """Its newest replicas; None = it has retired."""
        before = self._newest.pop(workload, None)
        if replicas is not None:
            self._newest[workload] = replicas
        for state, name in _STATES.items():
            was, now = (getattr(r, name, None) or 0 for r in (before, replicas))
            self._totals[state] += now - was

    def _is_new(self, decision: _DecisionGlance) -> bool:
        """Whether it ordered its command first: the id tells, also to a worker that knows of no decision before."""
        final = decision.replicas.final
        if decision.command_id is None or final is None:
            return False
        expected_id = command_id(self._fleet, decision.workload, decision.origin_ts_ms, final, self._epoch)
        return decision.command_id == expected_id

    def forget(self) -> None:
        """Tell of no workload any more: another worker decides, and readers take the maximum over workers."""
        for workload in self._newest:
            self._meter.forget_workload(workload)
        for state in _STATES:
            self._meter.gauge("replicas", math.nan, state=state)
        self._newest.clear()
        self._totals = dict.fromkeys(_STATES, 0)
        self._proposals.clear()

    def _count_time(self, decision: _DecisionGlance, meter: TallyingMeter) -> None:
        """Replica-seconds of the step: held, wanted by HARMONY, needed by the load, and the surplus and the lack."""
        replicas = decision.replicas
        desired, needed = self._desired(decision), decision.shadow.get("reactive")
        if replicas.current is None or desired is None or needed is None:
            return
        surplus = replicas.current - needed
        parts = {
            "held": replicas.current,
            "wanted": desired,
            "needed": needed,
            "above": max(surplus, 0),
            "below": max(-surplus, 0),
        }
        for part, count in parts.items():
            meter.count("replica_seconds_total", count * self._step_s, mode=decision.mode, part=part)

    def _desired(self, decision: _DecisionGlance) -> int | None:
        replicas = decision.replicas
        if decision.mode != "observe":
            return replicas.final
        # Each plan starts from what somebody else holds, so its final count is a step from there, not ours.
        proposals = self._proposals.setdefault(decision.workload, deque())
        if replicas.proposed is not None:
            proposals.append((decision.origin_ts_ms, replicas.proposed))
        while proposals and proposals[0][0] <= decision.origin_ts_ms - self._hold_ms:
            proposals.popleft()
        return max((count for _, count in proposals), default=None)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
