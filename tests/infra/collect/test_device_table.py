"""CSV logs of devices: every number comes from its device and its instant, or the row is refused."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.collect.device_table import DeviceTable
from infra.collect.files import read_file
from infra.collect.formats.exposition import UnreadableError
from infra.console.errors import HarmonyError
from infra.lab.series import read_series
from tests.infra.collect.samples import TS_MS, reader
from tests.infra.console.test_instants import zone_of_machine

GIB = 2.0**30


def now() -> int:
    return TS_MS


def readings(tmp_path: Path, text: str) -> list[tuple[str, int, dict[str, float]]]:
    """Source without the file's name, time and values of every reading."""
    (tmp_path / "n1.csv").write_bytes(text.encode())
    by = reader("nvidia-smi", "gpu-csv", workload="w")
    found = [r for points in read_file(tmp_path / "n1.csv", "csv", {}, by, Counter()) for r in by.read(points)]
    return [(r.source.removeprefix("n1").removeprefix("/"), r.ts_ms, dict(r.values)) for r in found]


def refusal(text: str, now_ms: Callable[[], int] = now, *, live: bool = False) -> str:
    with pytest.raises(UnreadableError) as caught:
        list(DeviceTable(io.StringIO(text), now_ms, live=live))
    return str(caught.value)


@pytest.mark.parametrize(
    ("columns", "cells", "sources"),
    [
        ("index", ("0", "1"), ("0", "1")),
        ("uuid", ("GPU-a", "GPU-b"), ("GPU-a", "GPU-b")),
        ("pci.bus_id", ("00000000:1B:00.0", "00000000:43:00.0"), ("00000000:1B:00.0", "00000000:43:00.0")),
        ("gpu_bus_id", ("1B", "43"), ("1B", "43")),
        ("serial", ("165", "166"), ("165", "166")),
        ("gpu_serial", ("165", "166"), ("165", "166")),
        ("minor_number", ("0", "1"), ("0", "1")),
        ("card", ("card0", "card1"), ("card0", "card1")),
        ("gpu", ("0", "1"), ("0", "1")),
        ("Device", ("0", "1"), ("0", "1")),
        ("gpu,device", ("0,a", "1,b"), ("0/a", "1/b")),
        ("serial,minor_number", ("[N/A],0", "[N/A],1"), ("0", "1")),
        ("hostname,index", ("a,0", "b,0"), ("a/0", "b/0")),
    ],
)
@pytest.mark.parametrize("metric", ["power.draw [W]", "power_w"])
def test_any_identity_column_tells_devices_apart(
    tmp_path: Path, columns: str, cells: tuple[str, str], sources: tuple[str, str], metric: str
) -> None:
    rows = "".join(f"{TS_MS},{cell},{power}\n" for cell, power in zip(cells, (650, 110), strict=True))
    found = readings(tmp_path, f"timestamp,{columns},{metric}\n{rows}")
    assert {source: values["power_w"] for source, _, values in found} == dict(zip(sources, (650, 110), strict=True))


def test_an_index_that_two_machines_share_is_told_apart_by_the_bus(tmp_path: Path) -> None:
    rows = "".join(f"{TS_MS}, 0, {bus}, {power} W\n" for bus, power in (("1B", 650), ("43", 110)))
    found = readings(tmp_path, f"timestamp, index, pci.bus_id, power.draw [W]\n{rows}")
    assert {source: values["power_w"] for source, _, values in found} == {"0/1B": 650.0, "0/43": 110.0}


