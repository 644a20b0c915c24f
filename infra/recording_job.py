"""`harmony run --recording PATH`: recorded telemetry through Kafka and the workers, its forecasts scored at the end."""

from __future__ import annotations

from dataclasses import replace
from time import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from agents.policy import GuardLimits, Policy
from infra.demo.options import RunOptions
from infra.demo.playback import Played, RecordingRunner, recording_stream
from infra.demo.recordings import Recording, read_recording
from infra.demo.run import count_records, on_stop, print_as_json
from infra.demo.session import Session, accelerated_session
from infra.recording_summary import RecordingSummary, render_recording_summary
from infra.worker_figures import metric
from streams.config import StreamConfig


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
            speed=options.speed,
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
        dead_letters=count_records(session, session.topics.dead_letters),
        late=sum(metric(url, "samples_total", "late") for url in session.urls),
    )
