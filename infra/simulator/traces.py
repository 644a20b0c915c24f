"""Request traces read from files, plain or gzip: when each request came, and how long prompt and answer were.

Four layouts, recognised by the header or the first line; capitals do not matter, other columns are ignored:

* `arrival_s,prompt_tokens,output_tokens`: seconds from the start of the trace;
* `TIMESTAMP,ContextTokens,GeneratedTokens`: instants, UTC without an offset (Azure's LLM inference traces);
* `Timestamp,Request tokens,Response tokens`: seconds from the start (BurstGPT);
* JSON lines with `timestamp`, `input_length` and `output_length`: whole milliseconds from the start (Mooncake), or
  seconds where lines hold a `chat_id` (Qwen-Bailian).

Requests without prompt or answer, which failed, are counted and passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from infra.console.instants import FIRST_WITHIN_S
from infra.console.tables import (
    InstantColumn,
    cell_problem,
    column_of,
    csv_rows,
    holds_json,
    json_lines,
    missing_cell,
    named_cells,
    nonnegative_number,
    number_cell,
)
from infra.simulator.arrivals import MAX_TOKENS, Arrivals, Trace, TraceError

PLAIN = ("arrival_s", "prompt_tokens", "output_tokens")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURST = ("Timestamp", "Request tokens", "Response tokens")
_JSON = ("timestamp", "input_length", "output_length")
_LAYOUTS: Final = (PLAIN, _AZURE, _BURST)
_HEADERS: Final = " or ".join(",".join(columns) for columns in _LAYOUTS)
_CHAT = "chat_id"


class TraceRow(NamedTuple):
    """Cells of a request: time, prompt tokens and output tokens, as the file has them."""

    line: int
    cells: list[Any]


def read_trace(path: str | Path) -> Trace:
    """Read a request trace. Second 0 of instants is the whole second of the first request.

    Raises:
        TraceError: anything that is not a sorted list of requests.
    """
    where = Path(path)
    if holds_json(where):
        return trace_of(where, _JSON, _json_rows(where))
    rows = csv_rows(where, TraceError)
    header = next(rows, None)
    if header is None:
        raise TraceError(f"{where}: is empty; give a CSV file with the header {_HEADERS}")
    names = [name.strip() for name in header[1]]
    columns = _layout(where, names)
    cells = named_cells(where, header, columns, rows, TraceError)
    return trace_of(where, columns, (TraceRow(line, list(row)) for line, row in cells))


def holds_requests(where: Path) -> bool:
    """Whether a file names the columns of a request trace; false where it cannot be read."""
    if holds_json(where):
        return True
    try:
        header = next(csv_rows(where, TraceError), None)
    except TraceError:
        return False
    return header is not None and any(
        all(column_of([name.strip() for name in header[1]], name) is not None for name in columns)
        for columns in _LAYOUTS
    )


def _layout(where: Path, names: list[str]) -> tuple[str, str, str]:
    """The columns of the layout that the header has most of."""
    num_found = {columns: sum(column_of(names, name) is not None for name in columns) for columns in _LAYOUTS}
    columns = max(_LAYOUTS, key=num_found.__getitem__)
    if column_of(names, columns[0]) is None:
        raise TraceError(f"{where}, line 1: has no column {_AZURE[0]} or {PLAIN[0]}; the header must hold {_HEADERS}")
    return columns


def remark(trace: Trace) -> str | None:
    """What a person should know of how a trace was read; None where there is nothing."""
    if not trace.num_without_tokens:
        return None
    return f"{trace.name}: passed over {trace.num_without_tokens} of its requests, which lack prompt or answer"


def trace_of(where: Path, columns: tuple[str, str, str], rows: Iterator[TraceRow]) -> Trace:
    """The trace of rows that are already told apart.

    Args:
        where: what errors call their source.
        columns: of time, prompt and output tokens; one of the layouts.

    Raises:
        TraceError: they are no sorted list of requests.
    """
    instants = InstantColumn(where, columns[0], TraceError) if columns is _AZURE else None
    arrival_s: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    origin_s, previous_s, num_empty = 0, 0.0, 0
    for number, (line, (time, prompt_tokens, output_tokens)) in enumerate(rows):
        if instants is not None:
            ns = instants.read(line, time).ns
            origin_s = ns // 1_000_000_000 if number == 0 else origin_s
            at_s = (ns - origin_s * 1_000_000_000) / 1e9
        else:
            at_s = nonnegative_number(where, line, columns[0], str(time), TraceError)
            if number == 0 and at_s > FIRST_WITHIN_S:
                raise TraceError(
                    f"{where}, line {line}, column {columns[0]}: the first request comes {at_s / 86_400:.4g} days "
                    "after second 0; count seconds from the start of the trace"
                )
        if number and at_s < previous_s:
            raise TraceError(
                f"{where}, line {line}, column {columns[0]}: goes back in time; sort the file by {columns[0]}"
            )
        previous_s = at_s
        tokens = _tokens(where, line, columns[1], prompt_tokens), _tokens(where, line, columns[2], output_tokens)
        if 0 in tokens:
            num_empty += 1
            continue
        arrival_s.append(at_s)
        prompt.append(tokens[0])
        output.append(tokens[1])
    if not arrival_s:
        empty = f"; {num_empty} have no prompt or no answer" if num_empty else ""
        raise TraceError(f"{where}: has a header but no request{empty}; give a trace with at least one row")
    arrivals = Arrivals(np.array(arrival_s), np.array(prompt, np.int64), np.array(output, np.int64))
    name = where.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".jsonl")
    return Trace(name, arrivals, origin_s * 1000 if instants is not None else None, num_empty)


def _json_rows(where: Path) -> Iterator[TraceRow]:
    """Seconds and tokens of each line; the first line tells the unit of all."""
    per_second: float | None = None
    for line, body in json_lines(where, TraceError):
        missing = next((name for name in _JSON if name not in body), None)
        if missing is not None:
            raise TraceError(
                f"{where}, line {line}: lacks {missing}; JSON lines must hold {', '.join(_JSON)}, and others become "
                "a CSV file with jq (docs/replay-your-trace.md)"
            )
        if per_second is None:
            per_second = 1.0 if _CHAT in body else 1000.0
        time, *tokens = (body[name] for name in _JSON)
        number = None if isinstance(time, bool | str) else number_cell(time)
        if number is None:
            raise TraceError(cell_problem(where, line, _JSON[0], time, "is not a number; correct it"))
        if per_second == 1000.0 and not number.is_integer():
            problem = f"is no whole number of milliseconds; write seconds as a CSV file with {PLAIN[0]}"
            raise TraceError(cell_problem(where, line, _JSON[0], time, problem))
        yield TraceRow(line, [number / per_second, *tokens])


def _tokens(where: Path, line: int, column: str, cell: object) -> int:
    """A count of tokens; 0 where there were none."""
    if missing_cell(cell):
        raise TraceError(f"{where}, line {line}, column {column}: holds no number; complete or remove the line")
    value = None if isinstance(cell, bool) else number_cell(cell)
    if value is None or value != int(value):
        raise TraceError(cell_problem(where, line, column, cell, "is not a whole number; correct the value"))
    if not 0 <= value <= MAX_TOKENS:
        raise TraceError(
            f"{where}, line {line}, column {column}: {value:g} is outside 1 to {MAX_TOKENS}; correct or remove the line"
        )
    return int(value)
