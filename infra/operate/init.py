"""`harmony init`: a commented settings file, with what can be detected or is answered already in it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.console.errors import HarmonyError
from infra.console.options import say

if TYPE_CHECKING:
    from infra.operate.detect import DetectedWorkload, Detection


_HEAD = """\
# What was found. All are observed: they are forecast and decided, nothing is commanded. Before `mode: act`, give each
# its target and look at its bounds; `harmony init` without --detect shows every key.
workloads:
"""


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
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented settings file to start from; asks on a terminal, or detects."""
    from infra.settings.docs import example_yaml, write_example

    if not (ttft_s > 0 and tpot_s > 0):
        raise HarmonyError("--slo-ttft and --slo-tpot must be above 0.", 2)
    if path.exists() and not force:
        raise HarmonyError(f"{path} exists; --force replaces it.", 2)
    addresses, promise = list(detect or ()), Promise(ttft_s, tpot_s)
    if not yes and not addresses and brokers is None and sys.stdin.isatty():
        brokers, addresses, promise = _ask()
    sources = _detect_all(addresses)
    chosen = {"brokers": brokers} if brokers else {}
    slow_s = max((f.interval_s for f in sources if f.interval_s), default=0.0)
    if slow_s > 15.0:
        chosen["step_s"] = str(math.ceil(slow_s))
    workloads = [w for f in sources for w in f.workloads]
    text = example_yaml(chosen, _workloads_yaml(workloads, promise)) if workloads else example_yaml(chosen)
    _check(text, path)
    write_example(path, text, force=force)
    for line in _summary_lines(path, sources, chosen, brokers):
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


def _workloads_yaml(workloads: Sequence[DetectedWorkload], promise: Promise) -> str:
    """The section `workloads`, one entry for each that was found, in observe."""
    lines = [_HEAD]
    seen_ids: set[str] = set()
    for workload in workloads:
        if workload.id in seen_ids:
            continue
        seen_ids.add(workload.id)
        count_text = "seen by its GPUs only" if workload.replicas is None else f"{workload.replicas} seen"
        lines += [
            f"  - id: {_quoted(workload.id)}\n",
            "    mode: observe\n",
            f"    replicas: {{min: 1, max: {max(4, 2 * (workload.replicas or 0))}}}   # {count_text}\n",
            f"    gpus_per_replica: {workload.gpus_per_replica}\n",
            f"    slo: {{ttft_s: {promise.ttft_s:g}, tpot_s: {promise.tpot_s:g}, objective: {promise.objective:g}}}\n",
            f"    # target: {_target(workload.id)}\n",
        ]
    return "".join(lines)


def _target(workload: str) -> str:
    """A first guess for a person to correct: collectors name workloads by namespace and owner where they can."""
    namespace, _, name = workload.rpartition("/")
    place = namespace.partition("/")[0] or "default"
    return f"{{apiVersion: apps/v1, kind: Deployment, namespace: {_quoted(place)}, name: {_quoted(name)}}}"


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


def _summary_lines(path: Path, probes: Sequence[Detection], chosen: dict[str, str], brokers: str | None) -> list[str]:
    lines = []
    for source in probes:
        names = ", ".join(w.id for w in source.workloads[:5]) + (" ..." if len(source.workloads) > 5 else "")
        lines.append(f"Found at {source.address} ({source.kind}): {len(source.workloads)} workloads: {names}")
        lines += [f"left out: {n} samples of {reason}" for reason, n in list(source.unplaced.items())[:3]]
    if "step_s" in chosen:
        lines.append(f"Samples come every {chosen['step_s']} s, so that is the step.")
    lines.append(
        f"Wrote {path}. {'' if probes else 'Declare your workloads in it, then: '}"
        f"{'Next: ' if probes else ''}harmony {'worker' if brokers or not probes else 'run --no-fleet'} --config {path}"
    )
    for source in probes:
        flag = "--server" if source.kind == "prometheus" else "--scrape"
        lines.append(f"and beside it: harmony collect prometheus {flag} {source.address} --config {path}")
    return lines
