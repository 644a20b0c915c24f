"""CSV logs of devices: nvidia-smi, DCGM's and AMD's tools, one row per device and instant.

The header names the columns. Those of times and identities are found by their names, others become metrics:
`nvidia_smi_<name>` where the header is nvidia-smi's, else `csv_<name>`, with AMD's columns under the names that profile
gpu-csv reads. Sources: `nvidia-smi --help-query-gpu`; `--csv` of `rocm-smi`, `amd-smi monitor` and `amd-smi metric`.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final, Literal, NamedTuple

from infra.collect.formats.exposition import UnreadableError
from infra.collect.points import Point
from infra.console.instants import LOCAL, InstantError, read_instant
from infra.console.tables import CsvReader, Row, is_nameless, number_cell, time_column

# No pattern here goes back over a run of characters: a cell may be long.
_CELL = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([%A-Za-z/°]*)", re.ASCII)
_ABSENT = re.compile(r"(?:\[.*\]|N/?A|-+|nan|null|none|not supported|unknown|err!|unknown error|)", re.IGNORECASE)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?")
_SAYS_TIME = re.compile(r"time|date|epoch|stamp|(?:^|_)utc(?:_|$)", re.IGNORECASE)
_NVIDIA_SMI: Final = "nvidia_smi_"
_OTHER: Final = "csv_"
# Columns that name the machine, the surest first: the profiles read label `host`.
_HOSTS: Final = ("host", "hostname", "node", "nodename", "machine", "server")
_LABELS: Final = frozenset({*_HOSTS, "pod", "namespace"})
# What tells devices of one host apart, the surest first. `pci.device_id` and rocm-smi's `Device ID` name the model.
_DEVICES: Final = (
    *(
        "uuid",
        "gpu_uuid",
        "pci_bus_id",
        "gpu_bus_id",
        "bus_id",
        "bdf",
        "gpu_bdf",
        "index",
        "gpu_index",
        "gpu_idx",
        "gpu",
    ),
    *(
        "gpu_id",
        "gpuid",
        "device",
        "card",
        "card_id",
        "minor_number",
        "gpu_minor_number",
        "minor",
        "serial",
        "gpu_serial",
    ),
    *("serial_number", "pci_bus", "bus", "entity", "entity_id"),
)
# Parts of a source in the profiles nvidia-smi and gpu-csv; a part without a column takes the surest of the others.
_PARTS: Final = {_NVIDIA_SMI: ("index", "uuid"), _OTHER: ("gpu", "device")}
# Columns of AMD's tools -> names in profile gpu-csv; of several that mean one, the first that the header has.
_AMD: Final = (
    ("gpu_use_percent", ("gpu_use", "gfx_util", "gfx_activity", "gfx")),
    ("power_watts", (
        "current_socket_graphics_package_power", "average_graphics_package_power", "graphics_package_power",
        "socket_power", "power_usage", "average_socket_power", "current_socket_power",
    )),
    ("temp_edge_celsius", (
        "temperature_sensor_edge", "edge", "edge_temperature", "temperature_sensor_junction", "hotspot",
        "hotspot_temperature", "junction_temperature",
    )),
    ("vram_total_bytes", ("vram_total_memory",)),
    ("vram_used_bytes", ("vram_total_used_memory",)),
    ("mem_total_mib", ("vram_total", "total_vram")),
    ("mem_used_mib", ("vram_used", "used_vram")),
)  # fmt: skip
_PERCENT, _WATT, _CELSIUS, _MIB, _BYTE = {"%"}, {"W", "watts"}, {"C", "°C"}, {"MiB", "MB"}, {"B", "bytes"}
# Units that the profiles take for granted: another one in header or cell would be a wrong number.
_UNITS: Final[Mapping[str, set[str]]] = {
    "nvidia_smi_utilization_gpu": _PERCENT, "nvidia_smi_memory_used": _MIB, "nvidia_smi_memory_total": _MIB,
    "nvidia_smi_power_draw": _WATT, "nvidia_smi_power_draw_instant": _WATT, "nvidia_smi_temperature_gpu": _CELSIUS,
    "csv_sm_active": set(), "csv_tensor_active": set(), "csv_gpu_use_percent": _PERCENT, "csv_gpu_util_pct": _PERCENT,
    "csv_power_w": _WATT, "csv_power_watts": _WATT, "csv_temp_c": _CELSIUS, "csv_temp_edge_celsius": _CELSIUS,
    "csv_mem_used_mib": _MIB, "csv_mem_total_mib": _MIB, "csv_vram_used_bytes": _BYTE, "csv_vram_total_bytes": _BYTE,
}  # fmt: skip
_EARLIEST_MS: Final = 946_684_800_000  # 2000-01-01: a device's clock that shows less was never set


_NOTHING_TELLS_APART: Final = (
    "nothing tells their devices apart; log index, uuid or pci.bus_id, as --query-gpu=timestamp,index,..."
)


class Column(NamedTuple):
    """A column of the header.

    Attributes:
        header: as it is written, the first 60 characters.
        key: in small letters, without its unit, with `_` for all but letters and digits.
        metric: name of the series; empty for what is no number.
    """

    header: str
    key: str
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says.

    Attributes:
        time: position of the time; None where there is none.
        zone: of times without an offset.
        labels: position -> label of what is no number and names no device.
        devices: positions of what tells devices apart, the surest first.
        parts: labels under which the profiles read a device.
    """

    columns: tuple[Column, ...]
    time: int | None
    zone: tzinfo | Literal["local"]
    labels: Mapping[int, str]
    devices: tuple[int, ...]
    parts: tuple[str, ...]


