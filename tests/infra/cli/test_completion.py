"""The shell's question for the words that may follow, as `harmony --install-completion` has it asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("harmony act", {"actuate"}),
        ("harmony actuate web", {"webhook"}),
        ("harmony collect prometheus --sc", {"--scrape"}),
    ],
)
def test_words_are_completed(typed: str, offered: set[str]) -> None:
    program = Path(sys.executable).parent / "harmony"
    if not program.is_file():
        pytest.skip("harmony is not installed as a program")
    place = str(len(typed.split()) - 1)
    asked = {"_HARMONY_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
    done = subprocess.run([program], env=os.environ | asked, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == offered, done.stderr
