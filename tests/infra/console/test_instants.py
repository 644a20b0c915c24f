"""One parser of instants: whatever it reads is what was written, and what leaves a choice is refused with a remedy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infra.console.instants import LOCAL, Instant, InstantError, read_instant, start_problem

NOON_MS = 1_769_860_800_000  # 2026-01-31 12:00 UTC
HOUR_MS = 3_600_000


def date_time(zone: tzinfo | None = None) -> datetime:
    return datetime(2026, 1, 31, 12, tzinfo=zone)


@contextmanager
def zone_of_machine(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


@pytest.mark.parametrize(
    "cell",
    [
        "2026-01-31 12:00:00", "2026-01-31T12:00:00Z", "2026-01-31t12:00:00z", "2026-01-31 12:00",
        "2026/01/31 12:00:00",
        "2026-01-31 12:00:00.000", "2026-01-31 12:00:00,0004", "2026-01-31T12:00:00.000000400Z", "2026-1-31 12:00",
        "2026-01-31 12:00:00 UTC", "2026-01-31 12:00:00 GMT", "2026-01-31 12:00:00 +0000 UTC", "20260131T120000Z",
        "2026-01-31 13:00:00+01:00", "2026-01-31 13:00:00 +0100", "2026-01-31T07:00-05", "20260131T1730+0530",
        "2026-01-31 13:00:00 Europe/Berlin", "2026-01-31T13:00:00+01:00[Europe/Berlin]", "2026-01-31  12:00:00",
        " 2026-01-31 12:00:00\u00a0", "1769860800", "1769860800.0", "1.7698608e9", "1769860800000", "1769860800000000",
        "1769860800000000000", "+1769860800", "202601311200", "20260131120000", 1_769_860_800, 1_769_860_800.0,
        Decimal(1_769_860_800), 20260131120000.0, date_time(), date_time(UTC),
        date_time(UTC).astimezone(timezone(timedelta(hours=1))), Instant(NOON_MS * 1_000_000),
    ],
)  # fmt: skip
def test_ways_to_write_one_instant(cell: object) -> None:
    assert read_instant(cell).ms == NOON_MS


@pytest.mark.parametrize("cell", ["2026-01-31", "20260131", "20260131.0", "2026/1/31", "2026-W05-6", 20260131,
                                  date(2026, 1, 31), "2026-01-30 24:00", "2026-01-30T24:00:00Z"])  # fmt: skip
def test_ways_to_write_a_day(cell: object) -> None:
    assert read_instant(cell).ms == NOON_MS - 12 * HOUR_MS


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("", "is not a time; write it as 2026-01-31 12:00:00"),
        ("soon", "is not a time"),
        (None, "is not a time"),
        (True, "is not a time"),
        (b"2026", "is not a time"),
        ("nan", "is not a time"),
        (float("inf"), "is not a time"),
        ("1" * 5_000, "is not a time"),
        ("12:00:00", "is not a time"),
        ("2026-01-31 12:00 PM", "is not a time"),
        ("Jan 31, 2026", "is not a time"),
        ("Sat, 31 Jan 2026 12:00:00 +0000", "is not a time"),
        ("2026-01-31 12:00 CET", "is not a time"),
        ("2026-01", "is not a time"),
        ("2026-W60-1", "is not a time"),
        ("2026-01-31+01:00", "is not a time"),  # a separator of date and time elsewhere
        ("2026-01-31T12:00:00−05:00", "is not a time"),
        ("2026-01-31\x00", "is not a time"),
        ("'2026-01-31'", "is not a time"),
        ("2026_01_31", "is not a time"),
        ("1_769_860_800", "is not a time"),
        ("31/01/2026", "leaves open which number is the month"),
        ("01/31/2026 12:00", "leaves open which number is the month"),
        ("31.01.2026", "leaves open which number is the month"),
        ("1/2/26", "leaves open which number is the month"),
        ("2026-02-30", "is no day or time of the calendar"),
        ("0000-01-01", "is no day or time of the calendar"),
        ("2016-12-31T23:59:60Z", "is no day or time of the calendar"),
        ("2026-01-31 24:01", "is no day or time of the calendar"),
        ("2026-01-31 12:00 Europe/Paderborn", "names no known time zone"),
        ("2026-01-31 12:00 ../../etc", "is not a time"),
        ("2026-01-31 12:00 Europe" + "/Berlin" * 400, "is not a time"),
        ("0001-01-01T00:00:00Z", "lies outside the years 1700 to 2100"),
        ("9999-12-31", "lies outside the years 1700 to 2100"),
        ("9999-12-31T24:00", "is no day or time of the calendar"),
        (Instant(-(2**70)), "lies outside the years 1700 to 2100"),
        ("46053.5", "it seems, a spreadsheet's number of the day 2026-01-31"),
        ("44591", "it seems, a spreadsheet's number of the day 2022-01-30"),  # or, of old Macs, of 2026
        ("0", "lies outside 2000 to 2100 in seconds, ms, µs and ns since 1970, and is no YYYYMMDD"),
        ("-1", "lies outside 2000 to 2100"),
        ("-1769860800", "lies outside 2000 to 2100"),
        ("946684799", "lies outside 2000 to 2100"),
        ("4102444800", "lies outside 2000 to 2100"),
        ("31012026", "lies outside 2000 to 2100"),
        ("20260231", "lies outside 2000 to 2100"),
        ("19991231", "lies outside 2000 to 2100"),
        ("2026031", "lies outside 2000 to 2100"),
        ("2461072.0", "lies outside 2000 to 2100"),  # Julian day
        ("133142400000000000", "lies outside 2000 to 2100"),  # Windows counts from 1601
        ("1e19", "lies outside 2000 to 2100"),
    ],
)
def test_what_names_no_instant_is_refused(cell: object, problem: str) -> None:
    with pytest.raises(InstantError) as refusal:
        read_instant(cell)
    assert problem in str(refusal.value)
    assert "; " in str(refusal.value)


def test_an_hour_as_a_number_is_refused_while_it_lies_ahead_as_seconds() -> None:
    with pytest.raises(InstantError, match=r"may be the hour 2026-01-31 12:00 or seconds since 1970 \(2034-03-15\)"):
        read_instant("2026013112")
    assert read_instant("2026999999").ms == 2_026_999_999_000


def test_both_sides_of_a_clock_change_in_a_named_zone() -> None:
    for text, expected in (
        ("2026-10-25 01:59:59", "2026-10-24T23:59:59Z"),
        ("2026-10-25 03:00:00", "2026-10-25T02:00:00Z"),
        ("2026-03-29 01:59:59", "2026-03-29T00:59:59Z"),
        ("2026-03-29 03:00:00", "2026-03-29T01:00:00Z"),
    ):
        assert str(read_instant(f"{text} Europe/Berlin")) == expected
    with pytest.raises(InstantError, match=r"happens twice in Europe/Berlin, .* write the offset, or UTC"):
        read_instant("2026-10-25 02:30:00 Europe/Berlin")
    assert str(read_instant("2026-10-25 02:30:00+01:00 [Europe/Berlin]")) == "2026-10-25T01:30:00Z"
    with pytest.raises(InstantError, match=r"does not exist in Europe/Berlin, .* write the offset, or UTC"):
        read_instant("2026-03-29 02:30:00 Europe/Berlin")
    with pytest.raises(InstantError, match="happens twice in Australia/Lord_Howe"):
        read_instant("2026-04-05 01:45 Australia/Lord_Howe")  # half an hour there


def test_a_log_in_local_time_goes_on_through_a_clock_change() -> None:
    """Rows of two devices every quarter of an hour, across the hour that Berlin repeats."""
    begin_ms = read_instant("2026-10-24T23:30:00Z").ms
    true_ms = [begin_ms + 900_000 * k + jitter for k in range(12) for jitter in (4, 1)]
    with zone_of_machine("Europe/Berlin"):
        texts = [datetime.fromtimestamp(ms / 1000).strftime("%Y/%m/%d %H:%M:%S.%f") for ms in true_ms]  # noqa: DTZ006
        assert len(set(texts)) < len(texts), "an hour is repeated"
        after_ns, found = None, []
        for text in texts:
            after_ns = read_instant(text, LOCAL, after_ns).ns
            found.append(after_ns // 1_000_000)
        assert found == true_ms
        with pytest.raises(InstantError, match="happens twice in this machine's zone"):
            read_instant("2026-10-25 02:30:00", LOCAL)
        with pytest.raises(InstantError, match="does not exist in this machine's zone"):
            read_instant("2026-03-29 02:30:00", LOCAL)


instants_ns = st.integers(946_684_800 * 10**9, 4_102_444_800 * 10**9 - 1)


@given(instants_ns, st.sampled_from((1, 1_000, 1_000_000, 1_000_000_000)))
def test_a_number_is_the_same_instant_in_every_unit(ns: int, per: int) -> None:
    count = ns // per
    if per == 10**9 and count > time.time():
        assume(count % 100 > 23)  # else it may be an hour as YYYYMMDDhh
    assert read_instant(count).ns == read_instant(str(count)).ns == count * per


@given(instants_ns)
def test_all_nine_digits_of_a_fraction_count(ns: int) -> None:
    seconds, fraction = divmod(ns, 10**9)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert read_instant(f"{text}.{fraction:09d}Z") == Instant(ns, zoned=True)
    assert read_instant(f"{text},{fraction:09d}") == Instant(ns, zoned=False)
    if seconds < time.time():
        assert read_instant(f"{seconds}.{fraction:09d}") == Instant(ns)
    assert abs(Instant(ns).ms * 1_000_000 - ns) <= 500_000


zones = st.sampled_from(
    ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca")
)


@given(st.integers(946_684_800, 2_082_758_400), zones)
def test_a_time_in_a_named_zone_is_its_instant_or_refused_because_there_are_two(second: int, name: str) -> None:
    local = datetime.fromtimestamp(second, ZoneInfo(name))
    text, expected = f"{local:%Y-%m-%d %H:%M:%S} {name}", Instant(second * 10**9, zoned=True)
    if local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
        with pytest.raises(InstantError, match="happens twice"):
            read_instant(text)
    else:
        assert read_instant(text) == expected
    assert read_instant(f"{local:%Y-%m-%dT%H:%M:%S%z}") == expected


@given(st.dates(date(2000, 1, 1), date(2099, 12, 31)))
def test_a_day_as_a_number_is_that_day(day: date) -> None:
    number = int(f"{day:%Y%m%d}")
    assert str(read_instant(number)) == str(read_instant(day)) == f"{day}T00:00:00Z"
    assert start_problem(float(number)) is not None


@given(
    st.text(max_size=30) | st.text("0123456789-/:.,TZ +eWUTC", max_size=30) | st.floats() | st.integers() | st.none()
)
def test_any_cell_is_read_within_the_bounds_or_refused(cell: object) -> None:
    try:
        found = read_instant(cell)
    except InstantError:
        return
    assert -8_520_336_000_000 <= found.ms <= 4_102_444_800_000
