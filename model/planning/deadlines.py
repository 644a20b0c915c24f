"""The fewest replicas by which work with deadlines is done in time, beside the load that is served at once.

What online load leaves of the capacity goes to the job that is due first (earliest deadline first, which meets all
deadlines if anything does). Work is divisible and spread over all replicas, so a count meets them exactly when, between
any release and any deadline, no more work must be done than is left over. More replicas never leave less, so the fewest
are found by halving. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

# Time by which a deadline that cannot be met is extended.
DEADLINE_EXTENSION_S: Final = 3600.0
# Most extensions of a deadline; beyond them the work is done as soon as possible.
_MAX_EXTENSIONS: Final = 2
_ROUNDING: Final = 1e-9


class Job(NamedTuple):
    """Work, in requests like the online ones, that may be done from `release_s` and must be by `due_s`, from now."""

    release_s: float
    due_s: float
    work: float


@dataclass(frozen=True, slots=True)
class Means:
    """What there is to do it with.

    Attributes:
        online: [H], requests/s served at once in each step; later steps are as the last one.
        step_s: length of a step.
        capacity: requests/s of one replica.
        ready: replicas that serve now; more of them serve from `lead_s` on, fewer at once.
    """

    online: Float
    step_s: float
    capacity: float
    ready: int
    lead_s: float


class Floor(NamedTuple):
    """`in_time`: whether all deadlines can be met; where not, late work is done an hour or two later, or as can be."""

    replicas: int
    in_time: bool


def min_replicas_for_deadlines(jobs: Sequence[Job], means: Means, low: int, high: int) -> Floor:
    """The fewest of low..high replicas, held from now on, that do all jobs by their deadlines.

    What is late has a whole hour more, counted from its own deadline, so that it ends; all others keep theirs.
    """
    open_jobs = [job for job in jobs if job.work > 0]
    in_time = all(job.due_s > 0 for job in open_jobs) and meets(open_jobs, means, high)
    feasible = open_jobs if in_time else _extend_deadlines(open_jobs, means, high)
    if feasible is None:
        return Floor(high, in_time=False)
    while low < high:
        middle = (low + high) // 2
        if meets(feasible, means, middle):
            high = middle
        else:
            low = middle + 1
    return Floor(low, in_time)


def _extend_deadlines(jobs: Sequence[Job], means: Means, most: int) -> list[Job] | None:
    """The jobs, with later deadlines for as few as may be, so that so many replicas meet them; None where they cannot.

    Overdue ones are late as they are. The others are taken in the order of their deadlines, and made late only where no
    late one is in their way.
    """
    entries = [(job, 0) if job.due_s > 0 else (_overdue(job), 1) for job in jobs]  # and how often it was put off
    met = 0
    while True:
        entries.sort(key=lambda entry: (entry[0].due_s, entry))
        while met < len(entries) and meets([job for job, _ in entries[: met + 1]], means, most):
            met += 1
        if met == len(entries):
            return [job for job, _ in entries]
        late = [k for k in range(met + 1) if entries[k][1] > 0] or [met]
        met = max((k for k in late if entries[k][1] < _MAX_EXTENSIONS), default=-1)
        if met < 0:
            return None
        job, times = entries[met]
        entries[met] = job._replace(due_s=job.due_s + DEADLINE_EXTENSION_S), times + 1


def _overdue(job: Job) -> Job:
    """Due when the running hour is over, counted from its deadline."""
    return job._replace(due_s=job.due_s + DEADLINE_EXTENSION_S * (math.floor(-job.due_s / DEADLINE_EXTENSION_S) + 1))


def meets(jobs: Sequence[Job], means: Means, replicas: int) -> bool:
    """Whether so many replicas do all jobs by their deadlines."""
    if not jobs:
        return True
    release, due, work = (np.array(column, np.float64) for column in zip(*jobs, strict=True))
    release = np.maximum(release, 0.0)
    starts, ends = np.unique(release), np.unique(due)
    spare = _left_over(means, replicas, np.concatenate((starts, ends)))
    before, after = spare[: len(starts)], spare[len(starts) :]
    inside = (release[:, None, None] >= starts[:, None]) & (due[:, None, None] <= ends)  # [J, starts, ends]
    work_due = (work[:, None, None] * inside).sum(axis=0)
    room = np.maximum(after[None, :] - before[:, None], 0.0)
    return bool((work_due <= room * (1.0 + _ROUNDING) + _ROUNDING).all())


def _left_over(means: Means, replicas: int, until_s: Float) -> Float:
    """Requests that could be served beside the online ones from now until each of these times."""
    step_s, arrive = means.step_s, math.ceil(means.lead_s / means.step_s - _ROUNDING)
    steps = max(len(means.online), arrive) + 1
    online = np.concatenate((means.online, np.full(steps - len(means.online), means.online[-1])))
    serving = np.where(np.arange(steps) < arrive, min(replicas, means.ready), replicas)
    rate = np.maximum(serving * means.capacity - np.maximum(online, 0.0), 0.0)
    total = np.concatenate(([0.0], np.cumsum(rate * step_s)))
    place = np.maximum(until_s, 0.0) / step_s
    index = np.minimum(place.astype(np.int64), steps - 1)
    return np.asarray(total[index] + (place - index) * rate[index] * step_s)
