"""`harmony init`: a commented settings file, with what can be detected or is answered already in it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.console.errors import HarmonyError
from infra.console.options import finite, say
from infra.console.text import some

if TYPE_CHECKING:
    from infra.operate.detect import DetectedWorkload, Detection


_HEAD = """\
# What was found. All are observed: they are forecast and decided, nothing is commanded. Before `mode: act`, give each
# its target and look at its bounds; `harmony init` without --detect shows every key.
workloads:
"""


_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class Promise:
    """Objectives of every detected workload."""

    ttft_s: float = 2.0
    tpot_s: float = 0.2
    objective: float = 0.99


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("harmony.yaml"),
    detect: Annotated[
        list[str] | None,
        typer.Option(help="A Prometheus server or an exporter, host:port or URL (several), to find workloads at."),
    ] = None,
    brokers: Annotated[str | None, typer.Option("--brokers", "-b", help="Kafka, host:port, to write into it.")] = None,
    ttft_s: Annotated[
        float, typer.Option("--slo-ttft", help="Seconds to the first token, of all that is found.")
    ] = 2.0,
    tpot_s: Annotated[float, typer.Option("--slo-tpot", help="Seconds per further token.")] = 0.2,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    max_replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Most replicas of a workload whose limit is not known; not fewer than it has."),
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            callback=finite,
            envvar="HARMONY_STEP_S",
            help="Seconds per step; default: 15, longer for slow sources.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented settings file to start from; asks on a terminal, or detects."""
    from infra.settings.docs import example_yaml, write_example

    if not (ttft_s > 0 and tpot_s > 0):
        raise HarmonyError("--slo-ttft and --slo-tpot must be above 0.", 2)
    if path.exists() and not force:
        raise HarmonyError(f"{path} exists; --force replaces it.", 2)
    addresses, promise = list(detect or ()), Promise(ttft_s, tpot_s)
    asks = not yes and sys.stdin.isatty()
    if asks and not addresses and brokers is None:
        brokers, addresses, promise = _ask()
    sources = _detect_all(addresses)
    chosen = {"brokers": brokers} if brokers else {}
    slow_s = max((f.interval_s for f in sources if f.interval_s), default=0.0)
    remarks = []
    if step is not None:
        chosen["step_s"] = f"{step:g}"
        slower = f" Samples come every {slow_s:g} s only; a step without one is missing." if slow_s > step else ""
        remarks.append(f"The step is {step:g} s, as given.{slower}")
    elif slow_s > 15.0:
        chosen["step_s"] = str(math.ceil(slow_s))
        remarks.append(f"Samples come every {chosen['step_s']} s, so that is the step.")
    workloads = [w for f in sources for w in f.workloads]
    bounds = {w.id: _bounds(w, max_replicas, asks=asks) for w in workloads}
    text = example_yaml(chosen, _workloads_yaml(workloads, bounds, promise)) if workloads else example_yaml(chosen)
    _check(text, path)
    write_example(path, text, force=force)
    open_ended = [w for w, bound in bounds.items() if bound is None]
    if open_ended:
        remarks.append(
            f"No limit of {some(open_ended, _MAX_LISTED)} is known, so none is written: give replicas.min and "
            "replicas.max before `mode: act`, the maximum not below what runs (--max-replicas does it for all)."
        )
    for line in _summary_lines(path, sources, remarks, brokers):
        say(line)


def _ask() -> tuple[str | None, list[str], Promise]:
    say("Enter takes what stands in brackets; Ctrl-C leaves without a file.")
    brokers = typer.prompt("Kafka brokers (empty: the one of `harmony run`)", default="", show_default=False, err=True)
    address = typer.prompt(
        "A Prometheus server or an exporter to find workloads at (empty: none)",
        default="",
        show_default=False,
        err=True,
    )
    if not address.strip():
        return brokers.strip() or None, [], Promise()
    plain = Promise()
    promise = Promise(
        typer.prompt("Seconds to the first token that users are promised", default=plain.ttft_s, err=True),
        typer.prompt("Seconds per further token", default=plain.tpot_s, err=True),
        typer.prompt("Share of requests for which both must hold", default=plain.objective, err=True),
    )
    return brokers.strip() or None, [address.strip()], promise


def _detect_all(addresses: Sequence[str]) -> list[Detection]:
    if not addresses:
        return []
    from infra.operate.detect import detect

    return [detect(address) for address in addresses]


