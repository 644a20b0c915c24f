"""Reading telemetry files: wide and long agree, gaps are masked, and each mistake is named with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.lab.series import read_series

WIDE = "item_id,timestamp,rps,gpu\na,2026-01-01 00:00:00,1,0.5\na,2026-01-01 00:00:15,,0.6\na,2026-01-01 00:00:45,4,\n"
LONG = (
    "item_id,timestamp,indicator,value\n"
    "a,2026-01-01 00:00:00,rps,1\na,2026-01-01 00:00:00,gpu,0.5\na,2026-01-01 00:00:15,gpu,0.6\n"
    "a,2026-01-01 00:00:45,rps,4\n"
)


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_wide_and_long_give_the_same_series(tmp_path: Path) -> None:
    (wide,) = read_series(write(tmp_path, WIDE))
    (long,) = read_series(write(tmp_path, LONG, "l.csv"))
    assert wide.indicators == long.indicators == ("rps", "gpu")
    assert wide.step_ms == long.step_ms == 15_000
    np.testing.assert_array_equal(wide.values, long.values)
    np.testing.assert_array_equal(wide.values, [[1, 0.5], [np.nan, 0.6], [np.nan, np.nan], [4, np.nan]])
    assert wide.num_gaps == 1
    assert wide.start_ts_ms == 1_767_225_600_000


def test_gzip_and_parquet_read_like_csv(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    plain = write(tmp_path, WIDE)
    (want,) = read_series(plain)
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(WIDE.encode()))
    columns = tmp_path / "t.parquet"
    parquet.write_table(csv.read_csv(plain), columns)
    assert arrow.__version__
    for path in (packed, columns):
        (table,) = read_series(path)
        np.testing.assert_array_equal(table.values, want.values)
        assert (table.start_ts_ms, table.step_ms) == (want.start_ts_ms, want.step_ms)


@pytest.mark.parametrize("time", ["1767225600", "1767225600000", "2026-01-01T00:00:00Z", "2026-01-01 01:00:00+01:00"])
def test_ways_to_write_a_time(tmp_path: Path, time: str) -> None:
    (table,) = read_series(write(tmp_path, f"timestamp,x\n{time},1\n"), step_ms=1000)
    assert table.start_ts_ms == 1_767_225_600_000


@given(st.integers(1, 900), st.integers(3, 40), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_a_jittering_scrape_keeps_its_step(
    tmp_path_factory: pytest.TempPathFactory, step: int, num: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    step_ms = 1000 * step
    times = 1_767_225_600_000 + step_ms * np.arange(num) + rng.integers(0, max(1, step_ms // 25), num)
    path = write(tmp_path_factory.mktemp("jitter"), "ts_ms,x\n" + "".join(f"{t},{k}\n" for k, t in enumerate(times)))
    (table,) = read_series(path)
    assert abs(table.step_ms - step_ms) <= step_ms / 20 + 1
    (given_step,) = read_series(path, step_ms=step_ms)
    np.testing.assert_array_equal(given_step.values[:, 0], np.arange(num))


def test_a_coarser_step_averages(tmp_path: Path) -> None:
    rows = "".join(f"{60_000 * 30_000_000 + 15_000 * k},{k}\n" for k in range(8))
    (table,) = read_series(write(tmp_path, "ts_ms,x\n" + rows), step_ms=60_000)
    np.testing.assert_array_equal(table.values[:, 0], [1.5, 5.5])
    assert table.num_merged == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is empty"]),
        ("timestamp,x\n", ["no rows"]),
        ("a,b\n1,2\n", ["no time column", "timestamp"]),
        ("timestamp\n2026-01-01\n", ["no column beside"]),
        ("timestamp,x,X\n2026-01-01,1,1\n", ["appears twice"]),
        ("timestamp,x\n2026-01-01,1\n2026-01-01,2\n", ["line 3", "twice", "line 2"]),
        ("timestamp,x\n2026-01-02,1\n2026-01-01,2\n", ["line 3", "back in time", "sort"]),
        ("timestamp,x\n2026-01-01,1\n2026-01-02,many\n", ["line 3", "column x", "'many'", "not a finite number"]),
        ("timestamp,x\n2026-01-01,inf\n", ["line 2", "not a finite number"]),
        ("timestamp,x\nyesterday,1\n", ["line 2", "'yesterday'", "not a time"]),
        ("timestamp,x\n2026-01-01,1,2\n", ["line 2", "3 cells"]),
        ("timestamp,x\n2026-01-01,1\n", ["no item has two rows", "--step"]),
        (
            "ts_ms,x\n1767225600000,1\n1767225601000,1\n1767225602000,1\n1767225603600,1\n",
            ["line 5", "does not keep a step of 1 s"],
        ),
        ("timestamp,indicator,value\n2026-01-01,x,1\n2026-01-01,x,2\n", ["line 3", "two values of 'x'"]),
        (
            "timestamp,indicator,value\n2026-01-02,x,1\n2026-01-01,x,2\n",
            ["line 3", "'x' of item 't' goes back in time"],
        ),
        ("timestamp;x\n2026-01-01;103,39\n", ["line 2, column x", "has a comma in its number", "with a point"]),
        ('timestamp,x\n2026-01-01,"1,104.01"\n', ["line 2, column x", "has a comma in its number"]),
        ("timestamp,x\n2026-01-01,1_200\n", ["line 2, column x: '1_200' is not a finite number"]),
        (
            "timestamp,x\n2026-01-01,12 %\n",
            ["line 2, column x: '12 %' has a unit behind its number; write the number alone"],
        ),
        ("timestamp,x\n2026-01-01,1e38\n", ["line 2, column x: '1e38' is beyond 1e+37", "larger unit"]),
        ("timestamp,x\n2026-01-01,1e-40\n2026-01-02,2e-40\n", ["column x: no value of item 't' reaches 1e-37"]),
        ("timestamp,x\n46023.0,1\n", ["line 2, column timestamp", "a spreadsheet's number of the day 2026-01-01"]),
        ("timestamp,x\n2026-01-01T00:00Z,1\n2026-01-02,1\n", ["line 3, column timestamp", "has an offset", "alike"]),
        ("timestamp,x\n,1\n", ["line 2, column timestamp: '' is no time"]),
        (",rps\n2026-01-01,1\n", ["no time column", "column 1 has no name"]),
        ("item_id,timestamp,x\n,2026-01-01,1\n", ["line 2, column item_id: '' names no item"]),
        ("timestamp,x\n1700-01-01,1\n1700-01-01T00:00:00.001,1\n2090-01-01,1\n", ["spans", "steps", "--step"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(HarmonyError) as caught:
        read_series(write(tmp_path, text))
    assert caught.value.exit_code == 2
    for word in [*words, "t.csv"]:
        assert word in caught.value.message, caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HarmonyError, match="cannot be read"):
        read_series(tmp_path / "none.csv")
    with pytest.raises(HarmonyError, match=r"cannot be read|is not a Parquet"):
        read_series(write(tmp_path, "timestamp,x", "bad.parquet"))


@pytest.mark.parametrize(
    "text",
    [
        "timestamp;x\n20260101;1\n20260102;\n20260103;3\n",
        "sep=;\ntimestamp;x\n2026-01-01;1\n2026-01-02;\n2026-01-03;3\n",
        "\ufefftimestamp\tx\r\n2026-01-01\t1\r\n2026-01-02\t\r\n2026-01-03\t3\r\n",
        ",timestamp,x\n0,2026-01-01,1\n1,2026-01-02,\n2,2026-01-03,3\n",
        "Unnamed: 0,timestamp,x\n0,2026-01-01,1\n1,2026-01-02,\n2,2026-01-03,3\n",
        "timestamp,x,\n2026-01-01,1,\n2026-01-02,,\n2026-01-03,3,\n",
        "timestamp,indicator,value\n2026-01-01,x,1\n2026-01-02,x,\n2026-01-03,x,3\n",
        "Timestamp (UTC),x\n2026-01-01 00:00:00 UTC,1\n2026-01-02 00:00:00 UTC,\n2026-01-03 00:00:00 UTC,3\n",
    ],
)
def test_ways_to_write_one_series(tmp_path: Path, text: str) -> None:
    (table,) = read_series(write(tmp_path, text))
    assert (table.start_ts_ms, table.step_ms, table.indicators) == (1_767_225_600_000, 86_400_000, ("x",))
    np.testing.assert_array_equal(table.values, [[1], [np.nan], [3]])
    assert table.num_nameless == ((text.startswith((",", "Unnamed"))) or ",\n" in text.splitlines(keepends=True)[0])


def test_a_long_file_may_hold_one_indicator_after_the_other(tmp_path: Path) -> None:
    rows = WIDE.splitlines()[1:]
    cells = [row.split(",") for row in rows]
    melted = [f"a,{time},{name},{cell}" for n, name in ((2, "rps"), (3, "gpu")) for _, time, *_ in cells
              for cell in [next(row[n] for row in cells if row[1] == time)]]  # fmt: skip
    (wide,) = read_series(write(tmp_path, WIDE))
    (long,) = read_series(write(tmp_path, "item_id,timestamp,indicator,value\n" + "\n".join(melted) + "\n", "l.csv"))
    assert long.indicators == wide.indicators
    np.testing.assert_array_equal(long.values, wide.values)


@given(st.permutations([(t, name) for t in range(4) for name in ("x", "y", "z")]), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_however_the_indicators_of_a_long_file_lie_it_is_read_alike(
    tmp_path_factory: pytest.TempPathFactory, order: list[tuple[int, str]], seed: int
) -> None:
    """Any order that keeps each indicator's own."""
    values = np.random.default_rng(seed).integers(1, 99, (4, 3))
    turns = {name: iter(range(4)) for name in "xyz"}
    rows = [(next(turns[name]), name) for _, name in order]
    text = "".join(f"{1_767_225_600 + 60 * t},{name},{values[t]['xyz'.index(name)]}\n" for t, name in rows)
    (table,) = read_series(write(tmp_path_factory.mktemp("long"), "timestamp,indicator,value\n" + text))
    for j, name in enumerate(table.indicators):
        np.testing.assert_array_equal(table.values[:, j], values[:, "xyz".index(name)])


