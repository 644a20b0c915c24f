"""Tables from tables: cells, rows and columns exchanged, left out, doubled; and the readers of files under them.

Every reader may answer or refuse. What it answers must stand in the file: a number is one of a cell, an instant is one
that a cell names, and nothing is "measured now" where the header names a time.
"""

from __future__ import annotations

import io
import json
import random
import re
import tempfile
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from infra.collect.device_table import DeviceTable
from infra.collect.formats.exposition import UnreadableError
from infra.console.errors import HarmonyError
from infra.console.instants import InstantError, read_instant
from infra.console.tables import NoTextError, open_text
from infra.lab.backtest.history import read_history
from infra.lab.series import read_series
from infra.simulator.arrivals import TraceError
from infra.simulator.rate_files import read_rates
from infra.simulator.traces import read_trace
from tests.fuzz.mutation import LONGEST, Mutator

T_S: Final = 1_763_636_400
NOW_MS_FROM: Final = 1_700_000_000_000  # the clock of this machine is later
NOW_MS: Final = 1_900_000_000_123  # what is measured now; no cell names it
_NAMES = (
    *("timestamp", "time", "date", "ts_ms", "Timestamp (UTC)", "sampled_at", "index", "uuid", "pci.bus_id", "serial"),
    *(
        "gpu",
        "device",
        "host",
        "name",
        "power.draw [W]",
        "utilization.gpu [%]",
        "memory.used [MiB]",
        "memory.used [GiB]",
    ),
    *("power_w", "GPU use (%)", "VRAM Total Memory (B)", "gfx", "item_id", "rps", "indicator", "value", "", "x", "X"),
    *("Unnamed: 0", "arrival_s", "prompt_tokens", "output_tokens", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    *("Request tokens", "Response tokens", "start_s", "rate_rps", "period", "count", "chunk", "rate", "replicas"),
)
_NOON = datetime(2025, 11, 20, 11, 0, 15)  # noqa: DTZ001 - in this machine's zone or in UTC
_LOCAL_MS, _UTC_MS = (round(noon.timestamp() * 1000) for noon in (_NOON, _NOON.replace(tzinfo=UTC)))
_DAY_MS: Final = 1_763_596_800_000
# Cells that name an instant, and which: in this machine's zone, and in UTC.
_TIMES: Final[dict[str, set[int]]] = {
    str(T_S): {T_S * 1000}, f"{T_S}.25": {T_S * 1000 + 250}, f"{T_S}000": {T_S * 1000}, f"{T_S}000000000": {T_S * 1000},
    "2025-11-20 11:00:15": {_LOCAL_MS, _UTC_MS}, "2025/11/20 11:00:15.001": {_LOCAL_MS + 1, _UTC_MS + 1},
    "2025-11-20T11:00:15Z": {_UTC_MS}, "2025-11-20 11:00:15 UTC": {_UTC_MS}, "2025-11-20 12:00:15+01:00": {_UTC_MS},
    "20251120": {_DAY_MS, _LOCAL_MS - _UTC_MS + _DAY_MS}, "202511201100": {_UTC_MS - 15_000, _LOCAL_MS - 15_000},
    "2025-11-19 24:00": {_DAY_MS, _LOCAL_MS - _UTC_MS + _DAY_MS}, "1e18": {1_000_000_000_000},
}  # fmt: skip
_CELLS = (
    *_TIMES,
    *("2025112011", "46346.5", "-1", "20/11/2025", "2025-10-26 02:30:00 Europe/Berlin", "0001-01-01", "9999-12-31"),
    *("11:00:15", "2025-11-20 11:00 PM", "2016-12-31T23:59:60Z", "Sat, 20 Nov 2025 11:00:00 +0000"),
    *("0", "1", "7", "1.5", "1060.0", "-3", "650.00 W", "95 %", "80 GiB", "1e300", "1e-300", "1e38", "5e36", "inf"),
    *("nan", "[N/A]", "-", "--", "", "1,5", '"1,5"', "1_200", "0x10", "\u22125", "\u00a05", "12:30", "100:0.5", "true"),
    *("null", "GPU-a", "00000000:1B:00.0", "card0", "a", "b", '"a\nb"', "timestamp", "\ufefftimestamp", "9" * 400),
    *("x" * 300, "\0"),
)
_SOUND: Final = 5
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class TableMutator(Mutator):
    """Draws files of tables: mostly with the parts of a table exchanged, at times with bytes changed on top."""

    def draw(self) -> bytes:
        """The next file, at most `LONGEST` bytes."""
        rng = self._rng
        if rng.random() < 0.1:
            return super().draw()
        # Half of the time from the sound tables: what was refused before is mostly refused again.
        table = rng.choice(self._pool[:_SOUND] if rng.random() < 0.5 else self._pool)
        lines = table.decode("utf-8", "surrogateescape").split("\n")
        for _ in range(1 + (rng.random() < 0.4) + rng.randrange(3) * (rng.random() < 0.2)):
            self._exchange(lines)
        value = bytearray("\n".join(lines).encode("utf-8", "surrogateescape"))
        if rng.random() < 0.1:
            self._change(value)
        return bytes(value[:LONGEST])

    def _exchange(self, lines: list[str]) -> None:
        """Change one part of a table in place."""
        rng = self._rng
        mark = max(",;\t", key=lines[0].count)
        at = rng.randrange(len(lines))
        how = rng.randrange(12)
        if lines[at].startswith("{") and how < 6:
            lines[at] = self._other_object(lines[at])
            return
        cells = lines[at].split(mark)
        k = rng.randrange(len(cells))
        if how < 3:
            cells[k] = rng.choice(_CELLS)
            lines[at] = mark.join(cells)
        elif how == 3:
            names = lines[0].split(mark)
            names[rng.randrange(len(names))] = rng.choice(_NAMES)
            lines[0] = mark.join(names)
        elif how == 4:  # one column of all rows: gone, doubled, or all cells of one kind
            j, act, cell = rng.randrange(1 + lines[0].count(mark)), rng.randrange(3), rng.choice(_CELLS)
            for n, line in enumerate(lines):
                row = line.split(mark)
                if j < len(row):
                    row[j : j + 1] = [[], [row[j]] * 2, [row[j] if n == 0 else cell]][act]
                    lines[n] = mark.join(row)
        elif how == 5:
            cells[k : k + 1] = [] if rng.random() < 0.5 else [cells[k], rng.choice(_CELLS)]
            lines[at] = mark.join(cells)
        elif how == 6:
            lines.insert(at, rng.choice((lines[at], lines[0], "", "sep=;", "Unable to determine the device")))
        elif how == 7 and len(lines) > 1:
            del lines[at]
        elif how == 8:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == 9:
            new = rng.choice(",;\t|")
            lines[:] = [line.replace(mark, new) for line in lines]
        elif how == 10:
            lines[0] = rng.choice(("\ufeff", "sep=;\n", " ", "\n", '"')) + lines[0]
        else:
            lines[:] = [line + "\r" for line in lines]

    def _other_object(self, line: str) -> str:
        rng = self._rng
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if not isinstance(body, dict) or not body:
            return line
        name = rng.choice(list(body))
        if rng.random() < 0.3:
            del body[name]
        else:
            body[name] = rng.choice((0, 1, 1.5, -1, 10**19, 10**400, 1e308, True, None, "7", "", [], {}, 20_251_120))
        return json.dumps(body)


# Parquet: tables of all types, written anew or damaged.


class ParquetMutator(Mutator):
    """Draws Parquet files: columns of random types and values, one in five with bytes changed."""

    def draw(self) -> bytes:
        """The next file, at most `LONGEST` bytes."""
        import pyarrow as pa
        from pyarrow.parquet import write_table

        rng = self._rng
        if rng.random() < 0.2:
            return super().draw()
        rows = rng.randrange(1, 12)
        names = [
            rng.choice(("timestamp", "ts", "date")),
            *rng.sample(("item_id", "rps", "x", "y.z", "", "indicator", "value"), 3),
        ]
        columns = [self._column(rng, rows, is_time=True), *(self._column(rng, rows, is_time=False) for _ in names[1:])]
        sink = io.BytesIO()
        write_table(pa.Table.from_arrays(columns, names), sink, compression=rng.choice(("none", "snappy")))
        return sink.getvalue()[:LONGEST]

    @staticmethod
    def _column(rng: random.Random, rows: int, *, is_time: bool) -> Any:
        import pyarrow as pa

        steps = [
            k * rng.choice((1, 1, 1, 60)) + (rng.randrange(-3, 4) if rng.random() < 0.1 else 0) for k in range(rows)
        ]
        unit = rng.choice(("s", "ms", "us", "ns"))
        per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
        start = rng.choice((*(T_S,) * 9, 0, -(10**9)))
        counts = [(start + k) * per + (rng.randrange(per) if rng.random() < 0.2 else 0) for k in steps]
        texts = [rng.choice(_CELLS).replace("\0", "") for _ in range(rows)]
        odd = rng.choice((1e36, 1e300, float("nan"), float("inf"), 7.0))
        floats = [rng.choice((0.0, 1.5, -3.0, odd)) for _ in range(rows)]
        small = [k % 100 for k in steps]
        kinds: list[Callable[[], Any]] = [
            lambda: pa.array(counts, pa.timestamp(unit, rng.choice((None, "UTC", "Europe/Berlin", "No/Where")))),
            lambda: pa.array(
                [date(2025, 11, 20) + timedelta(days=k) for k in steps], rng.choice((pa.date32(), pa.date64()))
            ),
            lambda: pa.array(counts, pa.int64()),
            lambda: pa.array([20_251_101 + k % 28 for k in range(rows)], pa.int32()),
            lambda: pa.array(texts, rng.choice((pa.string(), pa.large_string()))),
        ]
        others: list[Callable[[], Any]] = [
            *kinds,
            lambda: pa.array(floats, rng.choice((pa.float64(), pa.float32()))),
            lambda: pa.array(floats, pa.float64()),
            lambda: pa.array(small, rng.choice((pa.int8(), pa.uint64(), pa.float16(), pa.decimal128(9, 2)))),
            lambda: pa.array(counts, pa.duration(unit)),
            lambda: pa.array([k % 80_000 for k in range(rows)], pa.time32("s")),
            lambda: pa.array([t.encode("utf-8", "surrogateescape")[:9] for t in texts], pa.binary()),
            lambda: pa.array(texts).dictionary_encode(),
            lambda: pa.array([[k] for k in steps]),
            lambda: pa.array([{"a": k} for k in steps]),
            lambda: pa.nulls(rows),
            lambda: pa.array([k % 2 == 0 for k in steps]),
        ]
        usual = kinds[0] if is_time else others[len(kinds)]
        return (usual if rng.random() < 0.6 else rng.choice(kinds if is_time else others))()


# Readers, with what their answers must keep.


class _Folder:
    """A file that is written again and again, in memory where the machine has such a place."""

    def __init__(self, name: str) -> None:
        shared = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)
        self.path = Path(self._folder.name) / name


