"""`harmony doctor`: what this machine and cluster have, what is missing, and what to do about it."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from time import time
from typing import Literal

import msgspec

from agents.decide.state import STAGE as DECIDE
from agents.decide.state import DecideCommit
from agents.policy import WorkloadSpec
from agents.records import Decision, Target
from infra.actuate.actuator import NotApplied
from infra.actuate.assembly import targets_of
from infra.actuate.kubernetes import gpu_difference
from infra.actuate.kubernetes_api import KubernetesApi, find_access
from infra.console.errors import HarmonyError
from infra.console.host import is_free
from infra.console.text import some
from infra.kafka.admin import TopicAdmin
from infra.kafka.discovery import read_run_state
from infra.kafka.embedded import MIN_FREE_BYTES
from infra.kafka.jars import KAFKA_VERSION, damaged_or_missing, find_java, jar_cache, read_pins
from infra.kafka.retention import RETENTION_REMEDY
from infra.kafka.rights import rights_of, rights_text
from infra.kafka.tail import TailRecord, TopicTail
from infra.kafka.transactions import transactions_of
from infra.observability.probes import check_closed, web_tls
from infra.operate.commands import newest_decisions
from infra.operate.problems import recent_letters
from infra.settings.load import Settings, require_chosen
from infra.settings.weights import allowed_weights
from infra.worker.options import WorkerOptions
from model.network.spec import NO_NETWORK, weights_folder
from streams.log import UNREADABLE, ContractBroken, LogRecord
from streams.pages.codec import slot_of_page
from streams.runtime.commits import CommitAssembler
from streams.runtime.transactions import overdue
from streams.windows.coarse import ReadBackSizes, shortages

# One line of `harmony doctor`.


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `remedy` is empty when nothing is to be done."""

    check: str
    status: Literal["ok", "note", "fail"]
    detail: str
    remedy: str = ""


# What `harmony doctor` finds behind the brokers: rights, lag, workers, state, retention, model and clocks.


_SKEW_S = 2.0
# Looks back at most so many stretches for a newest record.
_STRETCHES = 4
# Nothing that deletes: the settings at hand may be those of another fleet, or of another shell.
_OTHER_SETTINGS = (
    "run doctor with the settings of this fleet's workers (--config, HARMONY_*); if these are they, set the keys back"
)
# Records of `pages` and `pages.coarse` to judge their sizes by, of at most .9 MB each.
_NUM_PAGES = 32


def examine_rights(settings: Settings, admin: TopicAdmin) -> Finding:
    """Whether the user of these settings may do what a worker of the configured role does."""
    role = settings.role
    needed = rights_of(settings.topics, WorkerOptions(role=role).roles())
    missing = admin.missing_rights(needed)
    if not missing:
        return Finding("rights", "ok", f"all {len(needed)} that a worker with role {role} needs")
    return Finding(
        "rights", "fail", f"lacks {rights_text(missing)}", f"`harmony topics rights --for {role}`, then grant it"
    )


def examine_transactions(settings: Settings, brokers: str, admin: TopicAdmin) -> Finding:
    """Whether a publisher's open transaction holds up a topic."""
    found, num_topics = transactions_of(settings.topics, admin, brokers, settings.kafka_client_options())
    if not found:
        return Finding("transactions", "ok", f"none is open on {num_topics} topics")
    oldest = next(iter(overdue(found)), found[0])
    more = f"; and {len(found) - 1} more partitions" if len(found) > 1 else ""
    if not overdue(found):
        return Finding("transactions", "note", oldest.cause() + more, "none, if it ends soon")
    return Finding("transactions", "fail", oldest.cause() + more, oldest.remedy(brokers))


def examine_letters(settings: Settings, brokers: str) -> Iterator[Finding]:
    """Refused records of the last hour, and telemetry that is accepted and cannot be used."""
    topic = settings.topics.dead_letters
    try:
        with TopicTail(brokers, topic, security=settings.kafka_client_options()) as tail:
            letters = recent_letters(tail)
    except HarmonyError as error:
        yield Finding("refused", "note", "refused records cannot be counted", error.message)
        return
    if letters.refused:
        yield Finding("refused", "note", f"within the hour: {letters.refused}", "`harmony dlq list` shows them")
    else:
        yield Finding("refused", "ok", "no record within the hour")
    if letters.notices:
        sentences = some([notice.sentence() for notice in letters.notices], _MAX_ITEMS)
        yield Finding("telemetry", "note", sentences, "correct what publishes it; docs/formats names every field")
    else:
        yield Finding("telemetry", "ok", "no worker reports telemetry that it cannot use")


