"""The fewest replicas whose P(miss) is at most epsilon: screened on some draws of the future, verified on fresh ones.

Draws pair each demand path with quantiles of capacity and of lead time in a fixed shuffled order, shifted per row by
its seeds: spread evenly over both posteriors, and the same for a row whatever batch it stands in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from model.backlog import Needs, path_needs, risk_of
from model.futures import Futures, lead_steps

Ground = Literal["chance_constrained", "recovery", "maximum"]

_REACHES: Final = (2, 8, 1 << 40)  # counts around the start that are verified first, then next, then all there are
_BESIDE: Final = 2  # counts on either side of the answer whose risk is stated
_FIRST_DRAWS: Final = 1024  # verified for every row; the rest only where the answer is in doubt
_LITTLE: Final = 10  # one in so many replicas more, or one, is little to pay for keeping the stated risk
_SURE: Final = 2.0  # standard errors from epsilon at which it is not


@dataclass(frozen=True, slots=True)
class Outlook:
    """B workloads at their origins, with everything a draw of their futures needs. All tensors on one device.

    Attributes:
        demand: float32 [B, S, H], requests/s.
        capacity: float64 [B, K], quantiles of the requests/s one replica carries, at K evenly spaced levels.
        lead_s: float64 [B, K], quantiles of the time until a replica commanded at the origin serves.
        horizon: int64 [B], steps of the paths that belong to the row.
        bounds: B inclusive ranges of the replica count.
        epsilon: B risks allowed.
        seeds: per row, two for screening and two for verifying.
        The others as in `Futures`.
    """

    demand: Tensor
    capacity: Tensor
    lead_s: Tensor
    horizon: Tensor
    ready: Tensor
    pending: Tensor
    arrived: Tensor
    backlog: Tensor
    ttft_s: Tensor
    objective: Tensor
    bounds: tuple[tuple[int, int], ...]
    epsilon: tuple[float, ...]
    seeds: tuple[tuple[int, int, int, int], ...]
    window_steps: int
    step_s: float

    @property
    def num_paths(self) -> int:
        return self.demand.shape[1]

    def futures(self, rows: Sequence[int], num_draws: int, *, fresh: bool) -> Futures:
        """Futures of some rows, `num_draws` (a multiple of the paths) each; `fresh` ones apart from the rest."""
        index = self.whole(rows)
        seeds = [self.seeds[i][2:] if fresh else self.seeds[i][:2] for i in rows]
        capacity, lead_s = (
            self._drawn(table[index], order, [s[which] % num_draws for s in seeds])
            for which, (table, order) in enumerate(zip((self.capacity, self.lead_s), _orders(num_draws), strict=True))
        )
        return Futures(
            demand=self.demand[index],
            capacity=capacity.to(torch.float32),
            lead_steps=lead_steps(lead_s, self.step_s, self.window_steps, self.horizon[index]),
            ready=self.ready[index],
            pending=self.pending[index],
            arrived=self.arrived[index],
            backlog=self.backlog[index],
            ttft_s=self.ttft_s[index],
            objective=self.objective[index],
            window_steps=self.window_steps,
            step_s=self.step_s,
        )

    def whole(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        """int64 tensor on the device of the paths."""
        return torch.tensor(numbers, dtype=torch.int64, device=self.demand.device)

    def _drawn(self, table: Tensor, order: Tensor, shifts: Sequence[int]) -> Tensor:
        place = (order.to(table.device) + self.whole(shifts)[:, None]) % order.numel()  # [B, V]
        return table.gather(1, place * table.shape[1] // order.numel())


@dataclass(frozen=True, slots=True)
class Verified:
    """A replica count, what it rests on, and P(miss) with standard error of the counts around it, ascending.

    `ground`: `chance_constrained`, P(miss) is at most epsilon; `recovery`, it is not, for a queue is there before any
    replica can come, but the futures are kept at that risk; `maximum`, not even that.
    """

    replicas: int
    ground: Ground
    counts: tuple[int, ...]
    p_miss: tuple[float, ...]
    stderr: tuple[float, ...]


def screen(outlook: Outlook) -> Needs:
    """Needs [B, S] of one draw per path, searched over each row's whole range."""
    futures = outlook.futures(range(len(outlook.bounds)), outlook.num_paths, fresh=False)
    low, high = zip(*outlook.bounds, strict=True)
    return path_needs(futures, outlook.whole(low), outlook.whole(high))


def fewest(needs: Tensor, epsilon: Sequence[float]) -> list[int]:
    """Per row of needs [B, V], the fewest replicas that at most a share epsilon needs more than."""
    draws = needs.shape[1]
    ordered, _ = needs.sort(dim=1)
    place = [max(draws - 1 - _allowed_misses(e, draws), 0) for e in epsilon]
    at = torch.tensor(place, dtype=torch.int64, device=needs.device)
    return [int(n) for n in ordered.gather(1, at[:, None])[:, 0].tolist()]


