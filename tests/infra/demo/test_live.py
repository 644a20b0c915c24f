"""The live view: readable at every width, silent about nothing, safe with hostile names."""

from __future__ import annotations

import io
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from infra.demo.live import LiveRow, LiveState, LiveView, amount, plain_line, render, sparkline, time_of
from infra.page.live import PolicyLine
from tests.infra.shown import text_of

BUSY = LiveRow(
    workload="prod/llm/chat-70b",
    load_rps=tuple(100.0 + 10 * i for i in range(40)),
    band_rps=(470.0, 612.0),
    replicas_ready=6,
    replicas_pending=2,
    replicas_wanted=8,
    capacity_rps=71.5,
    attainment=0.98996,
    objective=0.99,
    action="up",
    reason="cheapest",
)
CALM = LiveRow(workload="prod/embed", load_rps=(4.0, 4.0), replicas_ready=2, replicas_wanted=2, attainment=0.99994)
STATE = LiveState(
    rows=(BUSY, CALM, LiveRow("new")),
    sim_ts_ms=1763636415000,
    speed=20.0,
    slots=812,
    forecasts=3240,
    forecasts_per_s=41.2,
    lag_records=7,
    harmony=PolicyLine("harmony", 12.14, 0.9941),
    shadows=(PolicyLine("static_peak", 20.31, 0.9999, 61.2), PolicyLine("hpa", 14.02, 0.9712)),
)


def shown(state: LiveState, width: int, height: int | None = None, unicode: bool = True) -> list[str]:
    text = text_of(render(state, width=width, height=height, unicode=unicode), width)
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("width", [60, 80, 84, 100, 110, 140, 200])
def test_every_width_tells_what_matters(width: int) -> None:
    lines = shown(STATE, width)
    assert max(len(line) for line in lines) <= width
    row = next(line for line in lines if "chat-70b" in line)
    for word in ("490", "6→8 +2", "!98.9%", "▲ "):
        assert word in row
    calm = next(line for line in lines if "prod/embed" in line)
    assert "99.9%" in calm
    assert "→" not in calm
    text = " ".join(lines)
    for word in ("812 slots", "lag 7", "harmony 12.14 GPU-h, 99.41 %", "static_peak 20.31 GPU-h", "hpa 14.02 GPU-h"):
        assert word in text
    assert ("470–612" in row) == (width >= 84)
    assert ("71.5" in row) == (width >= 110)


