"""Arrivals as columns, and request traces read from CSV files, plain or gzip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infra.console.files import csv_rows, named_cells, not_negative

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PLAIN_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
MAX_TOKENS = 10_000_000
_LATEST_FIRST_S = 366 * 86_400.0  # what is later is the time of a clock


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line, column and remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests in order of arrival: float64 seconds, int64 prompt and output tokens, all of one length."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrival_s)

    def between(self, start_s: float, end_s: float) -> Arrivals:
        """Those in `[start_s, end_s)`."""
        first, last = np.searchsorted(self.arrival_s, (start_s, end_s), side="left")
        return Arrivals(self.arrival_s[first:last], self.prompt_tokens[first:last], self.output_tokens[first:last])

    @staticmethod
    def empty() -> Arrivals:
        return Arrivals(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def joined(parts: list[Arrivals]) -> Arrivals:
        """Consecutive parts as one."""
        if not parts:
            return Arrivals.empty()
        return Arrivals(
            np.concatenate([p.arrival_s for p in parts]),
            np.concatenate([p.prompt_tokens for p in parts]),
            np.concatenate([p.output_tokens for p in parts]),
        )


class ArrivalSource(Protocol):
    """Where a workload's requests come from. Seconds since the start of the simulation.

    Attributes:
        end_s: after which nothing arrives; infinity for a generator.
        start_ts_ms: the instant of second 0 when the source knows it.
    """

    @property
    def end_s(self) -> float: ...

    @property
    def start_ts_ms(self) -> int | None: ...

    def between(self, start_s: float, end_s: float) -> Arrivals:
        """The requests in `[start_s, end_s)`, the same however the time is cut."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A recorded load. `start_ts_ms` is the wall time of second 0; None when the file has none."""

    name: str
    arrivals: Arrivals
    start_ts_ms: int | None = None

    @property
    def end_s(self) -> float:
        """Just after the last arrival."""
        return math.nextafter(float(self.arrivals.arrival_s[-1]), math.inf)

    def between(self, start_s: float, end_s: float) -> Arrivals:
        return self.arrivals.between(start_s, end_s)


def read_trace(path: str | Path) -> Trace:
    """Read a request trace.

    Two layouts, recognised by the header, other columns ignored: `TIMESTAMP,ContextTokens,GeneratedTokens` (UTC text;
    second 0 is the whole second of the first request) and `arrival_s,prompt_tokens,output_tokens` (seconds >= 0).

    Raises:
        TraceError: anything that is not a sorted list of requests.
    """
    where = Path(path)
    rows = csv_rows(where, TraceError)
    header = next(rows, None)
    if header is None:
        raise TraceError(
            f"{where}: is empty; give a CSV file with the header {','.join(AZURE_COLUMNS)} or {','.join(PLAIN_COLUMNS)}"
        )
    columns = _layout(where, [name.strip() for name in header[1]])
    azure = columns is AZURE_COLUMNS
    arrival_s: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    origin_s = 0.0
    for line, (arrival, prompt_tokens, output_tokens) in named_cells(where, header, columns, rows, TraceError):
        if azure:
            whole_s, part_s = _utc(where, line, columns[0], arrival)
            if not arrival_s:
                origin_s = whole_s
            at_s = (whole_s - origin_s) + part_s
        else:
            at_s = not_negative(where, line, columns[0], arrival, TraceError)
            if not arrival_s and at_s > _LATEST_FIRST_S:
                raise TraceError(
                    f"{where}, line {line}, column {columns[0]}: the first request comes {at_s / 86_400:.4g} days "
                    "after second 0; count seconds from the start of the trace"
                )
        if arrival_s and at_s < arrival_s[-1]:
            raise TraceError(
                f"{where}, line {line}, column {columns[0]}: goes back in time; sort the file by {columns[0]}"
            )
        arrival_s.append(at_s)
        prompt.append(_tokens(where, line, columns[1], prompt_tokens))
        output.append(_tokens(where, line, columns[2], output_tokens))
    if not arrival_s:
        raise TraceError(f"{where}: has a header but no request; give a trace with at least one row")
    arrivals = Arrivals(np.array(arrival_s), np.array(prompt, np.int64), np.array(output, np.int64))
    name = where.name.removesuffix(".gz").removesuffix(".csv")
    return Trace(name, arrivals, int(origin_s) * 1000 if azure else None)


def _layout(where: Path, names: list[str]) -> tuple[str, str, str]:
    for columns in (AZURE_COLUMNS, PLAIN_COLUMNS):
        if columns[0] in names:
            return columns
    raise TraceError(
        f"{where}, line 1: has no column {AZURE_COLUMNS[0]} or {PLAIN_COLUMNS[0]}; "
        f"the header must hold {','.join(AZURE_COLUMNS)} or {','.join(PLAIN_COLUMNS)}"
    )


def _utc(where: Path, line: int, column: str, text: str) -> tuple[float, float]:
    """Whole seconds since the epoch, and the fraction of the second apart, which keeps all seven digits."""
    whole, _, fraction = text.strip().removesuffix("Z").removesuffix("+00:00").partition(".")
    try:
        if fraction and not (fraction.isascii() and fraction.isdigit()):
            raise ValueError
        moment = datetime.fromisoformat(whole)
    except ValueError:
        raise TraceError(
            f"{where}, line {line}, column {column}: {text[:40]!r} is not a UTC time "
            "such as 2023-11-16 18:15:46.6805900; correct the value"
        ) from None
    if moment.tzinfo is not None:
        raise TraceError(
            f"{where}, line {line}, column {column}: {text[:40]!r} carries a time zone; convert the column to UTC"
        )
    return moment.replace(tzinfo=UTC).timestamp(), float("0." + fraction) if fraction else 0.0


def _tokens(where: Path, line: int, column: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise TraceError(
            f"{where}, line {line}, column {column}: {text[:40]!r} is not a whole number; correct the value"
        ) from None
    if not 1 <= value <= MAX_TOKENS:
        raise TraceError(
            f"{where}, line {line}, column {column}: {value} is outside 1 to {MAX_TOKENS}; correct or remove the line"
        )
    return value