def examine_state(settings: Settings, brokers: str, admin: TopicAdmin) -> Iterator[Finding]:
    """Lag and members of the workers' group, the newest commit record of the last stage, retention, and clocks."""
    topics, security = settings.topics, settings.kafka_client_options()
    members, offsets = admin.group(f"{topics.prefix}workers")
    lags = []
    newest: list[TailRecord] = []
    for topic in (topics.telemetry_gpu, topics.telemetry_requests, topics.pages, topics.plans):
        with TopicTail(brokers, topic, security=security) as tail:
            bounds = tail.bounds()
            lags += [(topic, p, end - offsets.get((topic, p), begin)) for p, (begin, end) in bounds.items()]
            if topic == topics.telemetry_requests:
                newest += [stretch[-1] for stretch in islice(tail.back(), 1) if stretch]
    yield _workers(members)
    yield _lag(lags, bool(offsets))
    with TopicTail(brokers, topics.commits, security=security) as tail:
        yield _state(settings, tail)
    ends = []
    for topic in (topics.pages, topics.pages_coarse):
        with TopicTail(brokers, topic, security=security) as tail:
            ends.append(next(tail.back(_NUM_PAGES), []))
    yield _retention(settings, *ends)
    yield _clock(newest)
    with TopicTail(brokers, topics.decisions, security=security) as tail:
        yield examine_maxima(settings, newest_decisions(islice(tail.back(), _STRETCHES)).values())


def examine_maxima(settings: Settings, newest: Iterable[Decision]) -> Finding:
    """Whether a declared maximum lies below what is ready, so that HARMONY would take replicas away.

    Args:
        newest: decision of each workload.
    """
    ready = {d.workload: d.replicas.ready or 0 for d in newest if d.action != "retired"}
    low = [
        f"{spec.id}: at most {spec.max_replicas} declared, {ready[spec.id]} ready"
        for spec in settings.policy.workloads
        if ready.get(spec.id, 0) > spec.max_replicas
    ]
    if not low:
        return Finding("maximum", "ok", "none declared is below what is ready")
    return Finding(
        "maximum", "note", some(low, _MAX_ITEMS), "raise replicas.max, or replicas are taken away, not for lack of load"
    )


def _workers(members: list[str]) -> Finding:
    if members:
        return Finding("workers", "ok", f"{len(members)} in the group: {', '.join(members)}")
    return Finding("workers", "note", "none in the group", "start them: `harmony worker`")


def _lag(lags: list[tuple[str, int, int]], any_offsets: bool) -> Finding:
    topic, partition, most = max(lags, key=lambda row: row[2], default=("", 0, 0))
    if not any_offsets:
        return Finding("lag", "note", "the group has committed nothing yet")
    if most <= 10_000:
        return Finding("lag", "ok", f"at most {most} records, in {topic}/{partition}")
    return Finding(
        "lag", "fail", f"{most} records in {topic}/{partition}", "more workers or partitions; see the runbook for lag"
    )


def _state(settings: Settings, tail: TopicTail) -> Finding:
    records: list[TailRecord] = []
    for stretch in islice(tail.back(), _STRETCHES):
        records = [*stretch, *records]
        assembler = CommitAssembler(DECIDE, 0)
        try:
            for r in records:
                if r.partition == 0:
                    assembler.feed(LogRecord(r.offset, r.stamp_ms, r.key, r.value))
        except ContractBroken:
            # A stretch that begins in the middle may look torn; the next one reaches further back.
            continue
        if assembler.newest is not None:
            return _judged(settings, assembler.newest.body, assembler.newest.stamp_ms)
    if not records:
        return Finding("state", "note", "none yet: workers begin with the telemetry that is retained")
    return Finding("state", "fail", "no commit record can be read", "see docs/operations/state.md")


