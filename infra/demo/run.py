"""`harmony run`: a broker, workers and a fleet that closes the loop, watched live and summed up at the end."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from threading import Event
from time import monotonic, time
from typing import Any

from rich.console import Console

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.console.output import output
from infra.demo.fleet import FleetRunner, Snapshot
from infra.demo.live import LiveView
from infra.demo.options import RunOptions
from infra.demo.scenarios import DEFAULT_SCENARIO, SCENARIOS
from infra.demo.session import (
    Session,
    accelerated_session,
    count_records,
    count_refused,
    live_session,
    on_stop,
    print_as_json,
)
from infra.demo.summary import REPORT, PolicyResult, RunSummary, check_writable, render_summary, span, write_run_report
from infra.demo.supervisor import LagWatch, labelled, metric
from infra.demo.workloads import DEMO_STREAM, FleetSpec, demo_fleet, demo_policy
from infra.page.live import PolicyBoard
from infra.simulator.arrivals import TraceError
from streams.config import StreamConfig

# A slot of simulated time is short; the page is refreshed every five seconds or so.
_SLOTS_PER_WRITE = 8
_NEXT = (
    "next      harmony backtest --prometheus URL   what it would have done on your load last week\n"
    "          harmony init --detect URL           watch your own fleet; nothing is commanded\n"
    "          harmony run --scenario surge        another load; also ramp, cold-start, gpu-failure, endless"
)


def run_demo(options: RunOptions) -> None:
    """Do what `harmony run` was asked for.

    Raises:
        HarmonyError: a trace, broker, port or worker that cannot be used; one sentence with the remedy.
    """
    console = Console(stderr=True, quiet=options.quiet)
    if options.recording is not None:
        from infra.demo.recording.playback import run_recording

        run_recording(options, console)
    elif options.fleet:
        _run_fleet(options, console)
    else:
        _serve(options, console)


def _run_fleet(options: RunOptions, console: Console) -> None:
    scenario = None if options.trace is not None else SCENARIOS[options.scenario or DEFAULT_SCENARIO]
    step_s = options.step_s or (DEMO_STREAM.step_ms / 1000 if scenario is None else scenario.step_s)
    stream = replace(DEMO_STREAM, step_ms=round(step_s * 1000))
    speed = options.speed if options.speed is not None else 20.0 if scenario is None else scenario.speed
    options = replace(options, speed=speed)
    try:
        fleet = (
            demo_fleet(options.trace, with_generated=False, seed=options.seed, step_ms=stream.step_ms)
            if scenario is None
            else scenario.fleet(options.seed, step_s)
        )
    except TraceError as error:
        raise HarmonyError(str(error), exit_code=2) from error
    policy = demo_policy(fleet, stream)
    report = options.report or options.settings.state_dir / REPORT
    if options.report is not None:  # the state directory is looked at by the session, which says how to set it
        check_writable(report)
    with accelerated_session(options, policy, stream, console) as session:
        pace = f"{speed:g} x real time" if speed else "as fast as possible"
        if scenario is not None:
            ends = "" if scenario.length_s is None else f"; {span(scenario.length_s)} of simulated time"
            console.print(f"scenario  {scenario.name}: {scenario.about}{ends}", soft_wrap=True)
        console.print(f"pace      {pace} once the context is full; Ctrl-C ends the run with its summary")
        console.print("look in   harmony status · harmony explain WORKLOAD · harmony decisions --follow\n")
        summary, runner = _live_the_loop(options, session, stream, policy, fleet, console)
    if scenario is not None:
        summary = replace(summary, trace=scenario.name)
    _print_summary(summary, policy, options)
    title = f"{summary.trace}: {scenario.about}" if scenario is not None else summary.trace
    if write_run_report(report, title, summary, runner.report.series, policy):
        console.print(f"\nreport    {report}", soft_wrap=True, highlight=False)
    console.print(_NEXT, soft_wrap=True, highlight=False)


def _serve(options: RunOptions, console: Console) -> None:
    """Workers for telemetry of the user's own, until told to stop or the duration is over."""
    ended = Event()
    until_s = inf if options.duration_s is None else monotonic() + options.duration_s
    with live_session(options, console) as session:
        console.print(
            f"publish   {session.topics.telemetry_gpu} and {session.topics.telemetry_requests}; Ctrl-C ends the run"
        )
        on_stop(ended.set)
        while not ended.wait(0.5) and monotonic() < until_s:
            session.supervisor.check()


def _live_the_loop(
    options: RunOptions, session: Session, stream: StreamConfig, policy: Policy, fleet: FleetSpec, console: Console
) -> tuple[RunSummary, FleetRunner]:
    assert options.speed is not None
    board = PolicyBoard(options.settings.state_dir)
    with LiveView(console) as view, LagWatch(session.urls) as lag, board:
        began_s = monotonic()

        def show(snapshot: Snapshot) -> None:
            rate = snapshot.live.forecasts / max(1e-9, monotonic() - began_s)
            view.update(replace(snapshot.live, forecasts_per_s=rate, lag_records=lag.lag_records))
            if snapshot.slot % _SLOTS_PER_WRITE == 0 and not snapshot.warm_up:
                board.write((snapshot.live.harmony, *snapshot.live.shadows))

        runner = FleetRunner(
            session.brokers,
            session.topics,
            stream,
            policy,
            fleet,
            speed=options.speed,
            now_ms=int(time() * 1000),
            duration_s=options.duration_s,
            on_update=show,
            check_alive=session.supervisor.check,
            security=session.security,
        )
        on_stop(runner.stop)
        return summarise(runner.run(), session), runner


def summarise(results: dict[str, Any], session: Session) -> RunSummary:
    """The fleet's own figures with what the topics and the workers' metrics say."""
    topics = session.topics
    counts = {name: count_records(session, name) for name in (topics.pages, topics.forecasts)}
    return RunSummary(
        trace=results["trace"] or "generated",
        speed=results["speed"],
        samples=results["samples"],
        slots=results["slots"],
        pages=counts[topics.pages],
        forecasts=counts[topics.forecasts],
        decisions=results["decisions"],
        commands=results["commands"],
        dead_letters=count_refused(session),
        late=sum(metric(url, "samples_total", "late") for url in session.urls),
        forecasts_by_source=_summed(session, "forecasts_total") or results["forecasts_by_source"],
        decisions_by_action=results["decisions_by_action"],
        hold_reasons=results["hold_reasons"],
        attainment=results["attainment"],
        gpu_hours=results["gpu_hours"],
        cost=results["costs"].get("harmony"),
        shadows={
            p: PolicyResult(r["attainment"], r["gpu_hours"], results["costs"].get(p))
            for p, r in results["shadows"].items()
        },
    )


def _summed(session: Session, name: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for url in session.urls:
        for label, value in labelled(url, name):
            if float(value) > 0:
                total[label] = total.get(label, 0) + int(float(value))
    return total


def _print_summary(summary: RunSummary, policy: Policy, options: RunOptions) -> None:
    if options.as_json:
        print_as_json(summary.to_dict())
        return
    console = output()
    objective = min(spec.slo.objective for spec in policy.workloads)
    console.print(render_summary(summary, objective=objective, unicode=console.encoding.lower().startswith("utf")))
