"""Tables and instants: one reader, one parser, and the rules that each caller names."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infra.collect.formats.values import time_ms
from infra.console.instants import LOCAL, Instant, number_ms, parse_iso, split_fraction, unit_by_size, unix_ms
from infra.console.tables import InstantColumn, Unreadable, csv_rows, named_cells, number_cell, open_table


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
    with pytest.raises(ValueError, match="is a directory; give a file"):
        rows(tmp_path)


def test_columns_come_in_the_order_wanted(tmp_path: Path) -> None:
    where = tmp_path / "file.csv"
    read = iter([(2, ["1", " 2 ", "3"]), (3, []), (4, ["4", "5"])])
    cells = named_cells(where, (1, ["a", " b", "c"]), ("b", "a"), read, ValueError)
    assert list(cells) == [(2, ["2", "1"]), (4, ["5", "4"])]
    with pytest.raises(ValueError, match="line 2: has 1 of 2 columns; complete or remove the line"):
        list(named_cells(where, (1, ["a", "b"]), ("b",), [(2, ["1"])], ValueError))


def rows_of(where: Path) -> list[tuple[int, list[object]]]:
    table = open_table(where, ValueError)
    assert table is not None
    return [(table.header[0], list(table.header[1])), *table.rows(range(len(table.header[1])))]


def test_parquet_rows_equal_csv_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "file.any", a=["x", "y"], b=["1", "2"])
    (tmp_path / "file.csv").write_text("a,b\nx,1\n\ny,2\n")
    parquet, plain = (rows_of(tmp_path / name) for name in ("file.any", "file.csv"))
    assert [cells for _, cells in parquet] == [cells for _, cells in plain]
    assert [line for line, _ in plain] == [1, 2, 4]
    (tmp_path / "file.pq").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        rows_of(tmp_path / "file.pq")
    (tmp_path / "file.csv").write_text("")
    assert open_table(tmp_path / "file.csv", ValueError) is None


def write_parquet(where: Path, **columns: Any) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(arrow.table(columns), where)
    return where


DAY_NS = 86_400 * 10**9


@pytest.mark.parametrize(
    ("kind", "stored", "cells"),
    [
        ("timestamp('ns')", 1_999_999_999, [Instant(1_999_999_999)]),
        ("timestamp('us')", 253_402_300_800_000_000, [Instant(253_402_300_800_000_000_000)]),  # the year 10000
        ("timestamp('ms', 'Europe/Berlin')", 1, [Instant(1_000_000)]),
        ("timestamp('ms', 'Nowhere/At_All')", 1, [Instant(1_000_000)]),
        ("date32()", 2, [Instant(2 * DAY_NS)]),
        ("date64()", 86_400_000, [Instant(DAY_NS)]),
        ("duration('ns')", 1, [Unreadable("duration[ns]")]),
        ("time64('ns')", 1, [Unreadable("time64[ns]")]),
        ("list_(a.int8())", [1], [Unreadable("list<element: int8>")]),
        ("struct({'x': a.int8()})", {"x": 1}, [Unreadable("struct<x: int8>")]),
        ("binary()", b"a\xff", ["a\ufffd"]),
        ("dictionary(a.int8(), a.string())", "x", ["x"]),
        ("float16()", 0.5, [0.5]),
        ("uint64()", 2**64 - 1, [2**64 - 1]),
        ("decimal128(5, 2)", Decimal("1.25"), [Decimal("1.25")]),
        ("null()", None, [None]),
    ],
)
def test_every_type_of_parquet_becomes_a_plain_value(tmp_path: Path, kind: str, stored: Any, cells: list[Any]) -> None:
    arrow = pytest.importorskip("pyarrow")
    column_kind = eval(f"a.{kind}", {"a": arrow})  # noqa: S307 - types by name, so that collecting needs no pyarrow
    where = write_parquet(tmp_path / "t.parquet", **{"a.b": arrow.array([stored, None], column_kind), "a": ["u", "v"]})
    table = open_table(where, ValueError)
    assert table is not None
    assert [row[0] for _, row in table.rows([0])] == [*cells, None]
    assert [row for _, row in table.rows([1])] == [[None, "u"], [None, "v"]], "what is not asked for is not read"


def test_a_damaged_page_and_bad_text_of_a_parquet_file_are_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    text = arrow.Array.from_buffers(
        arrow.string(), 1, [None, arrow.py_buffer(b"\0\0\0\0\1\0\0\0"), arrow.py_buffer(b"\xff")]
    )
    for where in (write_parquet(tmp_path / "text.pq", a=text), write_parquet(tmp_path / "page.pq", a=[1, 2, 3])):
        if where.stem == "page":
            content = bytearray(where.read_bytes())
            content[4:40] = b"\xff" * 36
            where.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{where.stem}\.pq: (is not a Parquet file that can|cannot) be read"):
            rows_of(where)
    (tmp_path / "many.parquet").mkdir()
    with pytest.raises(ValueError, match="is a directory; give one Parquet file of it"):
        rows_of(tmp_path / "many.parquet")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;b\n1,5;2\n", [(1, ["a", "b"]), (2, ["1,5", "2"])]),
        ("a\tb\n1\t2\n", [(1, ["a", "b"]), (2, ["1", "2"])]),
        ("sep=;\na;b\n1;2\n", [(2, ["a", "b"]), (3, ["1", "2"])]),
        ("\ufeffsep=\t\r\na\tb\r\n1\t2\r\n", [(2, ["a", "b"]), (3, ["1", "2"])]),
        ("\n  \na,b\n1,2\n", [(3, ["a", "b"]), (4, ["1", "2"])]),
        ('"a;b;c",d\n1,2\n', [(1, ["a;b;c", "d"]), (2, ["1", "2"])]),
        ("a\n1,2\n", [(1, ["a"]), (2, ["1", "2"])]),
        ("a,b\r1,2\r", [(1, ["a", "b"]), (2, ["1", "2"])]),
        ("", []),
        ("\n\n", []),
    ],
)
def test_what_separates_fields_is_told_by_the_header(tmp_path: Path, text: str, expected: list[Any]) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    assert rows(tmp_path / "t.csv") == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x28\xb5\x2f\xfd rest", "is packed (zstd, .zst): unpack it, or give plain text or gzip"),
        (lzma.compress(b"a,b\n"), "is packed (xz): unpack it"),
        (bz2.compress(b"a,b\n"), "is packed (bzip2): unpack it"),
        (b"PK\x03\x04 rest", "is packed (zip), or a spreadsheet: unpack it, or save the sheet as CSV"),
        (gzip.compress(b"PK\x03\x04 rest", mtime=0), "is packed (zip)"),
        (b"PAR1 rest", "is a Parquet file, and only text is read here"),
        ("a,b\n".encode("utf-16"), "is UTF-16 text, as PowerShell writes it: convert the file to UTF-8"),
        ("a,b\n".encode("utf-16-be"), "is no text, or UTF-16 (it holds NUL bytes): convert it to UTF-8"),
        (b"\xd0\xcf\x11\xe0 rest", "is an Excel workbook: save the sheet as CSV"),
        ("Auslastung_größe\n".encode("latin-1"), "is not UTF-8 text; convert the file to UTF-8"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        rows(tmp_path / "t.csv")


def test_columns_are_found_in_other_capitals_but_not_twice() -> None:
    read: list[tuple[int, list[str]]] = [(2, ["1", "2"])]
    assert list(named_cells(Path("t"), (1, ["A", "b"]), ("a", "B"), read, ValueError)) == [(2, ["1", "2"])]
    with pytest.raises(ValueError, match="line 1: column a is there twice; rename or remove one"):
        list(named_cells(Path("t"), (1, ["a", "a"]), ("a",), read, ValueError))
    with pytest.raises(ValueError, match="line 2: has 2 cells, the header 1; correct the line"):
        list(named_cells(Path("t"), (1, ["a"]), ("a",), read, ValueError))
    assert list(named_cells(Path("t"), (1, ["a"]), ("a",), [(2, ["1", " "])], ValueError)) == [(2, ["1"])]


def test_instants_of_a_column_are_written_alike() -> None:
    column = InstantColumn(Path("t"), "time", ValueError)
    assert column.read(2, "1769860800").ms == column.read(3, "2026-01-31 12:00").ms
    with pytest.raises(
        ValueError, match="t, line 4, column time: '2026-01-31T12:00Z' has an offset from UTC and others"
    ):
        column.read(4, "2026-01-31T12:00Z")
    with pytest.raises(ValueError, match="t, line 5, column time: None is no time; complete or remove the row"):
        column.read(5, None)


@example("1\x1e")  # `float` keeps what `strip` takes away
@given(st.floats() | st.integers() | st.text(max_size=12) | st.text("0123456789.,_eE+- ", max_size=12))
def test_a_number_in_text_is_the_number_that_a_person_reads(cell: object) -> None:
    found = number_cell(str(cell))
    if found is not None:
        assert found == float(str(cell).strip())
        assert not set(str(cell).strip()) - set("0123456789.eE+-")
    elif isinstance(cell, int | float) and abs(cell) < float("inf"):
        raise AssertionError(f"{cell} is a number")


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
    assert unix_ms(datetime.fromtimestamp(1.5, UTC)) == 1500
