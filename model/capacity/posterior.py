"""How many requests per second one ready replica carries within the SLO, learned from slots of telemetry.

The share of requests that misses rises with the load (arrival rate per ready replica) as the curve of `miss_curve`;
capacity is the load at which it is the share that the objective allows. Evidence is kept as decayed counts of requests
that were good and that missed on a fixed lattice of log loads, so the state is small and holds no number that depends
on the prior; the posterior over (capacity, steepness of the curve) is computed from it on a grid.
Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.capacity.attribution import MissedBy, Promise, counts_by_promise, missed_by
from model.capacity.evidence import (
    CLUMP,
    NONE,
    KnownFleet,
    LoadEvidence,
    SlotEvidence,
    StandingQueue,
    averaged,
    misses_of,
    usable,
)
from model.capacity.fall import Fall, after_good_slot, after_misses
from model.capacity.grid import (
    GRID,
    LEAST_ALLOWED,
    LOWEST,
    MOST_ALLOWED,
    SPACING,
    GridPosterior,
    curves_of,
    grid_posterior,
    missed_share,
    prior_of,
)

__all__ = ["SPACING", "CapacityPosterior", "SlotEvidence", "Verdict"]


# What is believed of a capacity, read from the evidence held: its distribution, and the misses it lets expect.
#
# Pure: float64 arithmetic, no clock.


Float = NDArray[np.float64]

# Grids of 5 KiB each in the cache; those of a larger fleet are computed again.
_CACHED_GRIDS: Final = 1024


class PromiseBelief(NamedTuple):
    """What is believed of the load at which one promise of the SLO alone is missed by the share allowed; an estimate.

    Attributes:
        allowed: share that the objective allows.
    """

    posterior: GridPosterior
    allowed: float
    unit_rps: float

    def quantiles(self, levels: Sequence[float] | Float) -> Float:
        """Quantiles of that load in requests/s per replica, aligned with `levels`."""
        return _quantiles(_log_first(self.posterior) + math.log(self.unit_rps), self.posterior.cumulative, levels)

    def miss_share(self, load_rps: float) -> float:
        """Expected share of requests that misses this promise at a load; never falls as the load rises."""
        return _miss_share(self.posterior, self.allowed, load_rps / self.unit_rps)


class CapacityBelief:
    """Evidence of the requests/s that one ready replica carries within the SLO, under a prior.

    Args:
        declared_rps, off_by: of the prior.
        objective: share of requests that must be good.

    Raises:
        ValueError: a declared figure that is not a positive number, or a factor that is not above 1.
    """

    __slots__ = ("_allowed", "_declared_rps", "_evidence", "_off_by", "_tested_ratio", "_unit_rps")

    def __init__(self, declared_rps: float | None, off_by: float | None, objective: float) -> None:
        if off_by is not None and not (math.isfinite(off_by) and off_by > 1):
            raise ValueError(f"off_by must be a factor above 1, got {off_by}")
        if declared_rps is not None and not (math.isfinite(declared_rps) and declared_rps > 0):
            raise ValueError(f"declared_rps must be a positive number, got {declared_rps}")
        self._declared_rps = declared_rps
        self._off_by = off_by
        self._allowed = min(max(1.0 - objective, LEAST_ALLOWED), MOST_ALLOWED)
        self._evidence = LoadEvidence()
        self._unit_rps = 1.0
        self._tested_ratio: float | None = None  # None: there is no law, and loads are remembered in requests/s

    def quantiles(self, levels: Sequence[float] | Float) -> Float:
        """Quantiles of the capacity in requests/s per replica, aligned with `levels`.

        Raises:
            ValueError: nothing is declared and no load has been seen yet.
        """
        return _quantiles(*self.cumulative(), levels)

    def cumulative(self) -> tuple[float, Float]:
        """Log capacity at the lower end of the grid, and the probability up to each cell's end, `SPACING` apart."""
        posterior = self._posterior()
        return _log_first(posterior) + math.log(self._unit_rps), posterior.cumulative

    def draws(self, num: int, seed: int) -> Float:
        """Stratified draws [num] in random order, 1/s per replica; the same seed gives the same draws."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return self.quantiles((rng.permutation(num) + rng.random(num)) / num)

    def miss_share(self, load_rps: float) -> float:
        """Expected share of requests that misses at this load per replica; never falls as the load rises."""
        return _miss_share(self._posterior(), self._allowed, load_rps / self._unit_rps)

    def promises(self) -> dict[Promise, PromiseBelief]:
        """Of each promise that some are known to have missed, what is believed of it alone; computed when asked.

        The prior and the curves are those of both together; what missed only the other promise counts as good.
        """
        joint = self._evidence.cells
        return {
            promise: PromiseBelief(
                # Mostly it is one promise that gives way, and both are kept while that one is.
                self._posterior() if np.array_equal(counts, joint) else self._posterior_of(counts),
                self._allowed,
                self._unit_rps,
            )
            for promise, counts in counts_by_promise(self._evidence.cells_by_promise)
        }

    @property
    def _declared(self) -> float | None:
        """In parts of the unit; a law of the engine has the declared figure in it already."""
        return self._declared_rps if self._tested_ratio is None else self._tested_ratio

    @property
    def steepness(self) -> int:
        """Of the curve of misses over load, its power: the whole number nearest to the geometric mean."""
        return round(self._posterior().steepness)

    def _posterior(self) -> GridPosterior:
        posterior = _posteriors.get(self)
        if posterior is None:
            posterior = _posteriors[self] = self._posterior_of(self._evidence.cells)
            if len(_posteriors) > _CACHED_GRIDS:
                _posteriors.popitem(last=False)
        return posterior

    def _posterior_of(self, counts: NDArray[np.float32]) -> GridPosterior:
        prior = prior_of(self._declared, self._evidence, self._off_by)
        return grid_posterior(counts, LOWEST, curves_of(self._allowed).log_evidence, prior)

    def _evidence_changed(self) -> None:
        _posteriors.pop(self, None)


def _log_first(posterior: GridPosterior) -> float:
    """Log capacity at the lower end of the grid."""
    return (posterior.first - 0.5) * SPACING


def _quantiles(log_first: float, cumulative: Float, levels: Sequence[float] | Float) -> Float:
    edges = log_first + np.arange(GRID + 1) * SPACING
    return np.asarray(np.exp(np.interp(np.asarray(levels, dtype=np.float64), cumulative, edges)))


def _miss_share(posterior: GridPosterior, allowed: float, load_rps: float) -> float:
    at = math.log(max(load_rps, 1e-300)) / SPACING
    return missed_share(posterior, curves_of(allowed).missed_at, at)


_posteriors: OrderedDict[CapacityBelief, GridPosterior] = OrderedDict()  # oldest first


Verdict = Literal["good", "bad", "unobserved", "idle", "fleet_changing", "cold_start", "backlog", "unclear"]

_KNOWN_EVIDENCE: Final = 4.0 * CLUMP  # requests' worth of evidence before an undeclared capacity counts as known
# Share of the evidence that decays in one wholly surprising slot.
_SURPRISE_DECAY: Final = 0.2
# Evidence, in requests, that surprise leaves.
_MIN_EVIDENCE: Final = 40.0 * CLUMP
# Share of the largest surprise below which a slot is not surprising.
_MIN_SURPRISE: Final = 0.2
_HALF_LIFE_MS: Final = 86_400_000
# Share of the believed capacity below which the throughput of a saturated fleet contradicts it.
_CONTRADICTION_RATIO: Final = 0.9
# Share of the believed capacity below which a fleet does not serve at all.
_BROKEN_RATIO: Final = 0.05
# Share of the evidence that stays where a saturated fleet contradicts it.
_CONTRADICTED_RATIO: Final = 0.5
# Smallest change of the logarithm of the tested ratio that the prior follows.
_TESTED_RATIO_STEP: Final = 0.02


class CapacityPosterior(CapacityBelief):
    """Posterior of the requests/s that one ready replica carries within the SLO, for one workload.

    Slots are refused while the fleet changes or has just changed (cold start), and bad ones, in which more than the
    allowed share misses, while a queue left over from an earlier overload explains them. Not refused, whatever the
    fleet does, is a queue that is worked off more slowly than the capacity believed: requests have become heavier, and
    what each replica takes in now is the most that it carries.

    Evidence fades in proportion to how surprising a new slot is, so a quiet night teaches nothing and erases nothing,
    and a change of the requests' shape is followed within minutes; all of it fades with a half-life of a day. Outside
    the loads seen the posterior is the prior.

    Args:
        declared_rps: the operator's figure, centre of a lognormal prior with a wide tail, for it may be wrong; None:
            the prior sits around the loads seen.
        off_by: factor that it may be off by, two times of three; None: as a load test is.
        objective: share of requests that must be good.
        settle_s: after a change of the fleet, slots are refused for this long.
        smoothing_s: time constant over which the arrival rate is averaged, or the requests' residence time where that
            is longer: misses are counted when requests finish, later than they arrive; 0 = not averaged.

    Raises:
        ValueError: a declared figure that is not a positive number, or a factor that is not above 1.
    """

    __slots__ = (
        "_drift", "_fall", "_fleet", "_last_ts_ms", "_least_evidence", "_overload_rps", "_rate", "_settle_ms",
        "_smoothing_s", "_standing", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        declared_rps: float | None = None,
        *,
        off_by: float | None = None,
        objective: float = 0.99,
        settle_s: float = 60.0,
        smoothing_s: float = 10.0,
    ) -> None:
        super().__init__(declared_rps, off_by, objective)
        self._least_evidence = 0.0 if declared_rps is not None else _KNOWN_EVIDENCE
        self._settle_ms = round(settle_s * 1000)
        self._smoothing_s = smoothing_s
        self._drift = 0.0
        self._fall: Fall | None = None
        self._fleet: KnownFleet | None = None
        self._last_ts_ms: int | None = None
        self._rate: float | None = None
        self._waiting: float | None = None
        self._overload_rps = 0.0
        self._standing = NONE

    @property
    def known(self) -> bool:
        """Whether a plan may rest on it: declared, or seen under load for long enough."""
        return self.evidence >= self._least_evidence

    @property
    def evidence(self) -> float:
        """Requests' worth of evidence held, after forgetting."""
        return self._evidence.total

    def fade(self, keep: float) -> None:
        """Leave this share of the evidence, as where counters cannot be believed; enough stays to be known."""
        self._evidence.fade(max(keep, min(1.0, _MIN_EVIDENCE / max(self.evidence, 1.0))))
        self._evidence_changed()

    def observe(self, slot: SlotEvidence) -> Verdict:
        """Fold one closed slot; slots come in order, and one not newer than the last is ignored.

        Returns:
            What the slot was taken for; everything but "good" and "bad" leaves the posterior as it was.
        """
        if self._last_ts_ms is not None and slot.end_ts_ms <= self._last_ts_ms:
            return "unobserved"
        elapsed_ms = 0 if self._last_ts_ms is None else slot.end_ts_ms - self._last_ts_ms
        self._last_ts_ms = slot.end_ts_ms
        waiting, before = usable(slot.waiting), self._waiting
        self._waiting = waiting
        residence_s = usable(slot.residence_s) or 0.0
        gap = elapsed_ms > 1500 * slot.step_s
        averaged_s = 0.0 if gap or self._smoothing_s <= 0 else max(self._smoothing_s, residence_s)
        rate = self._rate = averaged(self._rate, usable(slot.arrival_rate), slot.step_s, averaged_s)
        fleet_before, self._fleet = self._fleet, KnownFleet.after(self._fleet, slot)
        if rate is None or slot.ready is None or self._fleet is None:
            return "unobserved"
        # A smoothed rate that fades away is one day so small that its share per replica is none.
        load = rate / slot.ready if slot.ready > 0 else 0.0
        if load <= 0:
            return "idle"
        settled = fleet_before is not None and fleet_before.ready == slot.ready and not gap
        self._standing = self._standing.after(slot, before) if settled else StandingQueue.on_new_fleet(slot)
        if self._contradicted(slot.ready, residence_s):
            self._overload_rps = load
            self._fall = after_misses(self._fall, slot.end_ts_ms, self._log_median(), self._evidence)
            self._start_over(self._standing.rate(slot.ready), missed_by(slot.strain, queued=True))
            self._standing = NONE
            return "bad"
        changing = self._fleet.refuses(slot, self._settle_ms, residence_s)
        if changing is not None:
            return changing
        misses = misses_of(slot, rate, usable(slot.miss_ratio), waiting)
        if misses is None:
            return "unclear"
        bad = misses.share > self._allowed
        if bad and self._left_over(load, rate, waiting, before, slot.ttft_s):
            return "backlog"
        self._overload_rps = load if bad else 0.0
        keep = self._kept(load, misses.share, misses.requests)
        if bad and (keep < 1.0 or self._fall is not None):
            self._fall = after_misses(self._fall, slot.end_ts_ms, self._log_median(), self._evidence)
        self._evidence.fade(keep * 0.5 ** (elapsed_ms / _HALF_LIFE_MS))
        share = min(misses.share, curves_of(self._allowed).most)
        self._count(load, share, misses.requests, missed_by(slot.strain, misses.queued))
        if not bad and self._fall is not None:
            step_ms, median = slot.step_s * 1000.0, self._log_median()
            self._fall = after_good_slot(self._fall, slot.end_ts_ms, step_ms, median, self._evidence)
            self._evidence_changed()
        return "bad" if bad else "good"

    def revalue(self, unit_rps: float, shift: float, tested_ratio: float = 1.0) -> None:
        """Take what a replica carries by the law of its engine as the unit that loads are remembered in.

        Args:
            unit_rps: requests/s of the present mix.
            shift: logarithm of the part by which this is another unit because the law is another, not the mix.
            tested_ratio: what the declared load test found over what the law says of its mix; 1 without one.
        """
        self._drift += math.log(unit_rps) if self._tested_ratio is None else shift
        before, self._unit_rps = self._tested_ratio, unit_rps
        cells = round(self._drift / SPACING)
        if cells:
            self._drift -= cells * SPACING
            self._evidence = self._evidence.shifted(-cells)
            if self._fall is not None:
                self._fall = self._fall.shifted(-cells)
        # The prior follows in steps: each of them makes the posterior be computed anew.
        follows = before is None or abs(math.log(tested_ratio / before)) >= _TESTED_RATIO_STEP
        if follows:
            self._tested_ratio = tested_ratio
        if follows or cells:
            self._evidence_changed()

    def converted(self, factor: float, declared_rps: float | None) -> CapacityPosterior:
        """What is known, in another unit; a queue that stands is not carried over.

        Args:
            factor: how many of it one of this is.
            declared_rps: the operator's figure, in the new unit.
        """
        posterior = CapacityPosterior(
            declared_rps, off_by=self._off_by, settle_s=self._settle_ms / 1000.0, smoothing_s=self._smoothing_s
        )
        posterior._allowed = self._allowed
        posterior._evidence = self._evidence.shifted(round(math.log(factor) / SPACING))
        posterior._fleet = self._fleet
        posterior._last_ts_ms = self._last_ts_ms
        posterior._overload_rps = self._overload_rps * factor
        return posterior

    def snapshot(self) -> dict[str, Any]:
        """Everything the next output reads except the prior, as plain values; `restore` gives back the same bits."""
        bins, weights = self._evidence.stored()
        standing = {} if self._standing == NONE else {"standing": self._standing.stored()}
        fall = {} if self._fall is None else {"fall": self._fall.stored()}
        promises = self._evidence.stored_promises()
        return (
            standing
            | fall
            | ({} if self._tested_ratio is None else {"unit": [self._unit_rps, self._tested_ratio, self._drift]})
            | ({"promises": promises} if promises else {})
            | {
                "v": 2,
                "bins": bins,
                "weights": weights,
                "fleet": None if self._fleet is None else list(self._fleet[:3]),
                "changed_ts_ms": None if self._fleet is None else self._fleet.changed_ts_ms,
                "last_ts_ms": self._last_ts_ms,
                "rate": self._rate,
                "waiting": self._waiting,
                "overload_rps": self._overload_rps,
            }
        )

    @classmethod
    def restore(
        cls,
        state: Mapping[str, Any],
        declared_rps: float | None = None,
        *,
        off_by: float | None = None,
        objective: float = 0.99,
        settle_s: float = 60.0,
        smoothing_s: float = 10.0,
    ) -> CapacityPosterior:
        """The posterior that a snapshot was taken of, under the prior declared now.

        Version 1 counted slots where this one counts requests; such evidence is left behind.

        Raises:
            ValueError: the snapshot is of another version or damaged.
        """
        if state.get("v") not in (1, 2):
            raise ValueError(f"capacity snapshot has version {state.get('v')!r}, this program reads 1 and 2")
        posterior = cls(declared_rps, off_by=off_by, objective=objective, settle_s=settle_s, smoothing_s=smoothing_s)
        if state["v"] == 2:
            posterior._evidence = LoadEvidence.of([state["bins"], state["weights"]], state.get("promises", ()))
        fleet = state["fleet"]
        changed_ts_ms = state["changed_ts_ms"]
        posterior._fleet = None if fleet is None else KnownFleet(fleet[0], fleet[1], fleet[2], changed_ts_ms)
        posterior._last_ts_ms = state["last_ts_ms"]
        posterior._rate = state["rate"]
        posterior._unit_rps, posterior._tested_ratio, posterior._drift = state.get("unit", (1.0, None, 0.0))
        posterior._waiting = state["waiting"]
        posterior._overload_rps = state["overload_rps"]
        posterior._standing = StandingQueue.of(state["standing"]) if "standing" in state else NONE
        posterior._fall = Fall.of(state["fall"]) if "fall" in state else None
        return posterior

    def _left_over(self, load: float, rate: float, waiting: float | None, before: float | None, ttft_s: float) -> bool:
        """Whether an earlier overload explains this bad slot: its queue is being worked off, not growing."""
        has_both = waiting is not None and before is not None
        if waiting is not None and before is not None and before > 0.5 * ttft_s * rate and waiting < before:
            return True
        recovering = self._overload_rps > 0 and load < 0.97 * self._overload_rps
        growing = has_both and waiting is not None and before is not None and waiting > before
        return recovering and not growing

    def _contradicted(self, ready: int, residence_s: float) -> bool:
        """Whether what a replica takes in at its limit is surely less than what is believed that it carries.

        Next to nothing is no contradiction: requests do not become twenty times as heavy, something is broken.
        """
        at_most = self._standing.at_most(ready, residence_s)
        if at_most is None or not self.known:
            return False
        believed = float(self.quantiles((0.5,))[0])
        return at_most < _CONTRADICTION_RATIO * believed and self._standing.rate(ready) > _BROKEN_RATIO * believed

    def _start_over(self, at_limit: float, by: MissedBy) -> None:
        """Leave half of the evidence, of requests that were lighter, and count a clump that misses at the limit."""
        self._evidence.fade(max(_CONTRADICTED_RATIO, min(1.0, _KNOWN_EVIDENCE / max(self.evidence, 1.0))))
        self._count(at_limit, 1.0, CLUMP, by)

    def _kept(self, load: float, share: float, requests: float) -> float:
        """Share of the evidence that a slot leaves, by how surprising it is."""
        evidence = self.evidence
        if evidence <= 0 or evidence < self._least_evidence:
            return 1.0
        curves = curves_of(self._allowed)
        surprise = abs(curves.told(share) - curves.told(self.miss_share(load))) / curves.most
        forget = _SURPRISE_DECAY * min(1.0, requests / CLUMP) * max(0.0, surprise - _MIN_SURPRISE)
        # What is left must outweigh a prior that is far off, or each surprise would erase what the last one taught.
        return max(1.0 - forget, min(1.0, _MIN_EVIDENCE / evidence))

    def _log_median(self) -> float:
        return math.log(float(self.quantiles((0.5,))[0]) / self._unit_rps)

    def _count(self, load: float, missed: float, requests: float, by: MissedBy) -> None:
        place = math.log(load / self._unit_rps) / SPACING - LOWEST
        self._evidence.add(place, requests * (1.0 - missed), requests * missed, by)
        self._evidence_changed()
