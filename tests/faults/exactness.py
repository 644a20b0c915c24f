"""What the logs must hold after any history of faults, from the logs alone.

Stage 1: the independent oracle reads the telemetry log and says which pages there must be.
Stages 2 and 3: an undisturbed worker answers a copy of the very same `pages` (`plans`) log, record by record. Pages and
plans carry the broker stamps they were made with, so a copy changes no byte of an answer and nothing is normalised.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from agents.planning.codec import CONTROLS_PARTITION, decode_plan, plan_key
from infra.explain.dead_letters import UNUSED
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES
from streams.config import StreamConfig
from streams.log import LogRecord
from streams.pages.codec import PageAssembler, StoredPage
from streams.windows.coarse import decode_coarse
from tests.faults.hostile import HostilePipeline
from tests.faults.logs import Entry, Progress, copy_log, read_log
from tests.integration.pipeline import PARTITIONS, Pipeline, stop
from tests.oracles.ingest_oracle import always_published, expected_pages
from tests.oracles.page_check import check_page, oracle_settings

Identity = tuple[object, ...]


@dataclass(slots=True)
class Proof:
    """What was compared. `repeats` are records on the wire beyond the first of their identity, all identical."""

    telemetry: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {name} (+{self.repeats[name]} repeats)" for name, n in self.compared.items())
        return f"{self.telemetry} telemetry records; equal: {kinds}"


def entries_of(pipeline: Pipeline, topic: str) -> list[Entry]:
    """All records of a topic, of a real broker or of one in memory."""
    return pipeline.entries(topic) if isinstance(pipeline, InMemory) else read_log(pipeline.bootstrap, topic)


@runtime_checkable
class InMemory(Protocol):
    """A pipeline that knows its logs."""

    def entries(self, topic: str) -> list[Entry]: ...


def check_everything(pipeline: HostilePipeline) -> Proof:
    """Every stage, after the workers have settled and ended.

    Raises:
        AssertionError: something is missing, too much, or different; says what.
    """
    proof = Proof()
    check_pages(pipeline, proof)
    calm = {role: undisturbed(pipeline, role) for role in ROLES}
    answer_all(calm, pipeline.last_slot)
    for role, reference in calm.items():
        for name in ANSWERS[role]:
            compare(pipeline, reference, name, role, proof)
    print(proof)
    return proof


# Stage 1.


def check_pages(pipeline: Pipeline, proof: Proof) -> None:
    """Pages and dead letters are what the oracle makes of the telemetry log."""
    topics = pipeline.topics
    entries = entries_of(pipeline, topics.pages)
    by_key = unique(entries, lambda e: (e.partition, e.key), "pages", proof)
    stored = _stored_pages(entries, pipeline.stream)
    num_pages = 0
    refused: set[Identity] = set()
    must: set[Identity] = set()
    for source, topic in (("gpu", topics.telemetry_gpu), ("requests", topics.telemetry_requests)):
        telemetry = entries_of(pipeline, topic)
        proof.telemetry += len(telemetry)
        for partition in range(PARTITIONS):
            log = [(e.offset, e.stamp_ms, e.key, e.value) for e in telemetry if e.partition == partition]
            dead: list[int] = []
            want, _ = expected_pages(source, log, oracle_settings(pipeline.stream, pipeline.workloads), dead)
            refused |= {_letter(topic, partition, offset) for offset in dead}
            must |= {_letter(topic, partition, offset) for offset in always_published(dead)}
            found = {slot: page for (p, s, slot), page in stored.items() if (p, s) == (partition, source)}
            assert sorted(found) == [w["slot"] for w in want], f"pages of {source}/{partition}"
            for page in want:
                check_page(found[page["slot"]].page, page)
            num_pages += len(want)
    assert {s for _, s, _ in stored} == set(SOURCES)
    assert len(by_key) >= num_pages == len(stored)
    letters = unique(
        # Notices refuse nothing.
        [e for e in entries_of(pipeline, topics.dead_letters) if ("reason", UNUSED.encode()) not in e.headers],
        lambda e: tuple(value for name, value in e.headers if name in ("topic", "partition", "offset")),
        "dead letters",
        proof,
    )
    # A new life counts its floods anew, so it may publish more of one than the sample, never less.
    assert not (missing := must - letters.keys()), f"dead letters: {len(missing)} of {len(must)} are missing"
    assert not (extra := letters.keys() - refused), f"dead letters: {len(extra)} of records that are not refused"
    assert must


def _letter(topic: str, partition: int, offset: int) -> Identity:
    return topic.encode(), str(partition).encode(), str(offset).encode()


def _stored_pages(entries: list[Entry], config: StreamConfig) -> dict[tuple[int, str, int], StoredPage]:
    stored: dict[tuple[int, str, int], StoredPage] = {}
    for partition in range(PARTITIONS):
        assembler = PageAssembler(config, PARTITIONS, DEFAULT_CATALOGUE)
        for e in entries:
            if e.partition != partition:
                continue
            for page in assembler.feed(LogRecord(e.offset, e.stamp_ms, e.key, e.value)):
                known = stored.setdefault((partition, page.page.source, page.page.slot), page)
                assert known.digest == page.digest, f"two pages of slot {page.page.slot}"
    return stored


# Stages 2 and 3.

ROLES = {"forecast": "pages", "decide": "plans"}
ANSWERS = {
    "forecast": ("forecasts", "plans", "pages_coarse", "commits"),
    "decide": ("decisions", "commands", "commits"),
}


def undisturbed(
    pipeline: HostilePipeline,
    role: str,
    until: Mapping[str, Mapping[int, int]] | None = None,
    name: str = "calm",
    settings: Path | None = None,
) -> Pipeline:
    """A pipeline of its own for one stage, with a copy of the log that the stage reads and with the same settings.

    Args:
        until: topics of which to copy only what is below these offsets: the stage's own output in an earlier life.
        settings: another file than the pipeline's present one.
    """
    calm = Pipeline(
        pipeline.bootstrap,
        f"{name}-{role}-{pipeline.topics.prefix}",
        pipeline.home / f"{name}-{role}",
        pipeline.declared,
        stream=pipeline.stream,
    )
    until = until or {}
    for topic in {ROLES[role], *until}:
        copy_log(pipeline.bootstrap, getattr(pipeline.topics, topic), getattr(calm.topics, topic), until.get(topic))
    text = (settings or pipeline.config).read_text(encoding="utf-8")
    calm.config.write_text(text.replace(pipeline.topics.prefix, calm.topics.prefix), encoding="utf-8")
    return calm


def answer_all(calm: Mapping[str, Pipeline], last_slot: int, program: Sequence[str] = ("infra",)) -> None:
    """For each role, let one worker that nobody disturbs answer what is in the log."""
    workers = {role: reference.start_worker("calm", role, program=program) for role, reference in calm.items()}
    try:
        for role, reference in calm.items():
            progress = Progress(reference.bootstrap, reference.topics)
            done = progress.wait_for_slot(last_slot, (role,), 180)
            at = progress.slots()
            progress.close()
            assert done, f"the undisturbed {role} worker did not finish: {at}\n{reference.log_of('calm')[-3000:]}"
    finally:
        for worker in workers.values():
            stop(worker)
        for reference in calm.values():
            reference.producer.close(1)


def compare(
    pipeline: Pipeline, calm: Pipeline, name: str, role: str, proof: Proof, until: Mapping[int, int] | None = None
) -> None:
    """By identity: nothing missing, nothing extra, no byte different.

    Args:
        until: look at the pipeline's records below these offsets only; then more in the undisturbed log is no harm.
    """
    label = f"{role} commits" if name == "commits" else name
    identity = IDENTITIES[name]

    def records(of: Pipeline, counts: Proof) -> dict[Identity, bytes]:
        entries = entries_of(of, getattr(of.topics, name))
        if until is not None and of is pipeline:
            entries = [e for e in entries if e.offset < until[e.partition]]
        if name == "plans":  # those of control records are not the forecast stage's
            entries = [e for e in entries if e.key != plan_key(CONTROLS_PARTITION)]
        if name == "commits":
            entries = [e for e in entries if (e.key or b"").startswith(role.encode())]
        return unique(entries, lambda e: (e.partition, *identity(e.value or b"")), label, counts)

    want, found = records(calm, Proof()), records(pipeline, proof)
    missing, extra = sorted(want.keys() - found.keys(), key=str), sorted(found.keys() - want.keys(), key=str)
    assert until is not None or not missing, f"{label}: {len(missing)} of {len(want)} missing, first {missing[0]}"
    assert not extra, f"{label}: {len(extra)} beyond {len(want)}, first {extra[0]}"
    different = sorted((k for k in found if want[k] != found[k]), key=str)
    assert not different, (
        f"{label}: {len(different)} of {len(want)} differ, first {different[0]}\n"
        f"undisturbed: {want[different[0]]!r}\nfound:       {found[different[0]]!r}"
    )


def unique(
    entries: list[Entry], identity: Callable[[Entry], Identity], label: str, proof: Proof
) -> dict[Identity, bytes]:
    """Key and value by identity; a repeat must be the record it repeats."""
    found: dict[Identity, bytes] = {}
    for e in entries:
        content = (e.key or b"") + b"\0" + (e.value or b"")
        known = found.setdefault(identity(e), content)
        assert known == content, f"{label}: offset {e.offset} of {e.partition} repeats {identity(e)} with other bytes"
    proof.compared[label] += len(found)
    proof.repeats[label] += len(entries) - len(found)
    return found


def _plan(value: bytes) -> Identity:
    plan = decode_plan(value)
    return plan.partition, plan.slot


def _coarse(value: bytes) -> Identity:
    row = decode_coarse(value)
    return row.index, row.workloads[:1]


def _commit(value: bytes) -> Identity:
    _, stage, partition, sequence, index, *_ = msgspec.msgpack.decode(value)
    return stage, partition, sequence, index


def _workload_at(moment: str) -> Callable[[bytes], Identity]:
    def identity(value: bytes) -> Identity:
        body = json.loads(value)
        return body["workload"], body[moment]

    return identity


IDENTITIES: dict[str, Callable[[bytes], Identity]] = {
    "forecasts": _workload_at("origin_ts_ms"),
    "plans": _plan,
    "pages_coarse": _coarse,
    "commits": _commit,
    "decisions": lambda value: (json.loads(value)["decision_id"],),
    "commands": _workload_at("issued_ts_ms"),
}