def _judged(settings: Settings, body: bytes, stamp_ms: int) -> Finding:
    try:
        commit = msgspec.msgpack.decode(body, type=DecideCommit)
    except UNREADABLE:
        remedy = "run the release that wrote it, or upgrade as docs/operations/upgrade.md describes"
        return Finding("state", "fail", "written by another release", remedy)
    wrong = [
        f"{name} is {expected}, the state has {actual}"
        for name, expected, actual in (
            ("fleet", settings.fleet, commit.fleet),
            ("step_s", settings.stream.step_ms / 1_000, commit.step_ms / 1_000),
        )
        if expected != actual
    ]
    if settings.policy.epoch < commit.epoch:
        wrong.append(f"epoch is {settings.policy.epoch}, the state has {commit.epoch}")
    if wrong:
        return Finding("state", "fail", "; ".join(wrong), _OTHER_SETTINGS)
    age_s = max(0.0, time() - stamp_ms / 1_000)
    detail = f"{len(commit.state.workloads)} workloads, epoch {commit.epoch}, written {age_s:.0f} s ago"
    if age_s > max(300.0, 20 * settings.stream.step_ms / 1_000):
        return Finding(
            "state", "note", detail, "nothing has been decided since: are workers running, is telemetry coming?"
        )
    return Finding("state", "ok", detail)


def _retention(settings: Settings, pages: Sequence[TailRecord], coarse: Sequence[TailRecord]) -> Finding:
    topics = settings.topics
    sizes: defaultdict[int, ReadBackSizes] = defaultdict(lambda: ReadBackSizes(topics, settings.stream.context_steps))
    try:
        for r in pages:
            sizes[r.partition].pages.add(slot_of_page(r.key), r.value)
        for r in coarse:
            sizes[r.partition].coarse.add(int(r.key or b""), r.value)
    except ValueError:
        return Finding(
            "retention", "fail", "a record of somebody else on an internal topic", "see docs/operations/state.md"
        )
    kept_bytes = topics.retention_bytes()
    short = [clause for p in sorted(sizes) for clause in shortages(p, sizes[p].needed_bytes(), kept_bytes)]
    if short:
        return Finding("retention", "note", "; ".join(short), RETENTION_REMEDY)
    return Finding(
        "retention", "ok", f"{topics.pages} and {topics.pages_coarse} keep what a restart of this fleet reads"
    )


def _clock(newest: list[TailRecord]) -> Finding:
    if not newest:
        return Finding("clock", "note", "no telemetry to compare with")
    ahead_s = newest[0].stamp_ms / 1_000 - time()
    if ahead_s > _SKEW_S:
        return Finding(
            "clock", "fail", f"{ahead_s:.1f} s behind the brokers'", "run a time service on both (chrony, ntpd)"
        )
    return Finding("clock", "ok", f"newest telemetry was stamped {max(0.0, -ahead_s):.1f} s ago")


def examine_model(settings: Settings) -> Finding:
    """Whether the weights that the settings name would be used."""
    weights = settings.advanced.model.weights
    if weights == NO_NETWORK:
        return Finding("model", "ok", "baselines only")
    refused: list[str] = []
    if allowed_weights(weights, settings.advanced.model.allowed_digests, refused.append) != weights:
        return Finding("model", "fail", refused[0], "see advanced.model; until then the baselines forecast")
    try:
        from model.network.checkpoint import CheckpointError, load

        loaded = load(weights_folder(weights))
    except CheckpointError as error:
        return Finding("model", "fail", str(error), "until then the baselines forecast")
    return Finding("model", "ok", f"{weights}, digest {loaded.digest[:12]}")


_CACHE_BYTES = 100 << 20
_MAX_ITEMS = 3
_FEW_STEPS = 4  # of a start: by when a jump is seen and a replica ordered, much of it has been missed
_ENOUGH_STEPS = 6


def examine(settings: Settings, brokers: str | None) -> Iterator[Finding]:
    """Findings, cheapest first; never raises for what it finds. `brokers` is None when none are named or running."""
    yield _python()
    yield _java()
    yield _jars()
    yield _disk("state disk", settings.state_dir, MIN_FREE_BYTES, "HARMONY_STATE_DIR")
    # It holds what the embedded Kafka needs, and may be read-only where all is there.
    is_needed = not settings.brokers and damaged_or_missing(read_pins(), jar_cache())
    cache_bytes = _CACHE_BYTES if is_needed else 0
    yield _disk("cache disk", jar_cache(), cache_bytes, "XDG_CACHE_HOME")
    yield _web_port(settings)
    yield from _web_access(settings)
    yield _gpu()
    yield examine_model(settings)
    yield from _plugins(settings)
    yield _sight(settings)
    yield _step(settings)
    yield _capacity(settings)
    yield from _target_gpus(settings)
    yield from _cluster(settings, brokers)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", f"{version} at {sys.executable}")


def _java() -> Finding:
    try:
        java = find_java()
    except HarmonyError as error:
        return Finding("java", "fail", "none that can run Kafka", error.message)
    return Finding("java", "ok", f"Java {java.major} from {java.origin}, {java.binary}")