def _bounds(workload: DetectedWorkload, most: int | None, *, asks: bool) -> tuple[int, int] | None:
    """Fewest and most replicas, never below what runs or may run; None where they are not known.

    Args:
        most: given for workloads without a known limit.
        asks: a person can be asked for it.

    Raises:
        HarmonyError: `most` is below what runs (exit code 2).
    """
    running, limits = workload.running, workload.limits
    if limits is not None and limits.max is not None:
        return limits.min or 0, max(limits.max, running, 1)
    if most is None and asks:
        at_least = max(running, 1)
        most = typer.prompt(
            f"Most replicas of {workload.id} ({running} run; 0: not known yet)", default=0, err=True,
            value_proc=lambda text: _most_of(text, at_least),
        )  # fmt: skip
    if not most:
        return None
    if most < running:
        raise HarmonyError(
            f"--max-replicas {most} is below the {running} replicas of {workload.id} that run: commands would take "
            f"{running - most} of them away. Give {running} or more.",
            2,
        )
    return 1, most


def _most_of(text: str, running: int) -> int:
    """An answer: 0, or a number that takes nothing away."""
    most = int(text) if str(text).strip().isdigit() else -1
    if most != 0 and most < running:
        raise typer.BadParameter(f"give {running} or more, so that no replica is taken away, or 0")
    return most


def _workloads_yaml(
    workloads: Sequence[DetectedWorkload], bounds: Mapping[str, tuple[int, int] | None], promise: Promise
) -> str:
    """The section `workloads`, one entry for each that was found, in observe."""
    lines = [_HEAD]
    seen_ids: set[str] = set()
    for workload in workloads:
        if workload.id in seen_ids:
            continue
        seen_ids.add(workload.id)
        lines += [
            f"  - id: {_quoted(workload.id)}\n",
            "    mode: observe\n",
            f"    {_replicas(workload, bounds[workload.id])}\n",
            f"    gpus_per_replica: {workload.gpus_per_replica}\n",
            f"    slo: {{ttft_s: {promise.ttft_s:g}, tpot_s: {promise.tpot_s:g}, objective: {promise.objective:g}}}\n",
            f"    # target: {_target(workload)}\n",
        ]
    return "".join(lines)


def _replicas(workload: DetectedWorkload, bounds: tuple[int, int] | None) -> str:
    """The bounds with what they rest on; commented out where they are not known."""
    count = f"{workload.running} run" if workload.running else "seen by its GPUs only"
    if bounds is None:
        return f"# replicas: {{min: 1, max: }}   # {count}; no limit is known: give a maximum, not below what runs"
    limits = workload.limits
    source = f"limits of {limits.source}; " if limits is not None and limits.source else ""
    return f"replicas: {{min: {bounds[0]}, max: {bounds[1]}}}   # {source}{count}"


def _target(workload: DetectedWorkload) -> str:
    """As the cluster reports it, else a first guess for a person to correct."""
    from infra.operate.replica_limits import ReplicaLimits

    (namespace, name), known = workload.place, workload.limits or ReplicaLimits()
    kind = f"apiVersion: {known.api_version}, kind: {known.kind}"
    return f"{{{kind}, namespace: {_quoted(namespace)}, name: {_quoted(name)}}}"


def _quoted(text: str) -> str:
    import json

    return json.dumps(text)


def _check(text: str, path: Path) -> None:
    """See that the file would load, before anything is written."""
    from tempfile import NamedTemporaryFile

    from infra.settings.load import load_settings

    with NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            load_settings(Path(file.name), None, {})
        except HarmonyError as error:
            raise HarmonyError(error.message.replace(file.name, str(path)), error.exit_code) from None


def _summary_lines(path: Path, probes: Sequence[Detection], remarks: list[str], brokers: str | None) -> list[str]:
    lines = []
    for source in probes:
        names = ", ".join(w.id for w in source.workloads[:5]) + (" ..." if len(source.workloads) > 5 else "")
        lines.append(f"Found at {source.address} ({source.kind}): {len(source.workloads)} workloads: {names}")
        lines += [f"left out: {n} samples of {reason}" for reason, n in list(source.unplaced.items())[:3]]
    lines += remarks
    lines.append(
        f"Wrote {path}. {'' if probes else 'Declare your workloads in it, then: '}"
        f"{'Next: ' if probes else ''}harmony {'worker' if brokers or not probes else 'run --no-fleet'} --config {path}"
    )
    for source in probes:
        flag = "--server" if source.kind == "prometheus" else "--scrape"
        past = " --history 7d" if source.kind == "prometheus" else ""
        lines.append(f"and beside it: harmony collect prometheus {flag} {source.address}{past} --config {path}")
    return lines
