"""Rate files are read, or refused in a sentence that names file and line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.simulator.arrivals import TraceError
from infra.simulator.rate_files import read_rates

HEADERS = ("start_s,rate_rps,prompt_tokens", "period,count", "timestamp,value", "category,chunk,timestamp,rate")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("start_s,rate_rps,prompt_tokens\n0,1,900\n60,1\n", "line 3: has 2 of 3 columns"),
        ("start_s,rate_rps\n0,1\n60,-1\n", "line 3, column rate_rps: '-1' is not a finite number >= 0"),
        ("start_s,rate_rps,prompt_tokens\n0,1,9:1e300\n60,1,9\n", "line 2, column prompt_tokens: the sigma 1e300"),
        ("period,count\n1998-05-01 00:00,3\n1998-05-01 00:01\n", "line 3: has 1 of 2 columns"),
        ("period,count\n1998-05-01 00:00,3\n1998-05-01 00:01Z,3\n", "line 3, column period: .* has an offset"),
        ("period,count\n1998-05-01 00:00,3\n2098-05-01 00:01,3\n", "line 3, column period: .* ten years or more"),
        ("timestamp,value\n2026-05-01 00:05,3\n2026-05-01 00:05,3\n", "line 3, column timestamp: does not increase"),
        ("timestamp,value\n2026-05-01 00:05,3\n1e300,3\n", "line 3, column timestamp: '1e300' is not a time; write"),
        ("timestamp,value\n0,3\n60,3\n", "line 2, column timestamp: '0' lies outside 2000 to 2100"),
        ("start_s,rate_rps\n20260101,3\n20260102,3\n", "line 2, column start_s: '20260101' is no second from"),
        ("start_s,rate_rps\n1795900000000,3\n1795900060000,3\n", "line 2, column start_s: .* is no second from"),
        ("timestamp,value\n1777593600,3\n1777593660,-3\n", "line 3, column value: '-3' is not a finite number >= 0"),
        ("chunk,timestamp,rate\na,0,1\nb\n", "line 3: has 1 of 3 columns"),
        (
            "start_s,rate_rps\n0,3\n1e12,3\n",
            "line 3, column start_s: '1e12' is ten years or more from the first; correct",
        ),
        ("chunk,timestamp,rate\na,0,1\na,1e38,1\n", "line 3, column timestamp: '1e38' is ten years or more from the"),
        ("chunk,timestamp,rate\na,0,x\n", "line 2, column rate: 'x' is not a number"),
    ],
)
def test_a_bad_rate_file_is_named_with_place_and_remedy(tmp_path: Path, body: str, complaint: str) -> None:
    (tmp_path / "rates.csv").write_text(body)
    with pytest.raises(TraceError, match=rf"rates\.csv, {complaint}"):
        read_rates(tmp_path / "rates.csv")


@pytest.mark.parametrize(
    "times",
    [
        ("2026-05-01 00:00", "2026-05-01 00:05", "2026-05-01 00:15:30", "2026-05-01 00:20:30"),
        ("2026-05-01T00:00:00Z", "2026-05-01T02:05:00+02:00", "2026-05-01T00:15:30Z", "2026-05-01T00:20:30Z"),
        ("1777593600", "1777593900", "1777594530", "1777594830.0"),
        ("1777593600000", "1777593900000000", "1777594530000000000", "1777594830.0"),
        ("2026-05-01 00:00:00 UTC", "2026/05/01 0:05 UTC", "2026-05-01T00:15:30+0000", "2026-05-01T03:20:30 +03:00"),
        ("202605010000", "202605010005", "20260501001530", "20260501002030"),
    ],
)
def test_an_exported_series_holds_each_value_until_the_next(tmp_path: Path, times: tuple[str, ...]) -> None:
    body = "".join(f"{time},{value}\n" for time, value in zip(times, (3, 0.5, 0, 8), strict=True))
    (tmp_path / "series.csv").write_text(f"timestamp,value\n{body}")
    read = read_rates(tmp_path / "series.csv")
    assert read.edges_s.tolist() == [0.0, 300.0, 930.0, 1230.0, 1530.0]  # the last for the median of the others
    assert read.rates_rps.tolist() == [3.0, 0.5, 0.0, 8.0]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [("1777593600,1\n", "needs at least two rows"), ("1777593600,0\n1777593900,0\n", "holds no request")],
)
def test_a_series_without_a_load_is_refused(tmp_path: Path, body: str, complaint: str) -> None:
    (tmp_path / "series.csv").write_text(f"timestamp,value\n{body}")
    with pytest.raises(TraceError, match=rf"series\.csv: {complaint}"):
        read_rates(tmp_path / "series.csv")


def test_a_bad_summary_of_tokens_is_named(tmp_path: Path) -> None:
    (tmp_path / "a_trace.csv").write_text("chunk,timestamp,rate\na,0,1\na,600,1\n")
    for body, complaint in (("chunk,field,mean,p50\na,input_tokens\n", "line 2: has 2 of 4"), ("", "line 1: lacks")):
        (tmp_path / "a_token_summary.csv").write_text(body)
        with pytest.raises(TraceError, match=rf"a_token_summary\.csv, {complaint}"):
            read_rates(tmp_path / "a_trace.csv")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(HEADERS), st.text("0123456789,.:-+Z \nae", max_size=60))
def test_any_text_is_read_or_refused(tmp_path: Path, header: str, text: str) -> None:
    where = tmp_path / "any.csv"
    where.write_text(f"{header}\n{text}")
    with suppress(TraceError):
        read_rates(where)
