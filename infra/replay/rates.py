"""Rate files: piecewise constant arrival rates, turned into Poisson arrivals.

Three layouts, recognised by the header, plain or gzip:

* `start_s,rate_rps,prompt_tokens,output_tokens`: rate and mean token counts from `start_s` on; the last row ends the
  load. Token columns may be left out (`--prompt-tokens`, `--output-tokens`), or hold `mean:sigma` (lognormal).
* `period,count`: requests per minute with the minute's time (WorldCup98).
* `category,chunk,timestamp,rate,...`: requests/s of each client per window (ServeGen); token means are read from the
  file beside it whose name ends in `_token_summary` instead of `_trace`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.csv_rows import Row, csv_rows, named_cells, not_negative
from infra.simulator.arrivals import MAX_TOKENS, Arrivals, TraceError

DAY_S = 86_400.0
_PLAIN = ("start_s", "rate_rps")
_TOKENS = ("prompt_tokens", "output_tokens")
_WORLD_CUP = ("period", "count")
_SERVEGEN = ("chunk", "timestamp", "rate")
_SUMMARY = ("chunk", "field", "mean", "p50")
MOST_SIGMA = 5.0  # of the logarithm; beyond, a mean says nothing of what is drawn
_MOST_REQUESTS = 50_000_000
_MOST_MINUTES = 10 * 366 * 24 * 60
BUILT_IN = Path(__file__).parent / "loads"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts: `mean`, and `sigma` of the logarithm (0 = always the mean, rounded)."""

    mean: float
    sigma: float = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        if self.sigma <= 0:
            return np.full(count, max(1, round(self.mean)), dtype=np.int64)
        mu = math.log(self.mean) - self.sigma**2 / 2
        drawn = np.exp(mu + self.sigma * rng.standard_normal(count))
        return np.clip(np.rint(drawn), 1, MAX_TOKENS).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RateProfile:
    """A rate over time: segment k holds on `[edges_s[k], edges_s[k + 1])`.

    Attributes:
        edges_s: float64 [K + 1], from 0.
        rates_rps: float64 [K].
        prompt, output: K token laws.
    """

    name: str
    edges_s: NDArray[np.float64]
    rates_rps: NDArray[np.float64]
    prompt: tuple[Tokens, ...]
    output: tuple[Tokens, ...]

    @property
    def end_s(self) -> float:
        return float(self.edges_s[-1])

    @property
    def mean_rps(self) -> float:
        return float(np.average(self.rates_rps, weights=np.diff(self.edges_s)))

    def thinned(self, mean_rps: float) -> RateProfile:
        """The same shape with another mean rate."""
        scale = mean_rps / self.mean_rps if self.mean_rps > 0 else 1.0
        return RateProfile(self.name, self.edges_s, self.rates_rps * scale, self.prompt, self.output)

    def between(self, start_s: float, end_s: float) -> RateProfile:
        """The part of `[start_s, end_s)`, from second 0 on."""
        inside = [k for k in range(len(self.rates_rps)) if self.edges_s[k + 1] > start_s and self.edges_s[k] < end_s]
        edges = np.clip(np.append(self.edges_s[inside], self.edges_s[inside[-1] + 1]), start_s, end_s) - start_s
        return RateProfile(
            self.name, edges, self.rates_rps[inside], tuple(self.prompt[k] for k in inside),
            tuple(self.output[k] for k in inside),
        )  # fmt: skip

    def refuse_too_many(self) -> None:
        """Let pass what can be drawn and held.

        Raises:
            TraceError: it cannot.
        """
        expected = float(np.sum(self.rates_rps * np.diff(self.edges_s)))
        if not expected <= _MOST_REQUESTS:
            raise TraceError(
                f"{self.name} brings {expected:.3g} requests, more than {_MOST_REQUESTS:,}: thin it with --mean-rate"
            )

    def arrivals(self, seed: int) -> Arrivals:
        """Poisson arrivals of this rate; the same seed gives the same ones."""
        parts = []
        for k, rate in enumerate(self.rates_rps):
            rng = np.random.default_rng([seed, k])
            low, high = float(self.edges_s[k]), float(self.edges_s[k + 1])
            count = int(rng.poisson(rate * (high - low)))
            at_s = np.sort(rng.uniform(low, high, count))
            parts.append(Arrivals(at_s, self.prompt[k].draw(rng, count), self.output[k].draw(rng, count)))
        return Arrivals.joined(parts)


