"""A claim: a sentence of the documentation, the command that measures it, its bar, and a control arm that misses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.bench.stored import Document

Cost = Literal["seconds", "minutes", "hours"]
Verdict = Literal["pass", "open", "FAIL"]
# Reads one figure out of the `results` of a record.
Figure = Callable[[Any], float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A command that writes one record; several claims may be read from it.

    Attributes:
        record: name of the record's file in tests/bench/results, without its ending.
        command: what a person types; the file of the record is appended after `--json`.
        cost: how long the command takes on two quiet cores.
        short: a form of the command that takes about a minute, for `make claims`; None where `command` does.
    """

    record: str
    command: str
    cost: Cost
    short: str | None = None

    @property
    def quick(self) -> str | None:
        """The command of `make claims`; None where the measurement has no form without hours."""
        return self.short or (self.command if self.cost == "seconds" else None)


RecordOf = Callable[[Measurement], Document]


@dataclass(frozen=True, slots=True)
class Bar:
    """The limit that the figure must keep."""

    limit: float
    at_most: bool = False

    def kept_by(self, figure: float) -> bool:
        """Whether the figure keeps the limit; a figure that is not a number does not."""
        return figure <= self.limit if self.at_most else figure >= self.limit


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        id: the module's name, with hyphens.
        sentence: what is claimed, as a reader of the documentation understands it.
        source: the page, or the publication that the project follows.
        measured_by: the command and its record.
        figure: the figure of the claim, from the record's results.
        bar: what the figure must keep.
        shown: how figures are written, a format string.
        control: what the control arm lacks.
        control_figure: the figure of the control arm; it must miss the bar.
        control_by: the measurement whose record holds the control arm; None: that of the claim.
        is_open: whether the bar is a goal that the last record misses.
    """

    id: str
    sentence: str
    source: str
    measured_by: Measurement
    figure: Figure
    bar: Bar
    shown: str
    control: str
    control_figure: Figure
    control_by: Measurement | None = None
    is_open: bool = False

    @property
    def bar_text(self) -> str:
        """The bar in words."""
        return f"{'at most' if self.bar.at_most else 'at least'} {self.shown.format(self.bar.limit)}"

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """What must be run to judge the claim."""
        return (self.measured_by,) if self.control_by is None else (self.measured_by, self.control_by)

    def judge(self, record_of: RecordOf) -> Judgement:
        """The claim held against records.

        Args:
            record_of: gives the record of a measurement.

        Raises:
            LookupError: a record lacks the figure, as that of a short form may.
        """
        record = record_of(self.measured_by)
        beside = record if self.control_by is None else record_of(self.control_by)
        return Judgement(
            self, float(self.figure(record["results"])), float(self.control_figure(beside["results"])), record
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """A claim, its figure, and the figure of its control arm, from one record."""

    claim: Claim
    figure: float
    control_figure: float
    record: Document

    @property
    def control_fails(self) -> bool:
        """Whether the control arm misses the bar; a claim whose control keeps it proves nothing."""
        return not self.claim.bar.kept_by(self.control_figure)

    @property
    def verdict(self) -> Verdict:
        """`open` is a goal that is missed and marked so; everything else that misses fails."""
        if not self.control_fails:
            return "FAIL"
        if self.claim.bar.kept_by(self.figure):
            return "pass"
        return "open" if self.claim.is_open else "FAIL"

    @property
    def shown(self) -> str:
        """The figure as it is written."""
        return self.claim.shown.format(self.figure)

    @property
    def control_shown(self) -> str:
        """The figure of the control arm as it is written."""
        return self.claim.shown.format(self.control_figure)
