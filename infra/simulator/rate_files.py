"""Reader of rate files: requests per second over time.

Four layouts, recognised by the header, plain or gzip:

* `start_s,rate_rps,prompt_tokens,output_tokens`: rate and mean token counts from `start_s` on; the last row ends the
  load. Token columns may be left out (`--prompt-tokens`, `--output-tokens`), or hold `mean:sigma` (lognormal).
* `period,count`: requests per minute with the minute's time (WorldCup98).
* `timestamp,value`: requests/s, or anything in proportion (`--mean-rate`), from that time until the next row's: what
  CloudWatch, Prometheus and others export, at whatever interval. Times are what `infra.console.instants` reads.
* `category,chunk,timestamp,rate,...`: requests/s of each client per window (ServeGen); token means are read from the
  file beside it whose name ends in `_token_summary` instead of `_trace`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median as middle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.console.instants import start_problem
from infra.console.tables import (
    InstantColumn,
    Row,
    cell_problem,
    column_of,
    csv_rows,
    named_cells,
    nonnegative_number,
)
from infra.simulator.arrivals import MAX_TOKENS, MOST_SIGMA, RateProfile, Tokens, TraceError

BUILT_IN = Path(__file__).parent / "loads"
_PLAIN = ("start_s", "rate_rps")
_TOKENS = ("prompt_tokens", "output_tokens")
_WORLD_CUP = ("period", "count")
_SERIES = ("timestamp", "value")
_SERVEGEN = ("chunk", "timestamp", "rate")
_SUMMARY = ("chunk", "field", "mean", "p50")
_PROMPT, _OUTPUT = Tokens(1000, 0.6), Tokens(200, 0.6)
_MOST_S = 10 * 366 * 24 * 3600.0


def read_rates(
    path: str | Path,
    prompt: Tokens = _PROMPT,
    output: Tokens = _OUTPUT,
) -> RateProfile:
    """Read a rate file, or a built-in one by name, such as `ramp` (the files in `infra/simulator/loads`).

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
    if _holds(names, _PLAIN):
        own = tuple(c for c in _TOKENS if column_of(names, c) is not None)
        return _plain(where, own, named_cells(where, header, (*_PLAIN, *own), rows, TraceError), prompt, output)
    if _holds(names, _WORLD_CUP):
        return _per_minute(where, named_cells(where, header, _WORLD_CUP, rows, TraceError), prompt, output)
    if _holds(names, _SERIES):
        return _series(where, named_cells(where, header, _SERIES, rows, TraceError), prompt, output)
    if _holds(names, _SERVEGEN):
        return _servegen(where, named_cells(where, header, _SERVEGEN, rows, TraceError), prompt, output)
    layouts = " or ".join(",".join(layout) for layout in (_PLAIN, _WORLD_CUP, _SERIES, _SERVEGEN))
    raise TraceError(f"{where}, line 1: the header must hold {layouts}")


def _holds(names: list[str], columns: tuple[str, ...]) -> bool:
    return all(column_of(names, name) is not None for name in columns)


def _seconds(where: Path, line: int, column: str, text: str, first_s: float | None) -> float:
    """Seconds to the millisecond, from the start of the load or since 1970; `first_s` is None of the first row."""
    seconds = round(nonnegative_number(where, line, column, text, TraceError), 3)
    if first_s is None:
        problem = start_problem(seconds)
    else:
        problem = "is ten years or more from the first; correct it" if abs(seconds - first_s) > _MOST_S else None
    if problem is not None:
        raise TraceError(cell_problem(where, line, column, text, problem))
    return seconds


def _tokens(where: Path, line: int, column: str, text: str) -> Tokens:
    mean, _, sigma = text.partition(":")
    value = nonnegative_number(where, line, column, mean, TraceError)
    if not 1 <= value <= MAX_TOKENS:
        raise TraceError(f"{where}, line {line}, column {column}: {mean} is outside 1 to {MAX_TOKENS}; correct it")
    spread = nonnegative_number(where, line, column, sigma, TraceError) if sigma else 0.0
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
        start = _seconds(where, line, "start_s", start_s, edges[0] if edges else None)
        if edges and start <= edges[-1]:
            raise TraceError(f"{where}, line {line}, column start_s: does not increase; sort the file by start_s")
        edges.append(start)
        rates.append(nonnegative_number(where, line, "rate_rps", rate_rps, TraceError))
        cells = dict(zip(own, laws, strict=True))
        for column, series, default in zip(_TOKENS, (prompts, outputs), (prompt, output), strict=True):
            series.append(_tokens(where, line, column, cells[column]) if column in cells else default)
    if len(edges) < 2:
        raise TraceError(f"{where}: needs at least two rows, the last of which ends the load")
    if not any(rates[:-1]):
        raise TraceError(f"{where}: the rate is 0 throughout; there is nothing to replay")
    at = np.asarray(edges) - edges[0]
    return _profile(where, at, rates[:-1], prompts[:-1], outputs[:-1])


