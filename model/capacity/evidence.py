"""Decayed counts of requests that were good and that missed, on a fixed lattice of log loads.

A workload sees loads within a factor of a few, a dozen of the lattice's hundreds, so only those that hold any are kept.
Sums over them are exactly rounded: what was restored adds up to the same bits.

Beside those that missed are counted which promise they missed, as far as that is known (`model.capacity.attribution`):
rows of the same lattice, which fade and move with the others, and which nothing reads that is told of both promises
together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.capacity.attribution import UNTOLD, MissedBy, Strain
from model.compiled import compiled

Cells = NDArray[np.float32]

BINS: Final = 701
# Smallest count of requests that is kept.
_MIN_COUNT: Final = 1e-4
_JOINT: Final = 3  # rows: indices, good, missed; behind them what missed each promise
_ROWS: Final = 5


class LoadEvidence:
    """Counts of one workload, lattice index by lattice index of 0..`BINS` - 1."""

    __slots__ = ("_cells", "_total")

    def __init__(self) -> None:
        self._cells = np.zeros((_ROWS, 0), dtype=np.float32)
        self._total: float | None = None  # None = it has changed

    @property
    def cells(self) -> Cells:
        """[3, M], not to be changed: indices that hold anything, ascending; requests there that were good; missed."""
        return self._cells[:_JOINT]

    @property
    def cells_by_promise(self) -> Cells:
        """[5, M], not to be changed: as `cells`; those known to have missed the first token's promise, the tokens'."""
        return self._cells

    @property
    def total(self) -> float:
        """Requests held."""
        if self._total is None:
            self._total = math.fsum(self.cells[1:].ravel().tolist())
        return self._total

    def fade(self, keep: float) -> None:
        """Multiply every count."""
        self._total = None
        if _fade(self._cells, np.float32(keep)):
            self._cells = _in_use(self._cells)

    def add(self, place: float, good: float, missed: float, by: MissedBy = UNTOLD) -> None:
        """Count requests at a place of the lattice, shared between the two indices beside it.

        Args:
            by: which promise was missed.
        """
        self._total = None
        place = min(max(place, 0.0), BINS - 1.001)
        low = int(place)
        ttft, tpot = missed * by.ttft, missed * by.tpot
        if not _add(self._cells, low, place - low, good, missed, ttft, tpot):
            self._cells = _reaching(self._cells, np.asarray((low, low + 1), np.float32))
            _add(self._cells, low, place - low, good, missed, ttft, tpot)
            self._cells = _in_use(self._cells)

    def replace(self, share: float, other: LoadEvidence) -> None:
        """Put so large a share of other counts in the place of as large a share of these."""
        self._total = None
        _fade(self._cells, np.float32(1.0 - share))
        cells = _reaching(self._cells, other._cells[0])
        cells[1:, np.searchsorted(cells[0], other._cells[0])] += np.float32(share) * other._cells[1:]
        self._cells = _in_use(cells)

    def copy(self) -> LoadEvidence:
        """The same counts, to be changed apart from these."""
        return LoadEvidence.of(self.stored(), self.stored_promises())

    def shifted(self, shift: int) -> LoadEvidence:
        """The same counts so many indices higher; what would lie outside the lattice is left out."""
        moved, indices = LoadEvidence(), self._cells[0] + shift
        inside = (indices >= 0) & (indices < BINS)
        # In rows: numpy keeps the order of a choice of columns, for which loops would be compiled once more.
        moved._cells = np.ascontiguousarray(np.vstack((indices[inside], self._cells[1:, inside])), np.float32)
        return moved

    def highest_good(self, least: float) -> int | None:
        """Highest index at or above which this many good requests were seen."""
        enough = np.cumsum(self._cells[1, ::-1], dtype=np.float64)[::-1] >= least
        return int(self._cells[0, np.flatnonzero(enough)[-1]]) if enough.any() else None

    def mean(self) -> float | None:
        """Mean index of the requests; None where none is held."""
        each = self.cells[1:].sum(axis=0, dtype=np.float64).tolist()
        total = math.fsum(each)
        indices = self._cells[0].tolist()
        return math.fsum(n * k for k, n in zip(indices, each, strict=True)) / total if total > 0 else None

    def stored(self) -> list[bytes]:
        """Indices in use as int16, and their counts as float32 [2, M], both little-endian."""
        return [self._cells[0].astype("<i2").tobytes(), self.cells[1:].astype("<f4").tobytes()]

    def stored_promises(self) -> list[bytes]:
        """Counts of what missed each promise as float32 [2, M], little-endian; none known: [].

        Apart from the others, so that a release that does not know them reads those.
        """
        counts = self._cells[_JOINT:].astype("<f4").tobytes()
        # Bytes are looked at in a tenth of the time of numbers, and a commit stores them of every workload.
        own = counts if counts.strip(b"\0") else b""
        return [own] if own else []

    @classmethod
    def of(cls, stored: Sequence[bytes], promises: Sequence[bytes] = ()) -> LoadEvidence:
        """What `stored` and `stored_promises` were told of.

        Raises:
            ValueError: lengths that do not fit, or indices that are not ascending ones of the lattice.
        """
        bins, counts = stored[:2]  # earlier releases also stored the counts in another unit
        indices = np.frombuffer(bins, dtype="<i2")
        if len(indices) and (indices.min() < 0 or indices.max() >= BINS):
            raise ValueError(f"evidence of capacity has indices outside 0..{BINS - 1}")
        if (np.diff(indices) <= 0).any():
            raise ValueError("evidence of capacity has indices that are not ascending")
        evidence = cls()
        cells = np.zeros((_ROWS, len(indices)), np.float32)
        cells[0], cells[1:_JOINT] = indices, np.frombuffer(counts, dtype="<f4").reshape(2, len(indices))
        if promises and promises[0]:
            cells[_JOINT:] = np.frombuffer(promises[0], dtype="<f4").reshape(2, len(indices))
        evidence._cells = _in_use(cells)
        return evidence


def _reaching(cells: Cells, indices: Cells) -> Cells:
    """A copy that has columns of these indices, too."""
    union = np.union1d(cells[0], indices)
    wider = np.zeros((_ROWS, len(union)), np.float32)
    wider[0] = union
    wider[1:, np.searchsorted(union, cells[0])] = cells[1:]
    return wider


def _in_use(cells: Cells) -> Cells:
    """Without the columns that hold nothing: no promise was missed by more than missed any."""
    used = cells[1:_JOINT].any(axis=0)
    return cells if used.all() else np.ascontiguousarray(cells[:, used])


@compiled
def _fade(cells: Cells, keep: np.float32) -> bool:
    """Multiply, and forget what is next to nothing; whether a column holds nothing now."""
    nothing, empty = np.float32(_MIN_COUNT), False
    for k in range(cells.shape[1]):
        for label in range(1, _ROWS):
            count = cells[label, k] * keep
            cells[label, k] = np.float32(0.0) if count < nothing else count
        empty |= cells[1, k] == 0.0 and cells[2, k] == 0.0
    return empty


@compiled
def _add_to(counts: Cells, part: float, good: float, missed: float, ttft: float, tpot: float) -> None:
    counts[0] += np.float32(good * part)
    counts[1] += np.float32(missed * part)
    counts[2] += np.float32(ttft * part)
    counts[3] += np.float32(tpot * part)


@compiled
def _add(cells: Cells, low: int, above: float, good: float, missed: float, ttft: float, tpot: float) -> bool:
    """Share requests between an index and the next one, which gets the part `above`; false: there is a column to add.

    Nothing is counted then.
    """
    at, size = 0, cells.shape[1]
    while at < size and cells[0, at] < low:
        at += 1
    if at == size or cells[0, at] != low:
        return False
    if above > 0.0 and (at + 1 == size or cells[0, at + 1] != low + 1):
        return False
    _add_to(cells[1:, at], 1.0 - above, good, missed, ttft, tpot)
    if above > 0.0:
        _add_to(cells[1:, at + 1], above, good, missed, ttft, tpot)
    return True


# What one slot of telemetry says about the capacity of the replicas that served it.


CLUMP: Final = 20.0  # requests, beyond which more of the same stretch of time say little more
_STRETCH_S: Final = 15.0  # shortest time over which requests miss together


@dataclass(frozen=True, slots=True)
class SlotEvidence:
    """What one closed slot says about capacity. Unknown numbers are None.

    Attributes:
        end_ts_ms: end of the slot, event time.
        arrival_rate: requests/s over the slot.
        miss_ratio: share of the slot's finished requests that missed the SLO.
        waiting: requests waiting, mean over the slot.
        ready, pending, draining: replicas.
        ttft_s, objective: of the SLO.
        finished: requests that `miss_ratio` is of; None = as many as arrive.
        residence_s: how long a request is being served, on average.
        in_tokens: arrivals and queue are counted in tokens; else in requests.
        strain: of each promise of the SLO; None = they are not told apart.
    """

    end_ts_ms: int
    step_s: float
    arrival_rate: float | None
    miss_ratio: float | None
    waiting: float | None
    ready: int | None
    pending: int
    draining: int
    ttft_s: float
    objective: float
    residence_s: float | None = None
    finished: float | None = None
    in_tokens: bool = False
    strain: Strain | None = None


def usable(value: float | None) -> float | None:
    """A measured number that is finite and not negative, else None."""
    return None if value is None or not math.isfinite(value) or value < 0 else float(value)


class Misses(NamedTuple):
    """Share of a slot's requests that missed, and how many independent requests it is worth.

    `queued`: so many wait that all must miss.
    """

    share: float
    requests: float
    queued: bool = False


def misses_of(slot: SlotEvidence, rate: float, miss_ratio: float | None, waiting: float | None) -> Misses | None:
    """What a slot says; None where it says nothing.

    A queue longer than what arrives within the wait allowed makes all miss, whatever was counted (Little's law); one
    less than half as long, where nothing was counted, none.

    Requests of a stretch of time miss together, so many of them are worth little more than `CLUMP`. A slot shorter than
    that has its part of the stretch, so that evidence does not depend on how time is cut into slots. Where requests
    stay for longer, neighbouring stretches tell of the same requests.
    """
    wait_s = None if waiting is None else waiting / rate
    finished = usable(slot.finished)
    requests = rate * slot.step_s if finished is None else finished
    stretch_s = max(_STRETCH_S, slot.step_s)
    of_stretch = requests * stretch_s / slot.step_s
    part = slot.step_s / max(stretch_s, usable(slot.residence_s) or 0.0)
    worth = part * of_stretch / (1.0 + of_stretch / CLUMP)
    if wait_s is not None and wait_s > slot.ttft_s:
        return Misses(1.0, worth, queued=True)
    if miss_ratio is None:
        return Misses(0.0, 0.5 * worth) if wait_s is not None and wait_s < 0.5 * slot.ttft_s else None
    return Misses(min(miss_ratio, 1.0), worth) if requests > 0 else None


# What a fleet takes in while a queue stands: the most that it carries, whatever its misses say.


# Longest averaging time of a standing queue.
_MAX_AVERAGING_S: Final = 60.0
# Shortest averaging time of a standing queue.
_MIN_AVERAGING_S: Final = 15.0
# Standard deviations by which a Poisson count may be below its mean by chance.
_POISSON_SIGMAS: Final = 2.0


@dataclass(frozen=True, slots=True)
class StandingQueue:
    """Requests taken in since a queue stands, up to a minute back, on a fleet that did not change.

    A short slot is a noisy witness: it counts few requests, the queue at its two ends is as uncertain as they are, and
    what is taken in follows what happens to finish. So it is averaged, over no less than the time that requests stay.

    Most routers give a request to a replica when it comes, so a queue may stand at some replicas while those that have
    started since take in all they are given. Such a queue says what all of them take in only while it grows.

    Attributes:
        taken_in: requests that left the queue for a replica.
        seconds: over which they did.
        arrived: requests that came in that time.
        older: the queue is older than the fleet.
    """

    taken_in: float = 0.0
    seconds: float = 0.0
    arrived: float = 0.0
    older: bool = False

    def after(self, slot: SlotEvidence, before: float | None) -> StandingQueue:
        """With one more slot of the same fleet; none where no queue stands.

        A queue stands where it is longer, in this slot and the one before, than what arrives within the wait allowed
        (Little's law). What was taken in is what came, less what the queue grew by.

        Args:
            before: requests waiting in the slot before.
        """
        rate, waiting = usable(slot.arrival_rate), usable(slot.waiting)
        if rate is None or waiting is None or before is None or not slot.ready or slot.draining > 0:
            return self._nothing_of_it(slot)
        if slot.in_tokens or min(waiting, before) <= slot.ttft_s * rate:
            return self._nothing_of_it(slot)  # in tokens a queue also grows by the lengths of what waits
        arrived = rate * slot.step_s
        keep = min(1.0, max(0.0, _MAX_AVERAGING_S - slot.step_s) / self.seconds) if self.seconds > 0 else 0.0
        return StandingQueue(
            self.taken_in * keep + arrived - (waiting - before),
            self.seconds * keep + slot.step_s,
            self.arrived * keep + arrived,
            self.older,
        )

    @staticmethod
    def on_new_fleet(slot: SlotEvidence) -> StandingQueue:
        """Nothing yet, on a fleet that was another one in the slot before, or that nothing was known of."""
        rate, waiting = usable(slot.arrival_rate), usable(slot.waiting)
        is_drained = rate is not None and waiting is not None and waiting <= slot.ttft_s * rate
        return NONE if is_drained else OLDER

    def at_most(self, ready: int, residence_s: float) -> float | None:
        """Requests/s that each ready replica surely does not take in more than; None where that cannot be said yet."""
        if self.taken_in <= 0 or self.seconds < min(max(_MIN_AVERAGING_S, residence_s), _MAX_AVERAGING_S):
            return None
        if self.older and self.taken_in > self.arrived:
            return None
        return (self.taken_in + _POISSON_SIGMAS * math.sqrt(self.taken_in)) / (self.seconds * ready)

    def rate(self, ready: int) -> float:
        """Requests/s that each ready replica takes in, on average."""
        return self.taken_in / (self.seconds * ready)

    def stored(self) -> list[float]:
        """As plain numbers; `of` gives back the same."""
        return [self.taken_in, self.seconds, self.arrived, float(self.older)]

    @classmethod
    def of(cls, stored: Sequence[float]) -> StandingQueue:
        """As it was stored; where what came was not stored yet, it begins anew."""
        if len(stored) < 4:
            return OLDER
        return cls(float(stored[0]), float(stored[1]), float(stored[2]), bool(stored[3]))

    def _nothing_of_it(self, slot: SlotEvidence) -> StandingQueue:
        """What is left after a slot that says nothing: only a queue that is surely gone is no older one."""
        return self.on_new_fleet(slot) if self.older else NONE


NONE: Final = StandingQueue()
OLDER: Final = StandingQueue(older=True)


# Which slots say nothing of a capacity because the fleet changes or has just changed.


_SETTLE_RESIDENCES: Final = 1.5
_STUCK_MS: Final = 600_000  # a fleet pending or draining unchanged for this long is stuck, not changing


class KnownFleet(NamedTuple):
    """Replicas as last told, and since when they are so many.

    Attributes:
        changed_ts_ms: end of the slot that first told so; None = the first fleet ever seen.
    """

    ready: int
    pending: int
    draining: int
    changed_ts_ms: int | None

    @classmethod
    def after(cls, before: KnownFleet | None, slot: SlotEvidence) -> KnownFleet | None:
        """What is known with one more slot, which may say nothing of replicas."""
        if slot.ready is None:
            return before
        counts = (slot.ready, slot.pending, slot.draining)
        if before is not None and before[:3] == counts:
            return before
        # The first fleet ever seen is taken as settled: a restart of ours is no cold start of theirs.
        return cls(*counts, None if before is None else slot.end_ts_ms)

    def refuses(
        self, slot: SlotEvidence, least_ms: int, residence_s: float
    ) -> Literal["fleet_changing", "cold_start"] | None:
        """Why this slot, the newest that was told of, must be refused; None where it need not.

        Args:
            least_ms: for which slots are refused after a change, or longer while what was served then still is.
            residence_s: that requests stay; 0 = unknown.
        """
        since_ms = None if self.changed_ts_ms is None else slot.end_ts_ms - self.changed_ts_ms
        if self.pending > 0 or self.draining > 0:
            return None if since_ms is not None and since_ms >= _STUCK_MS else "fleet_changing"
        # What was being served at the change stays where it was, so the old fleet's misses last as long as requests do.
        settle_ms = max(least_ms, _SETTLE_RESIDENCES * residence_s * 1000.0)
        return "cold_start" if since_ms is not None and since_ms < min(settle_ms, _STUCK_MS) else None


def averaged(before: float | None, now: float | None, step_s: float, over_s: float) -> float | None:
    """A rate averaged over so many seconds; anew where it was not known, or that is no time."""
    if now is None or before is None or over_s <= 0:
        return now
    return before + (now - before) * -math.expm1(-step_s / over_s)