class DeviceTable:
    """Reads rows as they come, so that a pipe works as a file does.

    Args:
        lines: header first.
        now_ms: the time of rows of a table without times, asked for each row.
        live: rows come as they are measured, so a table without times may hold a device again and again.

    Attributes:
        num_left_out: rows that have no time or are cut off.
        num_repeated: rows of a device and an instant that an earlier row has with other values; the last one counts.
        num_unreadable: cells of known metrics that hold neither a number nor a word for a missing one.
        first_unreadable: where the first of them stands, and what it holds.

    Raises:
        UnreadableError: no header that names a device's numbers; of an iteration, a row that cannot be understood.
    """

    def __init__(self, lines: Iterable[str], now_ms: Callable[[], int], *, live: bool = False) -> None:
        self._has_newline = True
        self._reader = CsvReader(self._noted(lines), skip_spaces=True)
        self._rows = self._checked()
        self._now_ms, self._live = now_ms, live
        line, cells = next(self._rows, (1, []))
        self._header = _header_of(line, cells)
        self._after_ns: int | None = now_ms() * 1_000_000 if live else None
        self.num_left_out = self.num_repeated = self.num_unreadable = 0
        self.first_unreadable = ""
        self._instant_ms: int | None = None
        self._seen: dict[tuple[tuple[str, str], ...], tuple[int, list[Point]]] = {}

    def _noted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._has_newline = line.endswith("\n")
            yield line

    def _checked(self) -> Iterator[Row]:
        line = 0
        try:
            for line, row in self._reader:
                yield line, row
        except csv.Error as error:
            raise UnreadableError(f"line {line + 1} is not CSV ({error})") from None

    @property
    def names_devices(self) -> bool:
        """Whether a column tells devices apart."""
        return bool(self._header.devices)

    @property
    def names_times(self) -> bool:
        """Whether a column holds the times of the rows."""
        return self._header.time is not None

    def __iter__(self) -> Iterator[list[Point]]:
        """The points of each row.

        A row may end early: what it does not hold was not measured. One that holds no time though the header names one,
        has one cell or is cut off in the middle of its last line, is left out and counted. A header may come again.
        """
        for line, row in self._rows:
            if not any(cell.strip() for cell in row):
                continue
            if self._is_header(row):
                self._header = _header_of(line, row)
                continue
            header = self._header
            if any(cell.strip() for cell in row[len(header.columns) :]):
                raise UnreadableError(
                    f"line {line} has {len(row)} cells, the header {len(header.columns)}; write decimals with a point"
                )
            torn = len(row) < len(header.columns) and not self._has_newline
            # A line of one cell is what a tool says of a device that it lost.
            if (
                torn
                or len(row) < 2
                or (header.time is not None and not "".join(row[header.time : header.time + 1]).strip())
            ):
                self.num_left_out += 1
                continue
            ts_ms = self._time_ms(row, line)
            labels = _labels(header, row)
            points = [
                Point(column.metric, labels, ts_ms, value)
                for column, cell in zip(header.columns, row, strict=False)
                if column.metric and (value := self._number(column, cell, line)) is not None
            ]
            self._tell_apart(points, labels, ts_ms, line)
            yield points

    def _is_header(self, row: Sequence[str]) -> bool:
        """A header in the middle, as a log has it that was continued: names that are known, and no number."""
        if any(number_cell(cell) is not None for cell in row):
            return False
        keys = {column.key for column in self._header.columns}
        return any(cell.strip() and _key(cell) in keys for cell in row)

    def _time_ms(self, row: Sequence[str], line: int) -> int:
        """Of text without an offset in this machine's zone, as nvidia-smi writes it, unless the header says UTC."""
        header = self._header
        if header.time is None:
            self._refuse_times(row, line)
            return self._now_ms()
        text = row[header.time].strip()
        try:
            instant = read_instant(text, header.zone, self._after_ns if header.zone == LOCAL else None)
        except InstantError as error:
            raise UnreadableError(
                f"line {line}, column {header.columns[header.time].header}: {text[:40]!r} {error}"
            ) from None
        if instant.ms < _EARLIEST_MS:
            raise UnreadableError(f"line {line}: {text[:40]!r} lies before 2000; set the clock of the machine")
        self._after_ns = instant.ns
        return instant.ms

    def _refuse_times(self, row: Sequence[str], line: int) -> None:
        """Nothing was measured now that has a time of its own."""
        for column, cell in zip(self._header.columns, row, strict=False):
            text = cell.strip()
            said = _SAYS_TIME.search(column.key) is not None
            if number_cell(text) is not None:
                found = said and _is_instant(text)
            else:
                found = _is_instant(text) or (said and _CLOCK.fullmatch(text) is not None)
            if found:
                raise UnreadableError(
                    f"line {line}: column {column.header!r} holds times ({text[:40]}), but is not named so; name it "
                    "timestamp"
                )

    def _number(self, column: Column, cell: str, line: int) -> float | None:
        match = _CELL.fullmatch(cell.strip())
        if match is None:
            if column.metric in _UNITS and not _ABSENT.fullmatch(cell.strip()):
                self.num_unreadable += 1
                self.first_unreadable = self.first_unreadable or f"line {line}, column {column.header}: {cell[:40]!r}"
            return None
        _check_unit(column, match[2], f"line {line}")
        return float(match[1])

    def _tell_apart(self, points: list[Point], labels: Mapping[str, str], ts_ms: int, line: int) -> None:
        """Refuse rows of one instant that nothing tells apart, and count those that a device repeats.

        A file whose times go back holds one device after the other, or the same one: nothing tells which.
        """
        is_named = not labels.keys().isdisjoint(self._header.parts)
        if not is_named and not self._live and self._instant_ms is not None and ts_ms < self._instant_ms:
            raise UnreadableError(f"line {line} goes back in time after another, and {_NOTHING_TELLS_APART}")
        if ts_ms != self._instant_ms:
            self._instant_ms = ts_ms
            if self._header.time is not None or self._live:
                self._seen.clear()
        key = tuple(sorted(labels.items()))
        before = self._seen.get(key)
        self._seen[key] = line, points
        if before is None or [p.value for p in before[1]] == [p.value for p in points]:
            return
        if not is_named:
            raise UnreadableError(f"lines {before[0]} and {line} are of one instant, and {_NOTHING_TELLS_APART}")
        if self._header.time is None and not self._live:
            raise UnreadableError(
                f"lines {before[0]} and {line} are of one device, and no time tells them apart; log a column timestamp"
            )
        self.num_repeated += 1