def read_rates(
    path: str | Path,
    prompt: Tokens = Tokens(1000, 0.6),
    output: Tokens = Tokens(200, 0.6),
) -> RateProfile:
    """Read a rate file, or a built-in one by name (`ramp`, `flash-crowd`, `regime-shift`, `hourly`).

    Args:
        prompt, output: token laws of layouts that say nothing of tokens.

    Raises:
        TraceError: anything that is not one of the layouts; the message names file, line and remedy.
    """
    where = Path(path)
    if not where.exists() and (BUILT_IN / f"{path}.csv").exists():
        where = BUILT_IN / f"{path}.csv"
    rows = csv_rows(where, TraceError)
    header = next(rows, None)
    if header is None:
        raise TraceError(f"{where}: is empty; give a CSV file with the header start_s,rate_rps")
    names = [name.strip() for name in header[1]]
    if all(c in names for c in _PLAIN):
        own = tuple(c for c in _TOKENS if c in names)
        return _plain(where, own, named_cells(where, header, (*_PLAIN, *own), rows, TraceError), prompt, output)
    if all(c in names for c in _WORLD_CUP):
        return _per_minute(where, named_cells(where, header, _WORLD_CUP, rows, TraceError), prompt, output)
    if all(c in names for c in _SERVEGEN):
        return _servegen(where, named_cells(where, header, _SERVEGEN, rows, TraceError), prompt, output)
    raise TraceError(
        f"{where}, line 1: the header must hold {','.join(_PLAIN)} or {','.join(_WORLD_CUP)} or {','.join(_SERVEGEN)}"
    )


def _tokens(where: Path, line: int, column: str, text: str) -> Tokens:
    mean, _, sigma = text.partition(":")
    value = not_negative(where, line, column, mean, TraceError)
    if not 1 <= value <= MAX_TOKENS:
        raise TraceError(f"{where}, line {line}, column {column}: {mean} is outside 1 to {MAX_TOKENS}; correct it")
    spread = not_negative(where, line, column, sigma, TraceError) if sigma else 0.0
    if spread > MOST_SIGMA:
        raise TraceError(
            f"{where}, line {line}, column {column}: the sigma {sigma} is above {MOST_SIGMA:g}; correct it"
        )
    return Tokens(value, spread)


def _plain(where: Path, own: tuple[str, ...], rows: Iterable[Row], prompt: Tokens, output: Tokens) -> RateProfile:
    """Steps of a constant rate; `own` are the token columns that the file has."""
    edges: list[float] = []
    rates: list[float] = []
    prompts: list[Tokens] = []
    outputs: list[Tokens] = []
    for line, (start_s, rate_rps, *laws) in rows:
        start = not_negative(where, line, "start_s", start_s, TraceError)
        if edges and start <= edges[-1]:
            raise TraceError(f"{where}, line {line}, column start_s: does not increase; sort the file by start_s")
        edges.append(start)
        rates.append(not_negative(where, line, "rate_rps", rate_rps, TraceError))
        told = dict(zip(own, laws, strict=True))
        for column, kept, default in zip(_TOKENS, (prompts, outputs), (prompt, output), strict=True):
            kept.append(_tokens(where, line, column, told[column]) if column in told else default)
    if len(edges) < 2:
        raise TraceError(f"{where}: needs at least two rows, the last of which ends the load")
    if not any(rates[:-1]):
        raise TraceError(f"{where}: the rate is 0 throughout; there is nothing to replay")
    at = np.asarray(edges) - edges[0]
    return _profile(where, at, rates[:-1], prompts[:-1], outputs[:-1])