def test_rows_of_one_instant_that_nothing_tells_apart_are_refused() -> None:
    head = "timestamp, name, pci.device_id, serial, power.draw [W]\n"
    rows = [f"{TS_MS}, H100, 0x233010DE, [N/A], {power}\n" for power in (650, 110)]
    assert refusal(head + "".join(rows)) == (
        "lines 2 and 3 are of one instant, and nothing tells their devices apart; log index, uuid or pci.bus_id, as "
        "--query-gpu=timestamp,index,..."
    )
    back = head + "".join(f"{TS_MS + ms}, H100, 0x233010DE, 0, 1\n".replace(", 0,", ", [N/A],") for ms in (5, 10, 5))
    assert refusal(back).startswith(
        "line 4 goes back in time after another, and nothing tells their devices apart; log"
    )
    assert list(DeviceTable(io.StringIO(back), now, live=True)), "the clock of a machine may be set back"
    same = list(DeviceTable(io.StringIO(head + rows[0] * 2), now))
    assert [[p.value for p in points] for points in same] == [[650.0], [650.0]], "a row twice leaves no doubt"


def test_a_table_without_a_device_or_a_time_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readings(tmp_path, f"timestamp,power_w\n{TS_MS},1\n{TS_MS + 100},2\n")
    assert "all rows are read as one device" in capsys.readouterr().err
    assert readings(tmp_path, "gpu,power_w\n0,1\n1,2\n")[1][::2] == ("1", {"power_w": 2.0})
    assert "published as measured now" in capsys.readouterr().err
    readings(tmp_path, f"timestamp,gpu,power_w\n{TS_MS},0,1\n{TS_MS},0,2\n")
    assert "1 rows repeat a device and an instant with other values" in capsys.readouterr().err
    readings(tmp_path, f'timestamp,gpu,power_w\n{TS_MS},0,"650,5"\n{TS_MS},1,-\n')
    assert "1 cells hold no number and are missing: line 2, column power_w: '650,5'" in capsys.readouterr().err


def test_a_pipe_without_times_is_measured_as_it_comes() -> None:
    clock = iter(range(TS_MS, TS_MS + 9))
    table = DeviceTable(io.StringIO("gpu,power_w\n0,1\n0,2\n0,3\n"), lambda: next(clock), live=True)
    assert [points[0].ts_ms for points in table] == [TS_MS + 1, TS_MS + 2, TS_MS + 3]
    assert refusal("gpu,power_w\n0,1\n0,2\n") == (
        "lines 2 and 3 are of one device, and no time tells them apart; log a column timestamp"
    )


@pytest.mark.parametrize("name", ["timestamp", "Time", "ts", "datetime", "date", "Timestamp (UTC)", "ts_ms",
                                  "@timestamp", "utc_epoch_s", "epoch", "unix_time", "date time",
                                  "time [UTC]"])  # fmt: skip
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000])
def test_times_are_found_and_read_in_any_unit(tmp_path: Path, name: str, bom: str, unit: int) -> None:
    found = readings(tmp_path, f"{bom}{name},gpu,power_w\n{TS_MS * unit // 1000},0,1\n")
    assert found == [("0", TS_MS // 1000 * 1000 if unit == 1 else TS_MS, {"power_w": 1.0})]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("sampled_at", "2026-11-20 10:00:00"),
        ("when", "2026/11/20 10:00:00.001"),
        ("sample_time", "1795168800"),
        ("sample_time", "10:00:00"),
        ("collected_date", "20261120"),
    ],
)
def test_nothing_is_measured_now_that_has_a_time_under_another_name(column: str, cell: str) -> None:
    message = refusal(f"{column},gpu,power_w\n{cell},0,1\n")
    assert message == f"line 2: column {column!r} holds times ({cell}), but is not named so; name it timestamp"


def test_numbers_the_size_of_times_are_numbers(tmp_path: Path) -> None:
    found = readings(tmp_path, "gpu,vram_used_bytes,uptime\n0,1795168800,12345\n")
    assert found[0][2] == {"memory_used_bytes": 1795168800.0}


