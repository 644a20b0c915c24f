"""Tables of claims for docs/measured.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.bench.markdown import conditions, table
from tests.bench.stored import results
from tests.claims.claim import Verdict
from tests.claims.registry import claims, recorded

_VERDICTS: Final[Mapping[Verdict, str]] = {"pass": "pass", "open": "**open**", "FAIL": "**FAIL**"}


def _claims() -> str:
    """One line a claim: figure, bar, verdict, and the figure of the control arm."""
    rows = []
    for claim in claims():
        its = recorded(claim)
        rows.append(
            (
                f"`{claim.id}`",
                claim.sentence,
                its.shown,
                claim.bar_text,
                _VERDICTS[its.verdict],
                f"{its.control_shown} ({claim.control})",
                its.record["date"],
            )
        )
    return table(("claim", "sentence", "figure", "bar", "", "control", "recorded"), rows)


def _goals() -> str:
    """The claims that a bench measures: figure, bar and verdict."""
    rows = []
    for claim in claims():
        if claim.measured_by.command.startswith("harmony bench"):
            its = recorded(claim)
            rows.append((claim.sentence, claim.bar_text, its.shown, _VERDICTS[its.verdict]))
    return table(("", "bar", "measured", ""), rows)


def _commands() -> str:
    """One line a record: the command that writes it, its cost, and where and when it was made."""
    found = {claim.measured_by.record: claim.measured_by for claim in claims()}
    rows = [
        (
            f"[{name}](../tests/bench/results/{name}.json)",
            f"`{its.command}`",
            its.cost,
            conditions(results(name)).rstrip(".\n"),
        )
        for name, its in sorted(found.items())
    ]
    return table(("record", "command", "cost", "made"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {"claims": _claims, "goals": _goals, "claim_commands": _commands}