def _per_minute(where: Path, rows: Iterable[Row], prompt: Tokens, output: Tokens) -> RateProfile:
    """Minutes that are missing repeat the one before."""
    rates: list[float] = []
    first: datetime | None = None
    for line, (period, count) in rows:
        try:
            moment = datetime.fromisoformat(period)
            first = first or moment
            place = round((moment - first).total_seconds() / 60)
        except ValueError:
            raise TraceError(
                f"{where}, line {line}, column period: {period[:40]!r} is not a time; correct it"
            ) from None
        except TypeError:
            raise TraceError(
                f"{where}, line {line}, column period: {period[:40]!r} has an offset from UTC and others have none, or "
                "the other way round; write all in one way"
            ) from None
        if place < len(rates):
            raise TraceError(f"{where}, line {line}, column period: goes back in time; sort the file by period")
        if place > _MOST_MINUTES:
            raise TraceError(
                f"{where}, line {line}, column period: {period[:40]!r} is ten years or more after the first; correct it"
            )
        rate = not_negative(where, line, "count", count, TraceError) / 60
        rates += [rates[-1] if rates else rate] * (place - len(rates)) + [rate]
    if not any(rates):
        raise TraceError(f"{where}: holds no request; give a file with at least one")
    n = len(rates)
    return _profile(where, np.arange(n + 1, dtype=np.float64) * 60.0, rates, [prompt] * n, [output] * n)


def _servegen(where: Path, rows: Iterable[Row], prompt: Tokens, output: Tokens) -> RateProfile:
    """Clients summed per window; windows in which all are silent repeat the one before (they are gaps)."""
    totals: dict[float, dict[str, float]] = {}
    for line, (chunk, timestamp, rate) in rows:
        window = totals.setdefault(not_negative(where, line, "timestamp", timestamp, TraceError), {})
        window[chunk] = window.get(chunk, 0.0) + not_negative(where, line, "rate", rate, TraceError)
    if not any(sum(w.values()) for w in totals.values()):
        raise TraceError(f"{where}: holds no request; give a file with at least one")
    starts = sorted(totals)
    step_s = min(b - a for a, b in pairwise(starts)) if len(starts) > 1 else 600.0
    means = _token_means(where)
    rates: list[float] = []
    laws: dict[str, list[Tokens]] = {"input_tokens": [], "output_tokens": []}
    for start in starts:
        clients = totals[start]
        total = sum(clients.values())
        rates.append(total if total > 0 else (rates[-1] if rates else 0.0))
        for field, default in (("input_tokens", prompt), ("output_tokens", output)):
            known = [(r, means[c, field]) for c, r in clients.items() if r > 0 and (c, field) in means]
            weight = sum(r for r, _ in known)
            before = laws[field][-1] if laws[field] else default
            laws[field].append(_mixture(known) if weight > 0 else before)
    edges = np.asarray([*starts, starts[-1] + step_s], dtype=np.float64) - starts[0]
    return _profile(where, edges, rates, laws["input_tokens"], laws["output_tokens"])


def _mixture(known: list[tuple[float, tuple[float, float]]]) -> Tokens:
    """One lognormal with the mean and the median of the clients' mixture, weighed by their rates."""
    weight = sum(r for r, _ in known)
    mean = sum(r * m for r, (m, _) in known) / weight
    median = sum(r * p for r, (_, p) in known) / weight
    sigma = math.sqrt(2 * math.log(max(mean / max(median, 1.0), 1.01)))
    return Tokens(max(1.0, mean), min(1.2, sigma))


def _token_means(where: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """(client, field) -> mean and median tokens over all windows; empty without the summary file."""
    beside = where.with_name(where.name.replace("_trace", "_token_summary"))
    if beside == where or not beside.exists():
        return {}
    sums: dict[tuple[str, str], list[float]] = {}
    rows = csv_rows(beside, TraceError)
    header = next(rows, (1, []))
    for line, (chunk, field, mean, median) in named_cells(beside, header, _SUMMARY, rows, TraceError):
        known = sums.setdefault((chunk, field), [0.0, 0.0, 0.0])
        known[0] += 1
        known[1] += not_negative(beside, line, "mean", mean, TraceError)
        known[2] += not_negative(beside, line, "p50", median, TraceError)
    return {key: (means / n, medians / n) for key, (n, means, medians) in sums.items()}


def _profile(
    where: Path, edges: NDArray[Any], rates: list[float], prompt: list[Tokens], output: list[Tokens]
) -> RateProfile:
    name = where.name.removesuffix(".gz").removesuffix(".csv")
    return RateProfile(name, np.asarray(edges, dtype=np.float64), np.asarray(rates), tuple(prompt), tuple(output))
