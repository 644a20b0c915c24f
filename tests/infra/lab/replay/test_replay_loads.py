"""The loads of `harmony replay`: built in, and read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from infra.simulator.arrivals import Tokens, TraceError
from infra.simulator.rate_files import read_rates


def test_a_built_in_ramp_has_its_rates_and_lengths() -> None:
    ramp = read_rates("ramp")
    assert ramp.end_s == 2430
    a = ramp.arrivals(3)
    counts = np.histogram(a.arrival_s, ramp.edges_s)[0]
    assert np.all(np.abs(counts - ramp.rates_rps * np.diff(ramp.edges_s)) < 5 * np.sqrt(counts))
    assert set(a.prompt_tokens) == {4000}
    assert np.array_equal(a.arrival_s, ramp.arrivals(3).arrival_s)


def test_thinning_keeps_the_shape_and_sets_the_mean() -> None:
    ramp = read_rates("ramp")
    thin = ramp.thinned(1.0)
    assert thin.mean_rps == pytest.approx(1.0)
    assert np.allclose(thin.rates_rps / ramp.rates_rps, thin.rates_rps[0] / ramp.rates_rps[0])
    assert ramp.between(330, 1000).end_s == 670


@pytest.mark.parametrize("name", ["flash-crowd", "regime-shift", "longer-answers", "hourly", "half-hourly"])
def test_built_in_loads_read(name: str) -> None:
    assert len(read_rates(name).arrivals(0)) > 1_000


def test_token_laws_have_their_mean() -> None:
    drawn = Tokens(500, 0.6).draw(np.random.default_rng(0), 40_000)
    assert drawn.mean() == pytest.approx(500, rel=0.02)


def test_requests_per_minute_are_read_and_gaps_repeat(tmp_path: Path) -> None:
    path = tmp_path / "minutes.csv"
    path.write_text("period,count\n1998-05-01 00:00:00,60\n1998-05-01 00:03:00,120\n")
    assert read_rates(path).rates_rps.tolist() == [1.0, 1.0, 1.0, 2.0]


def test_clients_are_summed_and_lengths_weighed(tmp_path: Path) -> None:
    trace = tmp_path / "x_trace.csv"
    trace.write_text("category,chunk,timestamp,rate\nx,0,0,1\nx,1,0,3\nx,0,600,0\nx,1,600,0\nx,0,1200,2\nx,1,1200,0\n")
    (tmp_path / "x_token_summary.csv").write_text(
        "category,chunk,timestamp,field,mean,p50\nx,0,0,input_tokens,100,90\nx,1,0,input_tokens,300,290\n"
        "x,0,0,output_tokens,10,9\nx,1,0,output_tokens,30,29\n"
    )
    rates = read_rates(trace)
    assert rates.rates_rps.tolist() == [4.0, 4.0, 2.0]
    assert [t.mean for t in rates.prompt] == [250.0, 250.0, 100.0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "header must hold"),
        ("start_s,rate_rps\n0,1\n", "at least two rows"),
        ("start_s,rate_rps\n0,-1\n5,0\n", "line 2, column rate_rps"),
        ("start_s,rate_rps\n5,1\n5,0\n", "does not increase"),
        ("start_s,rate_rps\n0,nan\n5,0\n", "finite"),
        ("start_s,rate_rps\n0,0\n5,0\n", "nothing to replay"),
        ("start_s,rate_rps,prompt_tokens\n0,1,0\n5,0,0\n", "outside 1 to"),
        ("period,count\nyesterday,5\n", "is not a time"),
    ],
)
def test_bad_rate_files_are_refused_with_their_place(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=what) as caught:
        read_rates(path)
    assert "bad.csv" in str(caught.value)