def test_what_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    text = "timestamp,rps,host,p99,p99\n2026-01-01,1,node-a,inf,x\n2026-01-02,2,node-b,3,y\n"
    (table,) = read_series(write(tmp_path, text), indicators=["rps"])
    assert (table.indicators, table.unread) == (("rps",), ("host", "p99", "p99"))
    np.testing.assert_array_equal(table.values, [[1], [2]])
    (long,) = read_series(write(tmp_path, LONG.replace("gpu,0.5", "gpu,much")), indicators={"rps"})
    assert (long.indicators, long.unread) == (("rps",), ("gpu",))
    with pytest.raises(HarmonyError, match=r"has a header, but no indicator qps; it has rps, gpu\."):
        read_series(write(tmp_path, LONG), indicators=["qps"])


@pytest.mark.parametrize("sorted_by_hand", [False, True])
def test_an_hour_that_a_local_clock_repeats_is_said(tmp_path: Path, sorted_by_hand: bool) -> None:
    times = [f"2026-10-25 {hour}:{minute}:00" for hour in ("01", "02", "02", "03") for minute in ("00", "30")]
    text = "timestamp,x\n" + "".join(f"{time},1\n" for time in (sorted(times) if sorted_by_hand else times))
    with pytest.raises(HarmonyError, match=r"write offsets or UTC") as caught:
        read_series(write(tmp_path, text))
    assert ("twice" if sorted_by_hand else "goes back in time") in caught.value.message