def _word(message: str) -> str:
    """A refusal without what differs from file to file."""
    return re.sub(r"/\S+|'[^']*'|[\d.+-]+|\S*[^\x20-\x7e]\S*", "", message[:160])[:48]


def _refused(error: HarmonyError) -> str:
    assert error.exit_code == 2
    assert error.message.endswith(".")
    return _word(error.message)


def _numbers(text: str) -> set[float]:
    """Every number that stands in a text, also glued to others."""
    return {float(found) for found in _NUMBER.findall(text.replace("_", " "))}


def device_table(value: bytes) -> str:
    """CSV logs of devices: values and times come from cells; none is measured now where the header names a time."""
    text = value.decode("utf-8", "replace")
    numbers = _numbers(text)
    named = {ms for cell, instants in (_TIMES | _SEED_TIMES).items() if cell in text for ms in instants}
    is_known = all(cell.strip() in _KNOWN for line in text.split("\n") for cell in re.split("[,;\t]", line))
    num = 0
    try:
        with open_text(io.BytesIO(value)) as lines:
            table = DeviceTable(lines, lambda: NOW_MS)
            for points in table:
                for point in points:
                    num += 1
                    assert point.value in numbers, f"{point.value} stands nowhere"
                    assert 946_684_800_000 <= point.ts_ms < 4_102_444_800_000
                    assert point.ts_ms != NOW_MS or not table.names_times
                    assert not is_known or point.ts_ms == NOW_MS or point.ts_ms in named, point.ts_ms
    except (NoTextError, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        return type(error).__name__
    except UnreadableError as error:
        return _word(str(error))
    return "read" if num else "nothing"


def load_table(name: str) -> Callable[[bytes], str]:
    """Series: finite values are those of cells, and of no others than the file's own rows."""
    folder = _Folder(name)

    def run(value: bytes) -> str:
        folder.path.write_bytes(value)
        try:
            tables = read_series(folder.path)
        except HarmonyError as error:
            return _refused(error)
        numbers = _numbers(value.decode("utf-8", "replace")) if name.endswith(".csv") else None
        for table in tables:
            found = table.values[np.isfinite(table.values)]
            assert (np.abs(found) <= 1e37).all(), "more than a forecast holds"
            assert -8_520_336_000_000 <= table.start_ts_ms <= int(table.timestamps_ms[-1]) < 4_102_531_200_000
            if numbers is not None and table.num_merged == 0:
                assert set(found.tolist()) <= numbers, set(found.tolist()) - numbers
        return "read"

    return run


def trace_file() -> Callable[[bytes], str]:
    """Request traces: sorted arrivals, whole tokens of at least one, no more requests than lines."""
    folder = _Folder("t.csv")

    def run(value: bytes) -> str:
        folder.path.write_bytes(value)
        try:
            trace = read_trace(folder.path)
        except TraceError as error:
            return _word(str(error))
        arrivals = trace.arrivals
        text = value.decode("utf-8", "replace")
        assert (np.diff(arrivals.arrival_s) >= 0).all()
        assert len(arrivals) + trace.num_without_tokens <= len(re.split(r"\r\n|\n|\r", text))
        for column in (arrivals.prompt_tokens, arrivals.output_tokens):
            assert (column >= 1).all()
            assert set(column.astype(float).tolist()) <= _numbers(text)
        return "read"

    return run


def rate_file() -> Callable[[bytes], str]:
    """Rate files and histories: edges ascend from 0, rates are finite."""
    folder = _Folder("r.csv")

    def run(value: bytes) -> str:
        folder.path.write_bytes(value)
        try:
            profile = read_rates(folder.path)
        except TraceError as error:
            word = _word(str(error))
        else:
            assert profile.edges_s[0] == 0
            assert (np.diff(profile.edges_s) > 0).all()
            assert np.isfinite(profile.rates_rps).all()
            word = "read"
        try:
            history = read_history(folder.path, "w")
        except HarmonyError as error:
            _refused(error)
        else:
            assert not (history.rate_rps < 0).any()
            word += ", a history"
        return word

    return run


def instant_cell(value: bytes) -> str:
    """One cell as an instant: within the bounds, and the same in another spelling."""
    text = value.decode("utf-8", "replace")
    try:
        found = read_instant(text)
    except InstantError as error:
        return _word(str(error))
    assert read_instant(f" {text.strip()}\u00a0") == found
    if found.zoned is not None:
        assert abs(read_instant(str(found)).ns - found.ns) < 1_000
    return "read" if found.zoned is None else "read, written out"


def _csv(*rows: Sequence[object]) -> bytes:
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()


DEVICE_SEEDS: Final = (
    _csv(
        ("timestamp", " index", " uuid", " utilization.gpu [%]", " memory.used [MiB]", " power.draw [W]"),
        *((f"2025/11/20 11:00:{k:02}.001", k % 2, f"GPU-{k % 2}", f"{k} %", "1024 MiB", "312.50 W") for k in range(4)),
    ),
    _csv(
        ("timestamp", "device", "power_watts", "gpu_use_percent"), *((T_S + k, "card0", 200 + k, 9) for k in range(3))
    ),
    _csv(
        ("device", "GPU use (%)", "VRAM Total Memory (B)", "Average Graphics Package Power (W)"),
        ("card0", 87, 4096, 90),
    ),
    _csv(
        ("timestamp", "gpu", "power_usage", "hotspot_temperature", "gfx", "vram_used", "vram_total"),
        (T_S, 0, 650, 68, 97, 5, 9),
    ),
    _csv(
        ("timestamp", " name", " pci.bus_id", " power.draw [W]"),
        *((T_S, "H100", f"0000:{k}", f"{k}.5 W") for k in range(3)),
    ),
)
LOAD_SEEDS: Final = (
    _csv(("timestamp", "rps", "gpu"), *((T_S + 15 * k, k + 0.5, k % 3 or "") for k in range(10))),
    _csv(("item_id", "timestamp", "x"), *(("ab"[k // 5], f"2025-11-20 11:00:{10 * (k % 5):02}", k) for k in range(10))),
    _csv(("timestamp", "indicator", "value"), *((T_S + 60 * (k % 4), "xy"[k // 4], k) for k in range(8))),
    _csv(("date", "rps"), *((20_251_101 + k, k) for k in range(9))).replace(b",", b";"),
    _csv(("", "ts_ms", "x"), *((k, 1000 * T_S + 1000 * k, k) for k in range(9))),
    _csv(("Timestamp (UTC)", "x"), *((f"2025-11-20 1{k}:00:00 UTC", k) for k in range(9))),
)
TRACE_SEEDS: Final = (
    _csv(("arrival_s", "prompt_tokens", "output_tokens"), *((k / 2, 100 + k, 7.0) for k in range(5))),
    _csv(
        ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        *((f"2025-11-20 11:00:0{k}.1234567", 374, k) for k in range(5)),
    ),
    _csv(("Timestamp", "Model", "Request tokens", "Response tokens"), *((k, "A", 472, k) for k in range(5))),
    "\n".join(json.dumps({"timestamp": 500 * k, "input_length": 9, "output_length": k}) for k in range(4)).encode(),
    "\n".join(
        json.dumps({"chat_id": k, "timestamp": 0.5 * k, "input_length": 9, "output_length": 3}) for k in range(4)
    ).encode(),
)
RATE_SEEDS: Final = (
    _csv(
        ("start_s", "rate_rps", "prompt_tokens", "output_tokens", "replicas"),
        *((60 * k, 1.5, 900, "80:0.5", 2) for k in range(4)),
    ),
    _csv(("start_s", "rate_rps", "replicas", "good_ratio"), *((T_S + 60 * k, 1.5, 2, 0.99) for k in range(4))),
    _csv(("timestamp", "value"), *((f"2025-11-20 11:0{k}", k) for k in range(5))),
    _csv(("period", "count"), *((f"1998-05-01 00:0{k}", k) for k in range(5))),
    _csv(("category", "chunk", "timestamp", "rate"), *(("c", "ab"[k % 2], 600 * (k // 2), 0.5) for k in range(6))),
)
CELL_SEEDS: Final = tuple(cell.encode() for cell in _CELLS)
# Times of the seeds of devices, and every cell that is known: where a file holds no others, its instants are known too.
_SEED_TIMES: Final = {f"2025/11/20 11:00:{k:02}.001": {_LOCAL_MS + 1000 * k - 14_999} for k in range(4)} | {
    str(T_S + k): {1000 * (T_S + k)} for k in range(1, 4)
}
_KNOWN: Final = {
    *_CELLS, *_NAMES, *(cell.strip() for seed in DEVICE_SEEDS for cell in re.split("[,\n]", seed.decode())),
    "sep=", "Unable to determine the device", "5", '5"', "1", '"1', '"a', 'b"',
}  # fmt: skip