def verify(outlook: Outlook, start: Sequence[int], max_draws: int) -> list[Verified]:
    """Per row the fewest replicas that keep all but a share epsilon of fresh futures.

    Where a queue that cannot be avoided makes P(miss) more than epsilon there, and a few replicas more bring it down,
    it is those.

    Args:
        start: count from which each row is searched outwards.
        max_draws: futures per row, at most; at least one per path.
    """
    paths = outlook.num_paths
    most = paths * max(max_draws // paths, 1)
    first = min(paths * max(_FIRST_DRAWS // paths, 1), most)
    found, doubtful = _search(outlook, list(range(len(start))), start, first)
    if most > first and doubtful:
        nearer = [found[i].replicas for i in range(len(start))]
        found |= _search(outlook, doubtful, nearer, most)[0]
    return [found[i] for i in range(len(start))]


def _search(
    outlook: Outlook, rows: list[int], start: Sequence[int], num_draws: int
) -> tuple[dict[int, Verified], list[int]]:
    """Enclose each row's fewest count in a bracket that widens until it does; also which answers are in doubt."""
    found: dict[int, Verified] = {}
    doubtful: list[int] = []
    for reach in _REACHES:
        if not rows:
            break
        brackets = [_bracket(start[i], outlook.bounds[i], reach) for i in rows]
        low, high = zip(*brackets, strict=True)
        needs = path_needs(outlook.futures(rows, num_draws, fresh=True), outlook.whole(low), outlook.whole(high))
        chosen = fewest(needs.kept, [outlook.epsilon[i] for i in rows])
        around = [_around(*known) for known in zip(chosen, brackets, strict=True)]
        width = max(map(len, around))
        padded = outlook.whole([c + c[-1:] * (width - len(c)) for c in around])
        kept, missed = (risk_of(n, padded, outlook.num_paths) for n in (needs.kept, needs.missed))
        columns = (kept.p_miss, kept.stderr, missed.p_miss, missed.stderr)
        risks = zip(*(c.tolist() for c in columns), strict=True)
        still_open = []
        for i, count, bracket, counts, (kept_p, kept_e, p_miss, stderr) in zip(
            rows, chosen, brackets, around, risks, strict=True
        ):
            if not _encloses(count, bracket, outlook.bounds[i]):
                still_open.append(i)
                continue
            found[i] = _answer(count, counts, p_miss, stderr, outlook.epsilon[i])
            deciding = [k for k, n in enumerate(counts) if count - 1 <= n <= found[i].replicas]
            near = ((kept_p, kept_e), (p_miss, stderr))
            if any(_near(outlook.epsilon[i], p[k], e[k]) for p, e in near for k in deciding):
                doubtful.append(i)
        rows = still_open
    return found, sorted(doubtful)


def _answer(
    kept: int, counts: tuple[int, ...], p_miss: Sequence[float], stderr: Sequence[float], epsilon: float
) -> Verified:
    """The count that keeps the futures, or one little above it if that makes the misses themselves rare enough."""
    known = (counts, tuple(p_miss[: len(counts)]), tuple(stderr[: len(counts)]))
    if kept > counts[-1]:
        return Verified(counts[-1], "maximum", *known)
    most = kept + max(1, kept // _LITTLE)
    rare = [n for n, p in zip(counts, p_miss, strict=False) if kept <= n <= most and p <= epsilon]
    return Verified(rare[0], "chance_constrained", *known) if rare else Verified(kept, "recovery", *known)


def _near(epsilon: float, p: float, stderr: float) -> bool:
    return abs(p - epsilon) < _SURE * stderr


def _bracket(centre: int, bounds: tuple[int, int], reach: int) -> tuple[int, int]:
    centre = min(max(centre, bounds[0]), bounds[1])
    return max(centre - reach, bounds[0]), min(centre + reach, bounds[1])


def _around(centre: int, bracket: tuple[int, int]) -> tuple[int, ...]:
    low, high = _bracket(centre, bracket, _BESIDE)
    return tuple(range(low, high + 1))


def _encloses(count: int, bracket: tuple[int, int], bounds: tuple[int, int]) -> bool:
    """Whether a bracket shows that the count suffices, that one less does not, and what one more would do."""
    return (count > bracket[0] or bracket[0] == bounds[0]) and (count < bracket[1] or bracket[1] == bounds[1])


def _allowed_misses(epsilon: float, draws: int) -> int:
    """The most misses with which misses / draws, as a float, is at most epsilon."""
    misses = min(max(int(epsilon * draws) + 1, 0), draws)
    while misses > 0 and misses / draws > epsilon:
        misses -= 1
    return misses


@lru_cache(maxsize=16)
def _orders(num_draws: int) -> tuple[Tensor, Tensor]:
    """Two shuffled orders of the draws, the same in every process: one for capacities, one for lead times."""
    rng = np.random.Generator(np.random.PCG64(20240801))
    return torch.from_numpy(rng.permutation(num_draws)), torch.from_numpy(rng.permutation(num_draws))