def _per_minute(where: Path, rows: Iterable[Row], prompt: Tokens, output: Tokens) -> RateProfile:
    """Minutes that are missing repeat the one before."""
    rates: list[float] = []
    for line, seconds, count in _timed(where, rows, _WORLD_CUP):
        place = round(seconds / 60)
        if place < len(rates):
            raise TraceError(f"{where}, line {line}, column period: goes back in time; sort the file by period")
        rates += [rates[-1] if rates else count / 60] * (place - len(rates)) + [count / 60]
    _refuse_nothing(where, rates)
    n = len(rates)
    return _profile(where, np.arange(n + 1, dtype=np.float64) * 60.0, rates, [prompt] * n, [output] * n)


def _series(where: Path, rows: Iterable[Row], prompt: Tokens, output: Tokens) -> RateProfile:
    """A value holds until the next one, the last for the median of these times."""
    edges: list[float] = []
    rates: list[float] = []
    for line, seconds, value in _timed(where, rows, _SERIES):
        if edges and seconds <= edges[-1]:
            raise TraceError(f"{where}, line {line}, column timestamp: does not increase; sort the file by timestamp")
        edges.append(seconds)
        rates.append(value)
    if len(edges) < 2:
        raise TraceError(f"{where}: needs at least two rows; give a longer series")
    _refuse_nothing(where, rates)
    edges.append(edges[-1] + middle(b - a for a, b in pairwise(edges)))
    n = len(rates)
    return _profile(where, np.asarray(edges), rates, [prompt] * n, [output] * n)


def _refuse_nothing(where: Path, rates: list[float]) -> None:
    if not any(rates):
        raise TraceError(f"{where}: holds no request; give a file with at least one")


def _timed(where: Path, rows: Iterable[Row], columns: tuple[str, str]) -> Iterable[tuple[int, float, float]]:
    """Line number, seconds since the first row's time, and value of each row."""
    time, column = columns
    instants = InstantColumn(where, time, TraceError)
    first_ms: int | None = None
    for line, (text, value) in rows:
        ms = instants.read(line, text).ms
        first_ms = ms if first_ms is None else first_ms
        seconds = (ms - first_ms) / 1000
        if seconds > _MOST_S:
            problem = "is ten years or more after the first; correct it"
            raise TraceError(cell_problem(where, line, time, text, problem))
        yield line, seconds, nonnegative_number(where, line, column, value, TraceError)


def _servegen(where: Path, rows: Iterable[Row], prompt: Tokens, output: Tokens) -> RateProfile:
    """Clients summed per window; windows in which all are silent repeat the one before (they are gaps)."""
    totals: dict[float, dict[str, float]] = {}
    for line, (chunk, timestamp, rate) in rows:
        window = totals.setdefault(_seconds(where, line, "timestamp", timestamp, next(iter(totals), None)), {})
        window[chunk] = window.get(chunk, 0.0) + nonnegative_number(where, line, "rate", rate, TraceError)
    _refuse_nothing(where, [sum(w.values()) for w in totals.values()])
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
            rated_means = [(r, means[c, field]) for c, r in clients.items() if r > 0 and (c, field) in means]
            weight = sum(r for r, _ in rated_means)
            before = laws[field][-1] if laws[field] else default
            laws[field].append(_mixture(rated_means) if weight > 0 else before)
    edges = np.asarray([*starts, starts[-1] + step_s], dtype=np.float64) - starts[0]
    return _profile(where, edges, rates, laws["input_tokens"], laws["output_tokens"])


def _mixture(rated_means: list[tuple[float, tuple[float, float]]]) -> Tokens:
    """One lognormal with the mean and the median of the clients' mixture, weighed by their rates."""
    weight = sum(r for r, _ in rated_means)
    mean = sum(r * m for r, (m, _) in rated_means) / weight
    median = sum(r * p for r, (_, p) in rated_means) / weight
    sigma = math.sqrt(2 * math.log(max(mean / max(median, 1.0), 1.01)))
    return Tokens(max(1.0, mean), min(1.2, sigma))


def _token_means(where: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """(client, field) -> mean and median tokens over all windows; empty without the summary file."""
    summary_path = where.with_name(where.name.replace("_trace", "_token_summary"))
    if summary_path == where or not summary_path.exists():
        return {}
    sums: dict[tuple[str, str], list[float]] = {}
    rows = csv_rows(summary_path, TraceError)
    header = next(rows, (1, []))
    for line, (chunk, field, mean, median) in named_cells(summary_path, header, _SUMMARY, rows, TraceError):
        totals = sums.setdefault((chunk, field), [0.0, 0.0, 0.0])
        totals[0] += 1
        totals[1] += nonnegative_number(summary_path, line, "mean", mean, TraceError)
        totals[2] += nonnegative_number(summary_path, line, "p50", median, TraceError)
    return {key: (means / n, medians / n) for key, (n, means, medians) in sums.items()}


def _profile(
    where: Path, edges: NDArray[Any], rates: list[float], prompt: list[Tokens], output: list[Tokens]
) -> RateProfile:
    name = where.name.removesuffix(".gz").removesuffix(".csv")
    return RateProfile(name, np.asarray(edges, dtype=np.float64), np.asarray(rates), tuple(prompt), tuple(output))