@pytest.mark.parametrize("width", [20, 40, 60, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_nothing_known_is_drawn_without_a_zero(width: int, unicode: bool) -> None:
    lines = shown(LiveState(), width, unicode=unicode)
    assert any("none yet" in line for line in lines) or width < 40
    alone = next(line for line in shown(LiveState(rows=(LiveRow("solo"),)), 100) if "solo" in line)
    assert "0" not in alone


def test_ascii_terminals_get_ascii() -> None:
    assert all(line.isascii() for line in shown(STATE, 80, unicode=False))


def test_rows_that_do_not_fit_are_counted_and_those_in_need_stay() -> None:
    rows = tuple(LiveRow(f"w{i}", attainment=0.5 if i == 30 else 1.0) for i in range(40))
    lines = shown(LiveState(rows=rows), 100, height=16)
    assert len(lines) <= 16
    names = [line.split()[0] for line in lines if line.startswith("w") and not line.startswith("workload")]
    assert "w30" in names
    assert names == sorted(names, key=lambda n: int(n[1:]))
    assert any(f"{40 - len(names)} more" in line for line in lines)


def test_hostile_names_cannot_steer_the_terminal() -> None:
    row = LiveRow("a\x1b[2J\n[bold]b\u202e", action="up", reason="x\ry")
    lines = shown(LiveState(rows=(row,), note="n\x07"), 140)
    text = "".join(lines)
    assert not any(c in text for c in "\x1b\x07\r\u202e")
    assert "[bold]" in text


@given(
    st.builds(
        LiveRow,
        workload=st.text(max_size=60),
        load_rps=st.lists(st.none() | st.floats(), max_size=50).map(tuple),
        band_rps=st.none() | st.tuples(st.floats(), st.floats()),
        replicas_ready=st.none() | st.integers(0, 10**6),
        replicas_pending=st.none() | st.integers(0, 10**6),
        replicas_wanted=st.none() | st.integers(0, 10**6),
        capacity_rps=st.none() | st.floats(),
        attainment=st.none() | st.floats(0, 1) | st.just(math.nan),
        action=st.sampled_from(["", "up", "down", "hold", "retired", "odd"]),
        reason=st.text(max_size=40),
    ),
    st.integers(30, 160),
)
@settings(max_examples=40)
def test_any_row_can_be_drawn(row: LiveRow, width: int) -> None:
    lines = shown(LiveState(rows=(row, row)), width)
    assert len(lines) < 12
    assert "\n" not in plain_line(LiveState(rows=(row,), note=row.reason))


def test_sparkline_scales_from_zero_and_leaves_gaps() -> None:
    assert sparkline((0, 8, 4, None, 8), 5) == "▁█▅ █"
    assert sparkline((), 4) == "    " == sparkline((None, math.nan), 4)
    assert sparkline((0.0, 0.0), 2) == "▁▁"
    assert sparkline(tuple(range(100)), 10)[-1] == "█"
    assert len(sparkline(tuple(range(100)), 10)) == 10
    assert sparkline((1.0,), 3) == "  █"


@given(st.floats(0, 9e8))
def test_an_amount_is_short_and_right(value: float) -> None:
    text = amount(value)
    assert len(text) <= 6
    number = float(text.removesuffix("k").removesuffix("M")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    assert number == pytest.approx(value, rel=0.06, abs=0.0051)


def test_no_pace_is_not_shown_as_zero() -> None:
    state = LiveState(speed=0.0)
    assert "full speed" in plain_line(state)
    assert "full speed" in shown(state, 60)[0]


def test_time_is_utc_and_absurd_times_do_not_raise() -> None:
    assert time_of(1763636415000) == "2025-11-20 11:00:15"
    assert time_of(10**18) == str(10**18)
    assert time_of(None) == "----"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_terminal_one_line_every_few_seconds_and_the_last_state_at_the_end() -> None:
    clock = Clock()
    file = io.StringIO()
    with LiveView(Console(file=file, width=40), plain_every_s=5.0, clock=clock) as view:
        for i in range(12):
            clock.now_s = float(i)
            view.update(LiveState(slots=i))
    lines = file.getvalue().splitlines()
    assert [line.split("slots ")[1].split()[0] for line in lines] == ["0", "5", "10", "11"]
    assert "\x1b" not in file.getvalue()


def test_a_new_note_is_told_at_once() -> None:
    clock = Clock()
    file = io.StringIO()
    with LiveView(Console(file=file), clock=clock) as view:
        view.update(LiveState())
        view.update(LiveState(note="waiting for telemetry"))
        view.update(LiveState(note="waiting for telemetry"))
    assert file.getvalue().count("waiting for telemetry") == 1


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=100, height=30)
        with LiveView(console, clock=Clock()) as view:
            view.update(STATE)
        return file.getvalue()

    # rich keeps a style's codes from the first colour system it was drawn with, so any foreground colour counts.
    coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert coloured.search(drawn())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(drawn())
    assert "chat-70b" in drawn()


def test_the_terminal_is_not_redrawn_faster_than_asked() -> None:
    clock = Clock()
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=30)
    with LiveView(console, redraws_per_s=4.0, clock=clock) as view:
        view.update(STATE)
        once = len(file.getvalue())
        view.update(LiveState(slots=813))
        assert len(file.getvalue()) == once
        clock.now_s = 0.25
        view.update(LiveState(slots=814))
        assert "814" in file.getvalue()