def _is_instant(text: str) -> bool:
    try:
        read_instant(text)
    except InstantError:
        return False
    return True


def _header_of(line: int, row: Sequence[str]) -> Header:
    cells = tuple(cell.strip("\ufeff").strip() for cell in row)  # PowerShell's >> writes its mark again
    value = next((cell for cell in cells if _CELL.fullmatch(cell) or _is_instant(cell)), None)
    if value is not None:
        raise UnreadableError(
            f"line {line} is no header of a CSV table of devices, as it holds {value[:40]!r}; log one"
        )
    keys = [_key(cell) for cell in cells]
    time = time_column(cells)
    labels = {k: key for k, key in enumerate(keys) if key in _LABELS}
    devices = tuple(keys.index(name) for name in _DEVICES if name in keys)
    numbers = {k for k, cell in enumerate(cells) if k not in {time, *labels, *devices} and not is_nameless(cell)}
    # nvidia-smi's query names hold dots, and its headers units in brackets.
    prefix = _NVIDIA_SMI if any("." in cells[k] or cells[k].endswith("]") for k in numbers) else _OTHER
    amd = _amd_names(keys) if prefix == _OTHER else {}
    columns = []
    for k, (cell, key) in enumerate(zip(cells, keys, strict=True)):
        name = amd.get(key, re.sub(r"[^A-Za-z0-9_]+", "_", _without_unit(cell)[0]))
        columns.append(Column(cell[:60], key, prefix + name if k in numbers else ""))
    metrics = Counter(column.metric for column in columns if column.metric)
    if len(cells) < 2 or not metrics:
        raise UnreadableError(f"line {line} is no header of a CSV table of devices")
    for k, column in enumerate(columns):
        if metrics[column.metric] > 1:
            if column.metric in _UNITS:
                raise UnreadableError(f"line {line}: column {column.header!r} is there twice; log it once")
            columns[k] = column._replace(metric="")
        _check_unit(column, _without_unit(cells[k])[1], f"line {line}")
    zone: tzinfo | Literal["local"] = UTC if time is not None and "utc" in cells[time].lower() else LOCAL
    return Header(tuple(columns), time, zone, labels, devices, _PARTS[prefix])


