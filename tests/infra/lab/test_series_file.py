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
        ("timestamp,x\n2026-01-01,1\n2026-01-02,many\n", ["line 3", "'x'", "'many'", "not a finite number"]),
        ("timestamp,x\n2026-01-01,inf\n", ["line 2", "not a finite number"]),
        ("timestamp,x\nyesterday,1\n", ["line 2", "'yesterday'", "not a time"]),
        ("timestamp,x\n2026-01-01,1,2\n", ["line 2", "3 cells"]),
        ("timestamp,x\n2026-01-01,1\n", ["no item has two rows", "--step"]),
        ("ts_ms,x\n0,1\n1000,1\n2000,1\n3600,1\n", ["line 5", "does not keep a step of 1 s"]),
        ("timestamp,indicator,value\n2026-01-01,x,1\n2026-01-01,x,2\n", ["line 3", "two values of 'x'"]),
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
