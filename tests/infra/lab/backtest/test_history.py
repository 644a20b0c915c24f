"""A workload's past: from readings and from files, gaps and restarts included."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from infra.collect.mapping.readings import SourceReading
from infra.console.errors import HarmonyError
from infra.lab.backtest.history import BIN_S, HistoryBuilder, RecordedHistory, read_history, write_history
from streams.records.facts import HistogramState

START_MS = 1_763_636_400_000
MINUTE_MS = BIN_S * 1000


def engine(minute: int, started: float, replica: str = "a", **values: float) -> SourceReading:
    tokens = {"prompt_tokens_total": 100 * started, "generation_tokens_total": 10 * started}
    counters = {"requests_started_total": started, **tokens, **values}
    hist = {"tpot_s": HistogramState((0.1,), (started,), 10 * started, 0.5 * started)}
    return SourceReading("requests", "w", replica, replica, START_MS + minute * MINUTE_MS, counters, hist)


def built(*readings: SourceReading) -> RecordedHistory:
    builder = HistoryBuilder()
    builder.add(readings)
    return builder.history("w")


def test_counters_become_rates_and_lengths() -> None:
    h = built(*(engine(m, 60.0 * m * m) for m in range(4)))
    assert h.start_ms == START_MS + MINUTE_MS
    assert h.rate_rps.tolist() == [1.0, 3.0, 5.0]
    assert h.prompt_tokens.tolist() == [100.0] * 3
    assert h.output_tokens.tolist() == [10.0] * 3
    assert h.replicas.tolist() == [1.0] * 3
    assert h.tpot_s == pytest.approx(0.05)
    assert not h.completions_only
    assert h.attainment is None


def test_engines_are_added_up_and_counted() -> None:
    h = built(*(engine(m, 60.0 * m, replica) for m in range(3) for replica in ("a", "b")))
    assert h.rate_rps.tolist() == [2.0, 2.0]
    assert h.replicas.tolist() == [2.0, 2.0]


def test_kubernetes_word_on_replicas_counts_more_than_the_engines_that_answer() -> None:
    facts = [SourceReading("fleet", "w", "k", "k", START_MS + m * MINUTE_MS, {"replicas_ready": 5.0}) for m in range(3)]
    assert built(*(engine(m, 60.0 * m) for m in range(3)), *facts).replicas.tolist() == [5.0, 5.0]


def test_a_restart_counts_what_came_since() -> None:
    h = built(engine(0, 600.0), engine(1, 660.0), engine(2, 30.0), engine(3, 90.0))
    assert h.rate_rps.tolist() == [1.0, 0.5, 1.0]


def test_good_requests_weigh_by_load() -> None:
    good = {0: (0.0, 0.0), 1: (90.0, 100.0), 2: (390.0, 400.0)}
    h = built(*(engine(m, t, slo_good_total=g, slo_total=t) for m, (g, t) in good.items()))
    assert h.good_ratio.tolist() == [0.9, 1.0]
    assert h.attainment == pytest.approx(390 / 400)


def test_completions_stand_in_for_arrivals_and_are_told() -> None:
    readings = [
        SourceReading("requests", "w", "a", "a", START_MS + m * MINUTE_MS, {"requests_finished_total": 60.0 * m})
        for m in range(3)
    ]
    h = built(*readings)
    assert h.completions_only
    assert h.rate_rps.tolist() == [1.0, 1.0]
    assert h.tpot_s is None


def test_gaps_are_bridged() -> None:
    h = built(engine(0, 0.0), engine(1, 60.0), engine(2, 120.0), engine(4, 360.0), engine(5, 420.0))
    assert np.isnan(h.rate_rps[2])
    assert h.missing_ratio == pytest.approx(0.2)
    filled = h.filled()
    assert filled.rate_rps.tolist() == [1.0, 1.0, 2.5, 4.0, 1.0]
    assert filled.replicas.tolist() == [1.0] * 5


def test_what_cannot_be_judged_says_so() -> None:
    with pytest.raises(HarmonyError, match="gaps in"):
        built(engine(0, 0.0), engine(1, 60.0), engine(9, 900.0)).filled()
    with pytest.raises(HarmonyError, match="no requests"):
        built(engine(0, 0.0), engine(1, 0.0)).filled()
    with pytest.raises(HarmonyError, match="Nothing is recorded of w"):
        HistoryBuilder().history("w")


def test_workloads_are_named_with_their_requests() -> None:
    builder = HistoryBuilder()
    builder.add([engine(0, 0.0), engine(1, 60.0), SourceReading("gpu", "g", "n", "n", START_MS, {"power_w": 1.0})])
    assert builder.workloads() == {"w": 60.0}


def test_a_file_holds_the_history(tmp_path: Path) -> None:
    h = built(engine(0, 0.0), engine(1, 60.0), engine(2, 120.0), engine(4, 360.0))
    path = tmp_path / "history.csv"
    write_history(path, h)
    again = read_history(path, "w")
    for name in ("rate_rps", "prompt_tokens", "output_tokens", "replicas", "good_ratio"):
        np.testing.assert_allclose(getattr(again, name), getattr(h, name))
    assert (again.start_ms, again.workload) == (h.start_ms, "w")


def test_a_file_with_longer_rows_is_cut_into_minutes(tmp_path: Path) -> None:
    path = tmp_path / "h.csv.gz"
    path.write_bytes(gzip.compress(b"start_s,rate_rps,replicas\n0,2,1\n180,4,3\n"))
    h = read_history(path, "w")
    assert h.rate_rps.tolist() == [2.0] * 3 + [4.0] * 3
    assert h.replicas.tolist() == [1.0] * 3 + [3.0] * 3
    assert np.isnan(h.prompt_tokens).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n", "line 1: the header must hold start_s, rate_rps, replicas; start_s is missing"),
        ("start_s,rate_rps,replicas\n0,1,1\n", "holds 1 rows"),
        ("start_s,rate_rps,replicas\n0,1,1\n60,x,1\n", "line 3, column rate_rps: 'x'"),
        ("start_s,rate_rps,replicas\n0,1,1\n60,-1,1\n", "line 3, column rate_rps"),
        ("start_s,rate_rps,replicas\n60,1,1\n0,1,1\n", "line 3, column start_s: '0' must ascend; sort the rows"),
        ("start_s,rate_rps,replicas\n,1,1\n0,1,1\n", "line 2, column start_s"),
        ("start_s,rate_rps,replicas\n0,1,1\n60,1\n", "line 3: has 2 of 3 columns"),
        ("start_s,rate_rps,replicas\n20260131,1,1\n20260201,1,1\n", "line 2, column start_s: '20260131' is no second"),
        ("start_s,rate_rps,replicas\n0,1,1\n1e308,1,1\n", "from start_s 0 to 1e+308; ten years is the most"),
        ("start_s,rate_rps,replicas\n1e300,1,1\n1.1e300,1,1\n", "line 2, column start_s: '1e300' is no second from"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "h.csv"
    path.write_text(text)
    with pytest.raises(HarmonyError) as caught:
        read_history(path, "w")
    assert caught.value.exit_code == 2
    assert words in caught.value.message
