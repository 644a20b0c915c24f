"""Tables and instants: one reader, one parser, and the rules that each caller names."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.collect.formats.values import time_ms
from infra.console.instants import LOCAL, number_ms, parse_iso, split_fraction, unit_by_size, unix_ms
from infra.console.tables import csv_rows, named_cells, table_rows, timestamp_ms


def rows(where: Path) -> list[tuple[int, list[str]]]:
    return list(csv_rows(where, ValueError))


def test_plain_and_gzip_files_hold_the_same_rows(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbfa,b\n1,"x\ny"\n2,z\n'
    (tmp_path / "plain.csv").write_bytes(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text, mtime=0))
    assert (
        rows(tmp_path / "plain.csv")
        == rows(tmp_path / "packed")
        == [(1, ["a", "b"]), (3, ["1", "x\ny"]), (4, ["2", "z"])]
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a\n\xff\xff\n", "is not UTF-8 text; convert the file to UTF-8"),
        (b'a,b\n"x"y,1\n', "line 2: is not CSV"),
        (gzip.compress(b"a,b\n" * 10_000, mtime=0)[:-20], "the gzip file is cut short; fetch it again"),
        (b"\x1f\x8b garbage", "is not a sound gzip file"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, content: bytes, sentence: str) -> None:
    where = tmp_path / "file.csv"
    where.write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as refusal:
        rows(where)
    assert str(refusal.value).startswith(f"{where}, ")


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        rows(tmp_path / "nothing.csv")
    with pytest.raises(ValueError, match="is a directory; give a CSV file"):
        rows(tmp_path)


def test_columns_come_in_the_order_wanted(tmp_path: Path) -> None:
    where = tmp_path / "file.csv"
    read = iter([(2, ["1", " 2 ", "3"]), (3, []), (4, ["4", "5"])])
    cells = named_cells(where, (1, ["a", " b", "c"]), ("b", "a"), read, ValueError)
    assert list(cells) == [(2, ["2", "1"]), (4, ["5", "4"])]
    with pytest.raises(ValueError, match="line 2: has 1 of 2 columns; complete or remove the line"):
        list(named_cells(where, (1, ["a", "b"]), ("b",), [(2, ["1"])], ValueError))


def test_parquet_rows_equal_csv_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"a": ["x", "y"], "b": ["1", "2"]}), tmp_path / "file.pq")
    (tmp_path / "file.csv").write_text("a,b\nx,1\n\ny,2\n")
    parquet, plain = (list(table_rows(tmp_path / name, ValueError)) for name in ("file.pq", "file.csv"))
    assert [cells for _, cells in parquet] == [cells for _, cells in plain]
    assert [line for line, _ in plain] == [1, 2, 4]
    (tmp_path / "file.pq").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        list(table_rows(tmp_path / "file.pq", ValueError))


def test_zones_of_a_text_without_an_offset() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_iso("2026-01-31T12:00", UTC) == parse_iso("2026-01-31T14:00+02:00", UTC) == moment
    assert parse_iso("2026-01-31T12:00", None).tzinfo is None
    naive = moment.replace(tzinfo=None)
    assert parse_iso("2026-01-31T12:00", LOCAL) == naive.astimezone()


def test_units_of_a_number_by_its_size() -> None:
    at = 1_769_860_800
    for unit in (1, 1_000, 1_000_000, 1_000_000_000):
        assert number_ms(at * unit, unit_by_size(at * unit)) == time_ms(at * unit, 0) == at * 1000
    assert number_ms(at, "ms") == at
    assert number_ms(-1.5, "s") == -1500


def test_fractions_longer_than_microseconds() -> None:
    assert split_fraction("12:00:00.1234567Z") == ("12:00:00", "1234567", "Z")
    assert split_fraction("12:00:00") == ("12:00:00", "", "")
    assert time_ms("2026-01-31T12:00:00.123456789Z", 0) == 1_769_860_800_123


def test_cells_of_time() -> None:
    assert timestamp_ms("20260131") == 20_260_131_000  # a bare number counts seconds
    assert timestamp_ms("2026-01-31 12:00") == timestamp_ms(datetime(2026, 1, 31, 12, tzinfo=UTC)) == 1_769_860_800_000
    assert timestamp_ms("5", number_is_ms=True) == 5
    assert timestamp_ms("-5") is timestamp_ms("noon") is timestamp_ms(None) is None
    assert unix_ms(datetime.fromtimestamp(1.5, UTC)) == 1500
