"""A recording played through the telemetry topics: publish a slot, tick, wait for decisions, score the forecasts.

Nothing that was recorded obeys a decision, so a few slots may be under way; results do not depend on how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Event
from time import monotonic, time
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from agents.policy import GuardLimits, Policy
from infra.console.errors import HarmonyError
from infra.console.text import printable
from infra.demo.lockstep import (
    FIRST_ANSWER_S,
    POLL_MS,
    DecisionFeed,
    DecisionTally,
    Interrupted,
    Pace,
    SlotPublisher,
    check_pace,
)
from infra.demo.options import RunOptions
from infra.demo.recording.recordings import Recording, read_recording
from infra.demo.scores import Example, ForecastFeed, IndicatorScore, Scorecard, Sums
from infra.demo.session import Session, accelerated_session, count_records, count_refused, on_stop, print_as_json
from infra.demo.summary import by_count
from infra.demo.supervisor import metric
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.topics import Topics

# Slots published ahead of their decisions.
AHEAD = 16
_MOST_GRACE_MS = 1_000
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Played:
    """What a played recording came to."""

    samples: int
    slots: int
    tally: DecisionTally
    scorecard: Scorecard


def recording_stream(recording: Recording, step_s: float | None = None) -> StreamConfig:
    """How the recording's time is cut: by default into steps of its own interval.

    Slots are published one after the other, so nothing is late and the grace only has to be legal.

    Raises:
        HarmonyError: the step is shorter than the interval (exit code 2).
    """
    step_ms = recording.interval_ms if step_s is None else round(step_s * 1000)
    if step_ms < recording.interval_ms:
        raise HarmonyError(
            f"--step {step_s:g} is shorter than the {recording.interval_ms / 1000:g} s between two samples of "
            f"{recording.name}: most steps would be empty; use {recording.interval_ms / 1000:g} or more.",
            2,
        )
    grace_ms = min(step_ms, _MOST_GRACE_MS)
    return StreamConfig(step_ms=step_ms, grace_ms=grace_ms, skew_ms=grace_ms)


class RecordingRunner:
    """Plays a recording against the workers of a Kafka cluster.

    Args:
        brokers: `host:port`, several separated by commas; the topics exist.
        stream: what the workers run with.
        speed: recorded seconds per second; 0 = as fast as possible.
        duration_s: wall seconds at that speed; None = the whole recording.
        on_update: called after every slot with the number of slots played and of forecasts read.
        check_alive: called while waiting; may raise to end the run (a worker process died).
        decision_timeout_s: how long one slot may take.
        first_timeout_s: how long the first answer may: workers join their group, restore, and load the model.
        security: keyword arguments of kafka-python's clients.

    Raises:
        HarmonyError: speed and duration contradict each other (exit code 2).
    """

    def __init__(
        self,
        brokers: str,
        topics: Topics,
        stream: StreamConfig,
        recording: Recording,
        *,
        speed: float = 0.0,
        duration_s: float | None = None,
        on_update: Callable[[int, int], None] | None = None,
        check_alive: Callable[[], None] | None = None,
        decision_timeout_s: float = 60.0,
        first_timeout_s: float = FIRST_ANSWER_S,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        check_pace(speed, duration_s)
        self._brokers, self._topics, self._stream, self._security = brokers, topics, stream, security
        self._recording, self._speed = recording, speed
        self._on_update, self._check_alive = on_update, check_alive
        self._timeout_s, self._first_timeout_s = decision_timeout_s, first_timeout_s
        self.num_slots = len(recording.slot_numbers(stream.step_ms, stream.context_steps))
        if duration_s is not None:
            self.num_slots = min(self.num_slots, math.ceil(duration_s * speed * 1000 / stream.step_ms))
        self._stop = Event()
        self._samples = self._slots = 0
        self._tally = DecisionTally()

    def stop(self) -> None:
        """Ask the run to end after what it is doing; callable from a signal handler or another thread."""
        self._stop.set()

    def run(self) -> Played:
        """Play to the end, or until stopped, and score what was forecast.

        Raises:
            HarmonyError: the broker or the workers do not answer.
        """
        workload = self._recording.workload
        with (
            DecisionFeed(self._brokers, self._topics, [workload], self._security) as decisions,
            ForecastFeed(self._brokers, self._topics, self._stream, workload, self._security) as forecasts,
            SlotPublisher(self._brokers, self._topics, self._security) as publisher,
        ):
            try:
                self._play(publisher, decisions, forecasts)
            except (Interrupted, KeyboardInterrupt):
                self._stop.set()
            forecasts.drain(_DRAIN_S, answered=not self._stop.is_set())
        return Played(self._samples, self._slots, self._tally, forecasts.scorecard)

    def _play(self, publisher: SlotPublisher, decisions: DecisionFeed, forecasts: ForecastFeed) -> None:
        step_ms = self._stream.step_ms
        pace = Pace(step_ms / 1000 / self._speed if self._speed > 0 else 0.0)
        origins: list[int] = []
        for slot, telemetry in islice(self._recording.slots(step_ms, self._stream.context_steps), self.num_slots):
            if not origins:
                self._begin(publisher, forecasts, slot)
            if self._stop.is_set() or not pace.wait(self._stop):
                break
            origin_ts_ms = self._stream.slot_end_ms(slot)
            publisher.publish({self._recording.workload: telemetry}, origin_ts_ms + self._stream.grace_ms)
            origins.append(origin_ts_ms)
            self._slots += 1
            self._samples += telemetry.num_samples
            if len(origins) > AHEAD:
                self._await(decisions, origins[-1 - AHEAD])
            else:
                decisions.poll()
            self._take(decisions, forecasts)
        if origins and not self._stop.is_set():
            self._await(decisions, origins[-1])
        self._take(decisions, forecasts)

    def _begin(self, publisher: SlotPublisher, forecasts: ForecastFeed, first_slot: int) -> None:
        """Close the empty slot before the first one everywhere, and wait for its pages.

        A source without a page counts as absent, so otherwise the first slots might be joined without their requests.
        """
        for slot in (first_slot - 2, first_slot - 1):
            publisher.publish({}, self._stream.slot_end_ms(slot) + self._stream.grace_ms)
        deadline_s = monotonic() + self._first_timeout_s
        while not forecasts.closed_everywhere():
            if self._stop.is_set():
                raise Interrupted
            if self._check_alive is not None:
                self._check_alive()
            if monotonic() > deadline_s:
                raise HarmonyError(
                    f"No worker closed a slot within {self._first_timeout_s:g} s: check that workers of all roles "
                    "run (`harmony status`)."
                )
            forecasts.poll(POLL_MS)

    def _await(self, decisions: DecisionFeed, origin_ts_ms: int) -> None:
        timeout_s = self._timeout_s if self._tally.total else self._first_timeout_s
        decisions.wait(origin_ts_ms, self._stream.step_ms, timeout_s, self._stop, self._check_alive)

    def _take(self, decisions: DecisionFeed, forecasts: ForecastFeed) -> None:
        self._tally.add(decisions.inbox.take_arrived())
        forecasts.poll()
        if self._on_update is not None:
            self._on_update(self._slots, sum(forecasts.scorecard.forecasts_by_source.values()))


# The end of `harmony run --recording`: how good the forecasts were, as JSON for scripts and as a table for people.


_UNITS = {indicator.name: indicator.unit for indicator in DEFAULT_CATALOGUE}
_ORDER = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
_NOTES = (
    "in the 90 % band: share of the later values between the 5 % and 95 % quantiles; 90 % is right",
    "error vs last: mean absolute error of the median / that of the last value; below 1 is better",
    "loss vs last: mean quantile loss / that of the last value + the quantiles of past changes; below 1 is better",
)


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    """Counts and forecast scores of one played recording. `step_ms` is the slot length it was played with."""

    recording: str
    step_ms: int
    samples: int = 0
    slots: int = 0
    pages: int = 0
    dead_letters: int = 0
    late: int = 0
    forecasts_by_source: Mapping[str, int] = field(default_factory=dict)
    decisions_by_action: Mapping[str, int] = field(default_factory=dict)
    hold_reasons: Mapping[str, int] = field(default_factory=dict)
    indicators: Mapping[str, IndicatorScore] = field(default_factory=dict)

    @property
    def forecasts(self) -> int:
        return sum(self.forecasts_by_source.values())

    @property
    def decisions(self) -> int:
        return sum(self.decisions_by_action.values())

    def to_dict(self) -> dict[str, Any]:
        """What `harmony run --recording PATH --json` prints. Keys may be added, none renamed."""
        return {
            "recording": self.recording,
            "step_ms": self.step_ms,
            "samples": self.samples,
            "slots": self.slots,
            "pages": self.pages,
            "forecasts": self.forecasts,
            "forecasts_by_source": by_count(self.forecasts_by_source),
            "decisions": self.decisions,
            "decisions_by_action": by_count(self.decisions_by_action),
            "hold_reasons": by_count(self.hold_reasons),
            "dead_letters": self.dead_letters,
            "late": self.late,
            "indicators": {
                name: {
                    **_sums(score.total),
                    "full_context": _sums(score.full_context),
                    "by_source": {source: _sums(sums) for source, sums in sorted(score.by_source.items())},
                    "example": _example(score.example),
                }
                for name, score in self.in_order()
            },
        }

    def in_order(self) -> list[tuple[str, IndicatorScore]]:
        """Scores by indicator, in the order of the catalogue."""
        return sorted(self.indicators.items(), key=lambda item: (_ORDER.get(item[0], len(_ORDER)), item[0]))


def render_recording_summary(summary: RecordingSummary, *, unicode: bool = True) -> Group:
    """The same for people; `unicode` says whether the terminal can show more than ASCII."""
    parts = [
        f"{summary.samples:,} samples",
        f"{summary.slots:,} slots of {summary.step_ms / 1000:g} s",
        f"{summary.forecasts:,} forecasts",
        f"{summary.decisions:,} decisions",
    ]
    odd = [f"{n:,} {what}" for n, what in ((summary.late, "late"), (summary.dead_letters, "dead letters")) if n]
    dot = " · " if unicode else ", "
    lines = [Text(f"{printable(summary.recording)}: {dot.join(parts + odd)}")]
    for title, counts in (
        ("forecasts by", summary.forecasts_by_source),
        ("decisions", summary.decisions_by_action),
        ("held because of", summary.hold_reasons),
    ):
        if counts:
            listed = ", ".join(f"{printable(name).replace('_', ' ')} {n:,}" for name, n in by_count(counts).items())
            lines.append(Text(f"{title}: {listed}", style="dim"))
    notes = [Text(note, style="dim") for note in _NOTES]
    return Group(*lines, Text(), _table(summary.in_order(), unicode), *notes)


def _table(scores: list[tuple[str, IndicatorScore]], unicode: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if unicode else None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("indicator", overflow="fold")
    for heading in ("forecasts", "in the 90 % band", "at step 1", "error vs last", "loss vs last"):
        table.add_column(heading, justify="right")
    table.add_column("an example, one step ahead", overflow="fold")
    for name, score in scores:
        _add_row(table, printable(name), score.total, _example_text(name, score.example, unicode))
        if score.full_context.forecasts:
            _add_row(table, "  with a full context", score.full_context, "", style="dim")
        for source, sums in sorted(score.by_source.items()):
            _add_row(table, f"  by {printable(source).replace('_', ' ')}", sums, "", style="dim")
    return table


def _add_row(table: Table, name: str, sums: Sums, example: str, style: str = "none") -> None:
    table.add_row(
        Text(name),
        f"{sums.forecasts:,}",
        _percent(sums.coverage_90),
        _percent(sums.coverage_90_step1),
        _number(sums.mae_ratio_to_last_value),
        _number(sums.pinball_ratio_to_last_value),
        Text(example),
        style=style,
    )


def _sums(sums: Sums) -> dict[str, Any]:
    return {
        "forecasts": sums.forecasts,
        "scores": sums.scores,
        "coverage_90": _rounded(sums.coverage_90),
        "coverage_90_step1": _rounded(sums.coverage_90_step1),
        "mae_ratio_to_last_value": _rounded(sums.mae_ratio_to_last_value),
        "pinball_ratio_to_last_value": _rounded(sums.pinball_ratio_to_last_value),
    }


def _example(example: Example | None) -> dict[str, Any] | None:
    """Steps 1, 2, 4, ... and the last: the whole forecast is in the topic."""
    if example is None:
        return None
    horizon = len(example.quantiles)
    steps = sorted({horizon, *(2**k for k in range(horizon.bit_length()) if 2**k <= horizon)})
    return {
        "origin_ts_ms": example.origin_ts_ms,
        "step_ms": example.step_ms,
        "source": example.source,
        "quantile_levels": list(example.quantile_levels),
        "steps": [
            {"step": h, "quantiles": list(example.quantiles[h - 1]), "observed": example.observed[h - 1]} for h in steps
        ],
    }


def _example_text(name: str, example: Example | None, unicode: bool) -> str:
    if example is None or not example.quantiles:
        return ""
    at = dict(zip(example.quantile_levels, example.quantiles[0], strict=True))
    dash, unit = "…" if unicode else "..", _UNITS.get(name, "1")
    came = "nothing observed" if example.observed[0] is None else f"came {example.observed[0]:.4g}"
    return f"{at[0.5]:.4g} [{at[0.05]:.4g} {dash} {at[0.95]:.4g}]{'' if unit == '1' else f' {unit}'}, {came}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# `harmony run --recording PATH`: recorded telemetry through Kafka and the workers, its forecasts scored at the end.


def run_recording(options: RunOptions, console: Console) -> None:
    """Play `options.recording` to its end and print the summary: JSON on stdout with `--json`, else a table.

    Raises:
        HarmonyError: a recording, broker, port or worker that cannot be used; one sentence with the remedy.
    """
    if options.recording is None:
        raise ValueError("run_recording needs options.recording")
    recorded = read_recording(options.recording)
    stream = recording_stream(recorded, options.step_s)
    recording = recorded.before(int(time() * 1000), stream.step_ms)
    if recording is not recorded:
        days = (recorded.end_ms - recording.end_ms) // 86_400_000
        console.print(f"{recorded.name} ends in the future; it is played {days} days earlier")
    # No workload is declared, so all are forecast and decided in `observe`.
    policy = Policy(fleet="recording", guards=GuardLimits(warm_up_steps=stream.context_steps))
    with accelerated_session(options, policy, stream, console) as session:
        summary = _play(options, session, stream, recording, console)
    if options.as_json:
        print_as_json(summary.to_dict())
        return
    output = Console()
    output.print(render_recording_summary(summary, unicode=output.encoding.lower().startswith("utf")))


def _play(
    options: RunOptions, session: Session, stream: StreamConfig, recording: Recording, console: Console
) -> RecordingSummary:
    columns = (
        TextColumn("playing {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("slots, {task.fields[forecasts]} forecasts"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def show(slots: int, forecasts: int) -> None:
            progress.update(bar, completed=slots, forecasts=forecasts)

        runner = RecordingRunner(
            session.brokers,
            session.topics,
            stream,
            recording,
            speed=options.speed or 0.0,
            duration_s=options.duration_s,
            on_update=show,
            check_alive=session.supervisor.check,
            security=session.security,
        )
        bar = progress.add_task(recording.name, total=runner.num_slots, forecasts=0)
        on_stop(runner.stop)
        return _summary(runner.run(), session, stream, recording)


def _summary(played: Played, session: Session, stream: StreamConfig, recording: Recording) -> RecordingSummary:
    summary = RecordingSummary(
        recording=recording.name,
        step_ms=stream.step_ms,
        samples=played.samples,
        slots=played.slots,
        forecasts_by_source=played.scorecard.forecasts_by_source,
        decisions_by_action=played.tally.by_action,
        hold_reasons=played.tally.hold_reasons,
        indicators=played.scorecard.indicators,
    )
    return replace(
        summary,
        pages=count_records(session, session.topics.pages),
        dead_letters=count_refused(session),
        late=sum(metric(url, "samples_total", "late") for url in session.urls),
    )
