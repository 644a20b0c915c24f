"""What `harmony doctor` finds behind the brokers: rights, lag, workers, state, retention, model and clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from time import time

import msgspec

from agents.decide.state import STAGE as DECIDE
from agents.decide.state import DecideCommit
from infra.finding import Finding
from infra.kafka.admin import TopicAdmin
from infra.kafka.retention import RETENTION_REMEDY
from infra.kafka.rights import in_words, rights_of
from infra.kafka.tail import TailRecord, TopicTail
from infra.settings.load import Settings
from infra.settings.weights import allowed_weights
from infra.worker.options import WorkerOptions
from model.network.spec import NO_NETWORK, weights_folder
from streams.log import UNREADABLE, ContractBroken, LogRecord
from streams.pages.codec import slot_of_page
from streams.runtime.commits import CommitAssembler
from streams.windows.read_back import ReadBackSizes, shortages

_SKEW_S = 2.0
# Looks back at most so many stretches for a newest record.
_STRETCHES = 4
# Records of `pages` and `pages.coarse` to judge their sizes by, of at most .9 MB each.
_PAGES_SEEN = 32


def examine_rights(settings: Settings, admin: TopicAdmin) -> Finding:
    """Whether the user of these settings may do what a worker of the configured role does."""
    role = settings.role
    needed = rights_of(settings.topics, WorkerOptions(role=role).roles())
    missing = admin.missing_rights(needed)
    if not missing:
        return Finding("rights", "ok", f"all {len(needed)} that a worker with role {role} needs")
    return Finding(
        "rights", "fail", f"lacks {in_words(missing)}", f"`harmony topics rights --for {role}`, then grant it"
    )


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
            ends.append(next(tail.back(_PAGES_SEEN), []))
    yield _retention(settings, *ends)
    yield _clock(newest)


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
        return Finding("state", "fail", "written by another release", "run that one, or `harmony state reset`")
    wrong = [
        f"{name} is {wanted}, the state has {found}"
        for name, wanted, found in (
            ("fleet", settings.fleet, commit.fleet),
            ("step_s", settings.stream.step_ms / 1_000, commit.step_ms / 1_000),
        )
        if wanted != found
    ]
    if settings.policy.epoch < commit.epoch:
        wrong.append(f"epoch is {settings.policy.epoch}, the state has {commit.epoch}")
    if wrong:
        return Finding("state", "fail", "; ".join(wrong), "set it back, or `harmony state reset`")
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
    kept = topics.kept_bytes()
    short = [clause for p in sorted(sizes) for clause in shortages(p, sizes[p].needed_bytes(), kept)]
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