def test_a_named_zone_has_both_sides_of_a_clock_change(tmp_path: Path) -> None:
    rows = "".join(f"2026-10-25 {hour}:00:00 Europe/Berlin,{hour}\n" for hour in ("00", "01", "03", "04"))
    (table,) = read_series(write(tmp_path, "timestamp,x\n" + rows))
    np.testing.assert_array_equal(table.values[:, 0], [0, 1, np.nan, np.nan, 3, 4])
    with pytest.raises(HarmonyError, match=r"line 4, column timestamp: .* happens twice in Europe/Berlin"):
        read_series(write(tmp_path, "timestamp,x\n" + rows.replace("03:", "02:")))


def test_thousands_of_columns_and_a_grid_that_no_machine_holds(tmp_path: Path) -> None:
    names = ",".join(f"x{k}" for k in range(3_000))
    cells = ",".join(["1"] * 3_000)
    (table,) = read_series(write(tmp_path, f"timestamp,{names}\n20260101,{cells}\n20260102,{cells}\n"))
    assert table.values.shape == (2, 3_000)
    with pytest.raises(HarmonyError, match=r"spans 525,601 steps of 60000 ms; give the step with --step"):
        read_series(write(tmp_path, f"timestamp,{names}\n20260101,{cells}\n20270101,{cells}\n"), step_ms=60_000)