def _jars() -> Finding:
    pins, cache = read_pins(), jar_cache()
    bad = damaged_or_missing(pins, cache)
    if not bad:
        return Finding("kafka jars", "ok", f"Kafka {KAFKA_VERSION}, {len(pins)} jars checked in {cache}")
    if len(bad) == len(pins):
        return Finding("kafka jars", "note", f"not in {cache} yet", "the first `harmony run` fetches 45 MB, once")
    return Finding(
        "kafka jars",
        "note",
        f"{len(bad)} of {len(pins)} missing or damaged in {cache}",
        "the next `harmony run` without --offline fetches them again",
    )


def _disk(check: str, path: Path, needed: int, variable: str) -> Finding:
    remedy = f"choose another with {variable}"
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(check, "fail", f"{path}: {error.strerror}", remedy)
    detail = f"{free / 1e9:.1f} GB free at {existing}"
    try:
        if needed:
            # Rights alone do not tell: a mount may be read-only. The file has no name and leaves nothing.
            with TemporaryFile(dir=existing):
                pass
    except OSError as error:
        return Finding(
            check, "fail", f"{existing} cannot be written: {error.strerror}", f"make it writable, or {remedy}"
        )
    if free >= needed:
        return Finding(check, "ok", detail)
    return Finding(check, "fail", detail, f"free at least {needed >> 20} MB there")


def _web_port(settings: Settings) -> Finding:
    port = settings.web_port
    if port == 0 or is_free(port):
        return Finding("web port", "ok", f"{port or 'any'} is free")
    run = read_run_state(settings.state_dir)
    if run is not None and run.web.rstrip("/").endswith(f":{port}"):
        return Finding("web port", "ok", f"{port} is our own: harmony run, process {run.pid}, at {run.web}")
    return Finding("web port", "fail", f"{port} is in use by another program", "set HARMONY_WEB_PORT to another port")


def _web_access(settings: Settings) -> Iterator[Finding]:
    """Where a worker would not serve its page, and so not start."""
    token = settings.worker.metrics_token
    try:
        secret = token.get_secret_value() if token else None
        check_closed(settings.web_host, settings.web_port, secret, web_tls(settings.worker))
    except HarmonyError as error:
        yield Finding("web access", "fail", "a worker would not start", error.message)


def _plugins(settings: Settings) -> Iterator[Finding]:
    """Of the chosen ones, whether they are installed here; a worker does not start without."""
    chosen = settings.advanced.plugins
    names = [f"{kind} {name}" for kind, name in (("forecaster", chosen.forecaster), ("policy", chosen.policy)) if name]
    try:
        require_chosen(settings)
    except HarmonyError as error:
        yield Finding("plug-ins", "fail", f"chosen: {', '.join(names)}", error.message)
    else:
        if names:
            yield Finding("plug-ins", "ok", ", ".join(names))


def _sight(settings: Settings) -> Finding:
    """Whether forecasts reach as far as the declared starts take; beyond, no replica is given up."""
    step_s = settings.stream.step_ms / 1000
    sight_s = settings.policy.max_horizon * step_s
    late = sorted((w for w in settings.policy.workloads if w.lead_time_s > sight_s), key=lambda w: -w.lead_time_s)
    reach = f"{settings.policy.max_horizon} steps of {step_s:g} s reach {sight_s:g} s"
    if not late:
        return Finding("sight", "ok", f"{reach}, as far as declared starts take")
    return Finding(
        "sight",
        "note",
        f"{reach}, starts take longer: {_with_starts(late)}; until they are seen to be faster these give no replica up",
        f"set advanced.planning.max_horizon to {math.ceil(late[0].lead_time_s / step_s)} or more",
    )


def _step(settings: Settings) -> Finding:
    """Whether a step is short beside a start: what jumps is seen at its end (docs/lab/replay.md, "Short steps")."""
    step_s = settings.stream.step_ms / 1000
    quick = sorted(
        (w for w in settings.policy.workloads if w.lead_time_s < _FEW_STEPS * step_s), key=lambda w: w.lead_time_s
    )
    if not quick:
        return Finding("step", "ok", f"{step_s:g} s, short beside declared starts")
    return Finding(
        "step",
        "note",
        f"of {step_s:g} s is long beside starts of {_with_starts(quick)}: jumps of their load are seen late",
        f"set step_s to {_short(quick[0].lead_time_s / _ENOUGH_STEPS)} or less, if sources report as often",
    )


