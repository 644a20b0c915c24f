"""Results on stdout: fitted to a terminal, whole and plain in a pipe; and how far a long command is."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from infra.console.output import FittedTable, TableColumn, output
from infra.console.progress import WorkBar

COLUMNS = [TableColumn("workload"), TableColumn("mode", 2), TableColumn("why", wraps=True), TableColumn("id", 3)]
WORDS = "the largest recent proposal counts because nothing else was said of it"
ROWS = [("prod/llm/chat-70b", Text("observe", style="bold red"), WORDS, "0123456789abcdef")]


def shown(width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width).print(FittedTable(COLUMNS, [*ROWS], caption="one of them"))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_narrow_terminal_loses_columns_and_breaks_no_word() -> None:
    wide, medium, narrow = shown(150), shown(60), shown(50)
    assert wide[0].split() == ["workload", "mode", "why", "id"]
    assert medium[0].split() == ["workload", "mode", "why"]
    assert narrow[0].split() == ["workload", "why"]
    for lines in (wide, medium, narrow):
        text = " ".join(" ".join(lines).split())
        for word in WORDS.split():
            assert f" {word} " in f" {text} "
        assert lines[-1] == "one of them"
    assert max(map(len, narrow)) <= 50


def test_a_pipe_gets_whole_lines_without_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    long = [(*ROWS[0][:2], " ".join([WORDS] * 10), "id")]
    output().print(FittedTable(COLUMNS, [*long]))
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert long[0][2] in told
    assert len([line for line in told.splitlines() if line.strip("─ ")]) == 2


def test_without_a_terminal_each_part_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with WorkBar() as bar:
        for share in (0.0, 0.1, 0.2):
            bar("harmony", share)
        bar("oracle", 0.5)
    with WorkBar(quiet=True) as bar:
        bar("nothing of this", 0.5)
    assert capsys.readouterr().err == "harmony\noracle\n"


def test_a_terminal_gets_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_PROGRESS", raising=False)
    with WorkBar() as bar:
        bar("harmony", 0.25)
    told = terminal.getvalue()
    assert "25%" in told
    assert "left harmony" in told