def _without_unit(header: str) -> tuple[str, str]:
    """A header's name and its unit: nvidia-smi's in brackets, AMD's in parentheses at the end.

    >>> _without_unit("power.draw [W]"), _without_unit("Temperature (Sensor edge) (C)"), _without_unit("gpu")
    (('power.draw', 'W'), ('Temperature (Sensor edge)', 'C'), ('gpu', ''))
    """
    text = header.strip()
    opening = {"]": "[", ")": "("}.get(text[-1:], "")
    at = text.rfind(opening) if opening else -1
    return (text[:at].strip(), text[at + 1 : -1].strip()) if at >= 0 else (text, "")


def _key(header: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", _without_unit(header)[0].lower()).strip("_")


def _amd_names(keys: Sequence[str]) -> dict[str, str]:
    """Key of a column -> its name in profile gpu-csv."""
    names = {}
    for name, candidates in _AMD:
        found = next((key for key in candidates if key in keys), None)
        if found is not None and name not in keys:
            names[found] = name
    return names


def _check_unit(column: Column, unit: str, where: str) -> None:
    expected = _UNITS.get(column.metric)
    if unit and expected is not None and unit not in expected:
        in_what = f"in {min(expected)}" if expected else "as a share, without a unit"
        raise UnreadableError(f"{where}, column {column.header}: its unit {unit[:20]} is not read; log it {in_what}")


def _labels(header: Header, row: Sequence[str]) -> dict[str, str]:
    """Who measured a row: its host, pod and namespace, and the parts that tell its device apart."""

    def cell(k: int) -> str:
        text = row[k].strip() if k < len(row) else ""
        return "" if _ABSENT.fullmatch(text) else text

    labels = {name: cell(k) for k, name in header.labels.items()}
    labels["host"] = next((labels[name] for name in _HOSTS if labels.get(name)), "")
    devices = {header.columns[k].key: cell(k) for k in header.devices}
    others = [text for key, text in devices.items() if text and key not in header.parts]
    for part in header.parts:
        labels[part] = devices.get(part) or (others.pop(0) if others else "")
    return {name: text for name, text in labels.items() if text}
