"""The queue ahead: on which futures does a replica count keep the SLO?

A future of one workload is a demand path, a capacity per replica and a lead time. The queue is a fluid one,
q[t+1] = max(0, q[t] + (d[t] - kappa n[t]) dt), and the requests of step t miss when the wait q / (kappa n[t]) exceeds
the TTFT allowed at the start or at the end of the step. New replicas serve from the first step that begins after the
lead time; replicas given up leave at once. A future is *missed* when more than 1 - objective of the requests of the
commit window, the first steps after the lead time, miss. Giving up replicas also bites before that, so for fewer
replicas than are commanded now the misses before the window count as well.

A queue that is there before any new replica can serve makes misses that no count can avoid, short of one that clears it
in an instant. So a future is *kept* by a count when no more requests miss than that queue explains, worked off evenly
over the commit window; without such a queue kept and not missed are one.

More replicas never make a future worse, in floating point too: every operation is monotone. So each future has a need,
the fewest replicas that keep it, found by bisection, and the risk at any count is the share of futures that need more:
all counts share their random numbers. Every operation is elementwise over futures: a row does not depend on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from model.futures import Futures

_CHUNK: Final = 1 << 16  # futures simulated at once: the working set stays within a core's cache
_ROUNDING: Final = 1.0 + 1e-5  # on counts computed instead of simulated
_UNKNOWN: Final = float(1 << 40)


@dataclass(frozen=True, slots=True)
class Needs:
    """Fewest replicas within the bounds searched, int64 [B, V]; one above the upper bound where none does.

    Attributes:
        kept: with which the future is kept.
        missed: with which it is not missed; never below `kept`.
    """

    kept: Tensor
    missed: Tensor


@dataclass(frozen=True, slots=True)
class Risk:
    """A probability and its standard error per candidate, float64 [B, C]."""

    p_miss: Tensor
    stderr: Tensor


def path_needs(futures: Futures, low: Tensor, high: Tensor) -> Needs:
    """Needs of every future, searched within the inclusive bounds `low` and `high`, int64 [B]."""
    sweep = _Sweep(futures)
    shape = futures.capacity.shape
    lows = low[:, None].expand(shape).reshape(-1)  # [B*V]
    none = (high[:, None] + 1).expand(shape).reshape(-1)  # [B*V]
    commanded = futures.commanded[:, None].expand(shape).reshape(-1)  # [B*V]
    clear = torch.maximum(sweep.quietly_enough(), lows)
    evenly = torch.maximum(sweep.enough_after(futures.window_steps * futures.step_s), torch.maximum(commanded, lows))
    kept = _bisect(sweep, lows, torch.minimum(torch.minimum(clear, evenly), none), commanded, excused=True)
    # Only an inherited queue tells the two criteria apart, and only at counts that give up nothing.
    differ = (sweep.inherited > 0) & (kept >= commanded) & (kept < none)
    at_once = torch.maximum(sweep.enough_after(None), kept)
    missed = _bisect(sweep, kept, torch.where(differ, torch.minimum(at_once, none), kept), commanded, excused=False)
    return Needs(kept.view(shape), missed.view(shape))


def path_misses(futures: Futures, replicas: Tensor) -> Tensor:
    """Whether each future is missed with `replicas` int64 [B]; bool [B, V]. One pass, no bisection."""
    sweep = _Sweep(futures)
    wanted = replicas[:, None].expand(futures.capacity.shape).reshape(-1)
    commanded = futures.commanded[:, None].expand(futures.capacity.shape).reshape(-1)
    index = torch.arange(wanted.numel(), device=wanted.device)
    missed = sweep.missed(index, wanted, commanded, excused=False)
    return missed.view(futures.capacity.shape)


def risk_of(needs: Tensor, candidates: Tensor, num_paths: int) -> Risk:
    """Share of futures that need more than each candidate.

    Futures on one demand path are not independent, so the standard error is taken over paths. Where no spread is seen
    it is that of a single miss.

    Args:
        needs: int64 [B, V], V a multiple of `num_paths`.
        candidates: int64 [B, C], within the bounds the needs were searched in.
    """
    rows, draws = needs.shape
    over = needs.view(rows, 1, draws // num_paths, num_paths) > candidates[:, :, None, None]
    per_path = over.sum(dim=2).to(torch.float64)  # [B, C, S], whole numbers: sums are exact in any order
    repeats = draws // num_paths
    total, squares = per_path.sum(dim=-1), per_path.square().sum(dim=-1)
    variance = (squares / num_paths - (total / num_paths).square()).clamp(min=0.0) / repeats**2
    single = (1.0 - 1.0 / draws) / draws**2
    return Risk(total / draws, (variance / num_paths).clamp(min=single).sqrt())


def miss_risk(futures: Futures, candidates: Tensor) -> Risk:
    """P(miss) at each candidate count, int64 [B, C]; never rises with the count."""
    needs = path_needs(futures, candidates.amin(dim=1), candidates.amax(dim=1))
    return risk_of(needs.missed, candidates, futures.demand.shape[1])


def _bisect(sweep: _Sweep, low: Tensor, high: Tensor, commanded: Tensor, *, excused: bool) -> Tensor:
    """Fewest counts in low..high (flat) that suffice; `high` is taken to suffice, or stands for none."""
    low, high = low.clone(), high.clone()
    first = True
    while True:
        (index,) = torch.nonzero(low < high, as_tuple=True)
        if index.numel() == 0:
            return low
        below, above, now = low[index], high[index], commanded[index]
        # Asked first about the count there is: counts above it are settled by the window alone.
        middle = torch.minimum(torch.maximum(now, below), above - 1) if first else (below + above) // 2
        missed = sweep.missed(index, middle, now, excused=excused)
        low[index] = torch.where(missed, middle + 1, below)
        high[index] = torch.where(missed, above, middle)
        first = False


def _window_sums(steps: Tensor, window: int) -> Tensor:
    """Sums of `window` consecutive steps: [M, H] to [M, H - window + 1], added one by one in order."""
    width = steps.shape[1] - window + 1
    total = steps[:, :width].clone()
    for k in range(1, window):
        total += steps[:, k : k + width]
    return total


class _Sweep:
    """The simulation, for any subset of the futures (flat, v within row), each with a replica count of its own."""

    def __init__(self, futures: Futures) -> None:
        self._futures = futures
        rows, paths, horizon = futures.demand.shape
        self._step_demand = futures.demand.reshape(rows * paths, horizon) * futures.step_s  # requests per step
        # Per step [B*S] and contiguous: neighbouring futures read neighbouring numbers.
        self._by_step = self._step_demand.t().contiguous()
        self._requests = _window_sums(self._step_demand, futures.window_steps)  # [B*S, H-W+1]
        self._kappa = (futures.capacity * futures.step_s).reshape(-1)  # requests per replica and step
        self._lead = futures.lead_steps.reshape(-1)
        self._later = futures.pending - futures.arrived[:, -1]  # [B], come with the lead time
        self._arriving = bool((futures.arrived != 0).any())
        self._wait = futures.ttft_s / futures.step_s  # [B], in steps
        self._slack = (1.0 - futures.objective).to(torch.float32)
        peak = self._step_demand.view(rows, paths, horizon).amax(dim=-1)  # [B, S]
        self._peak = peak.repeat(1, futures.capacity.shape[1] // paths).view(-1)  # [B*V]
        self.inherited = self._queue_at_lead()

    def quietly_enough(self) -> Tensor:
        """A count [B*V] with which no queue outgrows the wait allowed, where the ready replicas are that many.

        With capacity for the peak and for the queue there is, and nothing to wait for, nothing needs simulating.
        """
        futures = self._futures
        shape = futures.capacity.shape
        clear = (futures.backlog / self._wait)[:, None].expand(shape).reshape(-1)
        enough = torch.ceil(torch.maximum(self._peak, clear) / self._kappa * _ROUNDING)
        known = enough <= futures.ready[:, None].expand(shape).reshape(-1)
        return torch.where(known, enough, _UNKNOWN).to(torch.int64)

    def enough_after(self, drain_s: float | None) -> Tensor:
        """A count [B*V] that, once it serves, carries the peak and works the inherited queue off in that time.

        None: in an instant, so that nobody waits longer than allowed. Holds for counts that give up nothing.
        """
        futures = self._futures
        shape = futures.capacity.shape
        if drain_s is None:
            wait = self._wait[:, None].expand(shape).reshape(-1)
            rate = torch.maximum(self._peak, self.inherited / wait)
        else:
            rate = self._peak + self.inherited * (futures.step_s / drain_s)
        awaited = (futures.arrived[:, -1:] - futures.arrived).amax(dim=1)[:, None].expand(shape).reshape(-1)
        enough = torch.ceil(rate / self._kappa * _ROUNDING).clamp(max=_UNKNOWN)
        return enough.to(torch.int64) + awaited

    def missed(self, index: Tensor, replicas: Tensor, commanded: Tensor, *, excused: bool) -> Tensor:
        """bool [M]: futures `index` that are missed (`excused`: not kept) with `replicas`; all int64 [M]."""
        missed = torch.empty(index.shape, dtype=torch.bool, device=index.device)
        for gives_up in (False, True):
            (chosen,) = torch.nonzero((replicas < commanded) == gives_up, as_tuple=True)
            for start in range(0, chosen.numel(), _CHUNK):
                part = chosen[start : start + _CHUNK]
                if gives_up:
                    missed[part] = self._missed_from_now(index[part], replicas[part])
                else:
                    missed[part] = self._missed_in_window(index[part], replicas[part] - commanded[part], excused)
        return missed

    def _rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Row and flat path of flat futures."""
        paths, draws = self._futures.demand.shape[1], self._futures.capacity.shape[1]
        row = torch.div(index, draws, rounding_mode="floor")
        return row, row * paths + (index - row * draws) % paths

    def _allowed(self, row: Tensor, path: Tensor, lead: Tensor) -> Tensor:
        """Requests [M] of the window that may miss."""
        requests = self._requests.view(-1)[path * self._requests.shape[1] + lead]
        return requests * self._slack[row]

    def _queue_at_lead(self) -> Tensor:
        """Queue [B*V] when a replica commanded now would begin to serve, if none is given up."""
        futures = self._futures
        shape = futures.capacity.shape
        ready = futures.ready[:, None].expand(shape).reshape(-1)
        backlog = futures.backlog[:, None].expand(shape).reshape(-1)
        inherited = torch.zeros_like(self._kappa)
        (busy,) = torch.nonzero((backlog > 0) | (self._peak > self._kappa * ready), as_tuple=True)
        for start in range(0, busy.numel(), _CHUNK):
            index = busy[start : start + _CHUNK]
            row, path = self._rows(index)
            lead, kappa = self._lead[index], self._kappa[index]
            queue, served = backlog[index], ready[index] * kappa
            for t in range(int(lead.max())):
                if self._arriving:
                    served = (ready[index] + futures.arrived[row, t]) * kappa
                left = (self._by_step[t].index_select(0, path) + queue).sub_(served).clamp_(min=0.0)
                queue = torch.where(lead > t, left, queue)
            inherited[index] = queue
        return inherited

    def _missed_in_window(self, index: Tensor, extra: Tensor, excused: bool) -> Tensor:
        """Counts at or above the commanded one: before the window they change nothing."""
        futures = self._futures
        row, path = self._rows(index)
        lead, kappa, wait = self._lead[index], self._kappa[index], self._wait[row]
        horizon, window = futures.demand.shape[2], futures.window_steps
        inherited = queue = self.inherited[index]
        replicas = futures.ready[row] + self._later[row] + extra
        served, demand = replicas * kappa, self._step_demand.view(-1)
        missed = torch.zeros_like(queue)
        for t in range(window):
            if self._arriving:
                served = (replicas + futures.arrived[row, lead + t]) * kappa
            here = demand[path * horizon + lead + t]
            left = (queue + here).sub_(served).clamp_(min=0.0)
            if excused:
                before = queue - inherited * (1.0 - t / window)
                after = left - inherited * (1.0 - (t + 1) / window)
                over = torch.maximum(before, after) > served * wait
            else:
                over = torch.maximum(queue, left) > served * wait
            missed += here.mul_(over)
            queue = left
        return missed > self._allowed(row, path, lead)

    def _missed_from_now(self, index: Tensor, replicas: Tensor) -> Tensor:
        """Counts below the commanded one: they bite at once, so every step until the window's end is scored."""
        futures = self._futures
        row, path = self._rows(index)
        lead, kappa, wait = self._lead[index], self._kappa[index], self._wait[row]
        ends = lead + futures.window_steps
        ready, later, queue = futures.ready[row], self._later[row], futures.backlog[row]
        before = torch.minimum(replicas, ready) * kappa
        after = torch.minimum(replicas, ready + later) * kappa
        missed = torch.zeros_like(queue)
        for t in range(int(ends.max())):
            if self._arriving:
                here = ready + futures.arrived[row, t]
                before, after = torch.minimum(replicas, here) * kappa, torch.minimum(replicas, here + later) * kappa
            demand = self._by_step[t].index_select(0, path)
            served = torch.where(lead <= t, after, before)
            left = (queue + demand).sub_(served).clamp_(min=0.0)
            over = torch.maximum(queue, left) > served.mul_(wait)
            missed += demand.mul_(over).mul_(ends > t)
            queue = left
        return missed > self._allowed(row, path, lead)