def test_amds_tools(tmp_path: Path) -> None:
    rocm = (
        "device,Temperature (Sensor edge) (C),Temperature (Sensor junction) (C),Average Graphics Package Power (W),"
        "GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,41.0,46.0,90.0,87,4294967296,1073741824\n"
    )
    values = {
        "sm_active_ratio": 0.87, "power_w": 90.0, "temperature_c": 41.0,
        "memory_total_bytes": 4 * GIB, "memory_used_bytes": GIB,
    }  # fmt: skip
    assert readings(tmp_path, rocm)[0][::2] == ("card0", values)
    newer = rocm.replace("Average Graphics", "Current Socket Graphics").replace("(Sensor edge)", "(Sensor memory)")
    assert readings(tmp_path, newer)[0][::2] == ("card0", values | {"temperature_c": 46.0})
    monitor = (
        "timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,mem_clock,vram_used,vram_free,"
        f"vram_total,vram_percent\n{TS_MS // 1000},0,90,41,60,1900,87,45,1300,1024,3072,4096,25\n"
    )
    assert readings(tmp_path, monitor) == [("0", TS_MS, values)]
    metric = (
        "timestamp,gpu,gfx_activity,umc_activity,mm_activity,socket_power,gfx_voltage,gfx_0_clk,mem_0_clk,edge,hotspot,"
        f"mem,total_vram,used_vram\n{TS_MS // 1000},0,87,80,N/A,90,N/A,1980,901,41,72,65,4096,1024\n"
    )
    assert readings(tmp_path, metric) == [("0", TS_MS, values)]
    accumulated = f"timestamp,device,gpu_use_percent,gfx_activity\n{TS_MS // 1000},card0,87,87772295\n"
    assert readings(tmp_path, accumulated)[0][2] == {"sm_active_ratio": 0.87}


def test_a_header_may_come_again_and_may_change(tmp_path: Path) -> None:
    first = f"timestamp, index, power.draw [W], temperature.gpu\n{TS_MS}, 0, 650.00 W, 61\n"
    second = f"index, timestamp, temperature.gpu, power.draw [W]\n0, {TS_MS + 5}, 62, 651.00 W\n"
    found = readings(tmp_path, first + first.replace(str(TS_MS), str(TS_MS + 1)) + second)
    assert [(ts_ms - TS_MS, values) for _, ts_ms, values in found] == [
        (0, {"power_w": 650.0, "temperature_c": 61.0}),
        (1, {"power_w": 650.0, "temperature_c": 61.0}),
        (5, {"power_w": 651.0, "temperature_c": 62.0}),
    ]
    untimed = "device,GPU use (%),Temperature (Sensor edge) (C)\ncard0,1,41\n"
    swapped = "device,Temperature (Sensor edge) (C),GPU use (%)\ncard1,42,2\n"
    assert [values for *_, values in readings(tmp_path, untimed + "\n" + swapped)] == [
        {"sm_active_ratio": 0.01, "temperature_c": 41.0}, {"sm_active_ratio": 0.02, "temperature_c": 42.0},
    ]  # fmt: skip


def test_a_line_of_a_tool_between_the_rows_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{TS_MS + n}, 0, 650.00 W\n" for n in range(2)]
    lost = "Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.\n"
    text = f"timestamp, index, power.draw [W]\n{rows[0]}{lost}\ufefftimestamp, index, power.draw [W]\n{rows[1]}"
    assert [ts_ms - TS_MS for _, ts_ms, _ in readings(tmp_path, text)] == [0, 1]
    assert "1 rows have no time, or are cut off, and are left out" in capsys.readouterr().err