def _with_starts(workloads: Sequence[WorkloadSpec]) -> str:
    """The first of them, with how long their starts take."""
    return some([f"{w.id} ({w.lead_time_s:g} s)" for w in workloads], _MAX_ITEMS)


def _short(seconds: float) -> str:
    """A step in whole seconds, from one on."""
    return f"{math.floor(seconds) if seconds >= 1 else seconds:g}"


def _capacity(settings: Settings) -> Finding:
    """Whether it is declared what a replica carries; until it is learned, plans rest on nothing else."""
    declared = settings.policy.workloads
    silent = [w.id for w in declared if w.capacity_rps is None and w.capacity_tokens_per_s is None]
    if not silent:
        return Finding("capacity", "ok", f"declared of all {len(declared)} workloads")
    return Finding(
        "capacity",
        "note",
        f"not declared, held until learned under load: {some(silent, _MAX_ITEMS)}",
        "harmony capacity finds one, from a load test or by model and GPU",
    )


def _target_gpus(settings: Settings) -> Iterator[Finding]:
    """Whether targets ask for as many GPUs as are declared; outside a cluster nobody is asked."""
    targets = targets_of(settings)
    if not targets or not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return
    declared = {spec.id: spec.gpus_per_replica for spec in settings.policy.workloads}
    check, differences, unread = "target gpus", list[str](), list[str]()
    try:
        asked = asyncio.run(_asked_gpus(targets))
    except HarmonyError as error:
        yield Finding(check, "note", "the API server cannot be asked", error.message)
        return
    for workload, gpus in asked.items():
        if isinstance(gpus, str):
            unread.append(f"{workload} ({gpus})")
        elif told := gpu_difference(targets[workload], declared[workload], gpus):
            differences.append(f"{workload}: {told}")
    if differences:
        yield Finding(check, "note", some(differences, _MAX_ITEMS), "correct gpus_per_replica, or the target")
    if unread:
        remedy = "grant it with infra/deploy/kubernetes/rbac.yaml"
        yield Finding(check, "note", f"cannot be read of {some(unread, _MAX_ITEMS)}", remedy)
    if not differences and not unread:
        yield Finding(check, "ok", f"as declared of all {len(targets)} targets")


async def _asked_gpus(targets: Mapping[str, Target]) -> dict[str, Mapping[str, int] | str]:
    """By workload the GPUs of one replica, or why they cannot be read."""
    asked: dict[str, Mapping[str, int] | str] = {}
    async with KubernetesApi(find_access()) as api:
        for workload, target in targets.items():
            try:
                asked[workload] = await api.gpus(target)
            except NotApplied as error:
                asked[workload] = error.detail
    return asked


def _gpu() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("gpu", "note", "none seen (no nvidia-smi); the model runs on the CPU")
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return Finding("gpu", "note", "nvidia-smi fails; the model runs on the CPU", "check the NVIDIA driver")
    names = [line.split(" (UUID")[0] for line in listed.splitlines()]
    return Finding("gpu", "ok", "; ".join(names) or "none listed")


def _cluster(settings: Settings, brokers: str | None) -> Iterator[Finding]:
    if brokers is None:
        yield Finding("brokers", "note", "none named, none running", "`harmony run` starts one; or give --brokers")
        return
    try:
        with TopicAdmin(brokers, settings.kafka_client_options()) as admin:
            yield Finding("brokers", "ok", f"{brokers} answers")
            topics = _topics(settings, admin)
            yield topics
            yield examine_rights(settings, admin)
            yield examine_transactions(settings, brokers, admin)
            yield from examine_letters(settings, brokers)
            if topics.status == "ok":
                yield from examine_state(settings, brokers, admin)
    except HarmonyError as error:
        yield Finding("brokers", "fail", f"{brokers} is not usable", error.message)


def _topics(settings: Settings, admin: TopicAdmin) -> Finding:
    specs = settings.topics.specs()
    differences = admin.differences(specs)
    if not differences:
        return Finding("topics", "ok", f"all {len(specs)} of prefix {settings.topic_prefix!r} are as they must be")
    missing = sum(difference.kind == "missing" for difference in differences)
    summary = "; ".join(map(str, differences[:_MAX_ITEMS])) + (
        f"; and {len(differences) - _MAX_ITEMS} more" if len(differences) > _MAX_ITEMS else ""
    )
    remedy = "`harmony topics create`" if missing == len(differences) else "`harmony topics check` lists what to change"
    return Finding("topics", "fail", summary, remedy)