@pytest.mark.parametrize("separator", [",", ";", "\t", ", "])
def test_separators(tmp_path: Path, separator: str) -> None:
    rows = [("timestamp", "gpu", "power_w"), (str(TS_MS), "0", "1.5")]
    text = "".join(separator.join(row) + "\r\n" for row in rows)
    assert readings(tmp_path, text) == [("0", TS_MS, {"power_w": 1.5})]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1 is no header of a CSV table of devices"),
        ("one\n", "line 1 is no header"),
        ("gpu,uuid\n", "line 1 is no header"),
        (",\n", "line 1 is no header"),
        ("2026/11/28 10:00:00.001, 0, 95\n", "as it holds '2026/11/28 10:00:00.001'; log one"),
        ("GPU-a, 95 %, 650.00 W\n", "as it holds '95 %'; log one"),
        ("timestamp,gpu,power_w,power_w\n", "line 1: column 'power_w' is there twice; log it once"),
        ("timestamp,gpu,GPU use (%),gpu_use (%)\n", "line 1: column 'GPU use (%)' is there twice; log it once"),
        ("timestamp,index,memory.used [GiB]\n", "column memory.used [GiB]: its unit GiB is not read; log it in MB"),
        ("timestamp,gpu,sm_active (%)\n", "its unit % is not read; log it as a share, without a unit"),
        (f"timestamp,gpu,mem_used_mib\n{TS_MS},0,80 GiB\n", "line 2, column mem_used_mib: its unit GiB is not read"),
        (f"timestamp,gpu,power_w\n{TS_MS},0,650000 mW\n", "line 2, column power_w: its unit mW is not read"),
        (f"timestamp,gpu,power_w\n{TS_MS},0,650,00\n", "line 2 has 4 cells, the header 3; write decimals with a point"),
        ("timestamp,gpu,power_w\n20/11/2026 10:00,0,1\n", "'20/11/2026 10:00' leaves open which number is the month"),
        ("timestamp,gpu,power_w\n46346.4,0,1\n", "a spreadsheet's number of the day 2026-11-20"),
        ("timestamp,gpu,power_w\n12.5,0,1\n", "'12.5' lies outside 2000 to 2100"),
        ("date,time,gpu,power_w\n2026-11-20,10:00:00,0,1\n", "column time: '10:00:00' is not a time"),
        ("timestamp (UTC),gpu,power_w\n1970-01-01 00:00:12,0,1\n", "lies before 2000; set the clock of the machine"),
    ],
)
def test_what_would_be_a_wrong_number_is_refused(text: str, problem: str) -> None:
    assert problem in refusal(text)


@pytest.mark.parametrize("cell", ["", "N/A", "[N/A]", "[Unknown Error]", "[GPU requires reset]", "-", "--", "nan",
                                  "None", "ERR!", "Not Supported", "inf", "many", "1_000", "−5"])  # fmt: skip
def test_what_is_no_number_is_missing_and_not_0(tmp_path: Path, cell: str) -> None:
    assert readings(tmp_path, f"timestamp,gpu,power_w,temp_c\n{TS_MS},0,{cell},40\n")[0][2] == {"temperature_c": 40.0}


@pytest.mark.parametrize("cell", ["650", "650.00 W", "+650", "6.5e2", " 650.0W ", "650."])
def test_ways_to_write_a_number(tmp_path: Path, cell: str) -> None:
    assert readings(tmp_path, f"timestamp,gpu,power_w\n{TS_MS},0,{cell}\n")[0][2] == {"power_w": 650.0}


def test_nameless_and_doubled_columns_of_no_profile_are_not_read() -> None:
    text = f",timestamp,gpu,power_w,clock,clock,\n0,{TS_MS},0,1,2,3,4\n"
    (points,) = DeviceTable(io.StringIO(text), now)
    assert [(p.name, p.value) for p in points] == [("csv_power_w", 1.0)]


def test_local_times_go_on_when_clocks_are_set_back(tmp_path: Path) -> None:
    begin_ms = 1_792_884_600_000  # 2026-10-25 01:30 in Berlin, half an hour before clocks go back
    true_ms = [begin_ms + 600_000 * k for k in range(14)]
    with zone_of_machine("Europe/Berlin"):
        rows = "".join(
            f"{datetime.fromtimestamp(ms / 1000):%Y/%m/%d %H:%M:%S.000}, {index}, 650.00 W\n"  # noqa: DTZ006
            for ms in true_ms
            for index in (0, 1)
        )
        found = readings(tmp_path, f"timestamp, index, power.draw [W]\n{rows}")
        assert [ts_ms for source, ts_ms, _ in found if source == "0"] == true_ms
        assert "happens twice" in refusal("timestamp,gpu,power_w\n2026-10-25 02:30,0,1\n")
        assert "does not exist" in refusal("timestamp,gpu,power_w\n2026-03-29 02:30,0,1\n")
        for at_ms in (begin_ms + 3_600_000, begin_ms + 7_200_000):  # 02:30 comes twice; a pipe tells what is now
            text = "timestamp,gpu,power_w\n2026-10-25 02:30,0,1\n"
            ((point,),) = DeviceTable(io.StringIO(text), lambda at_ms=at_ms: at_ms, live=True)  # type: ignore[misc]
            assert point.ts_ms == at_ms


def test_a_packed_file_and_a_workbook_are_named(tmp_path: Path) -> None:
    for content, words in ((b"PK\x03\x04", "packed (zip)"), ("a,b\n".encode("utf-16"), "UTF-16"), (b"PAR1", "Parquet")):
        (tmp_path / "x.csv").write_bytes(content)
        with pytest.raises(HarmonyError, match=rf"x\.csv: is .*{words}".replace("(", r"\(").replace(")", r"\)")):
            list(read_file(tmp_path / "x.csv", "auto", {}, reader(), Counter()))


@pytest.mark.parametrize(
    "cell",
    [
        *("9" * 99_000 + "x", "9" + " " * 99_000 + "!", " " * 99_000 + "x", "[" * 99_000, "-" * 99_000, "(" * 99_000),
        *("1," * 49_000 + "x", "2025-11-20" + " " * 99_000 + "x"),
    ],
)
def test_long_cells_hold_nothing_up(tmp_path: Path, cell: str) -> None:
    """Time grows with the length of a cell, not with its square."""
    started = thread_time()
    with suppress(UnreadableError):
        list(DeviceTable(io.StringIO(f'timestamp,gpu,power_w\n{TS_MS},0,"{cell}"\n"{cell}",0,1\n'), now))
    with suppress(UnreadableError):
        list(DeviceTable(io.StringIO(f'timestamp,gpu,"{cell}"\n{TS_MS},0,1\n'), now))
    (tmp_path / "t.csv").write_text(f'timestamp,x\n20251120,"{cell}"\n')
    with pytest.raises(HarmonyError, match="column x"):
        read_series(tmp_path / "t.csv")
    assert thread_time() - started < 2.0


names = st.sampled_from(("timestamp", "index", "uuid", "pci.bus_id", "power.draw [W]", "temperature.gpu", "name", "",
                         "gpu", "power_w", "GPU use (%)", "date"))  # fmt: skip
cells = st.sampled_from((str(TS_MS), "2026/11/20 10:00:00.001", "0", "1", "650.00 W", "95 %", "[N/A]", "GPU-a", "",
                         "x,y", "20261120", "46346.4", "12 GiB", "timestamp"))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(names, min_size=1, max_size=6), st.lists(st.lists(cells, max_size=7), max_size=6), st.booleans())
def test_every_point_is_a_cell_of_the_table(header: list[str], rows: list[list[str]], live: bool) -> None:
    text = "\n".join(",".join(row) for row in (header, *rows)) + "\n"
    points: list[Any] = []
    try:
        for found in DeviceTable(io.StringIO(text), now, live=live):
            points += found
    except UnreadableError:
        pass
    written = {cell.split()[0] for row in rows for cell in ",".join(row).split(",") if cell}
    for point in points:
        assert f"{point.value:g}" in {f"{float(w):g}" for w in written if w.replace(".", "").isdigit()}
        assert 946_684_800_000 <= point.ts_ms < 4_102_444_800_000
