"""Every kind of record that HARMONY writes: a specimen of fixed values, how it is written, and how it is read."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from agents.actuation.guard import ApplyGuard, Lease, Overrides
from agents.decide.records import command_record, decision_record, decode_command, decode_decision
from agents.decide.state import pack_commit, unpack_commit
from agents.forecast.commit import CommitBody, decode_commit, restore_state, snapshot_state
from agents.planning.codec import decode_plan, encode_plan
from agents.records import ForecastRecord, Pin
from infra.explain.dead_letters import read_letter
from infra.kafka.tail import TailRecord
from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.log import LogRecord
from streams.pages.codec import PageAssembler
from streams.pages.facts_codec import PageFacts, PageSeries
from streams.records.binary import encode_binary
from streams.records.dead_letters import DeadLetterBox
from streams.records.decode import decode
from streams.records.facts import BatchJob, ClassCounts, Control, FleetFacts, HistogramState, OutcomeFact
from streams.records.schema import (
    DeadLetter,
    encode_batch,
    encode_control,
    encode_fleet,
    encode_outcome,
    encode_packed,
    encode_sample,
    encode_slo,
    encode_tick,
)
from streams.runtime.commits import CommitAssembler, encode_body, encode_commit
from streams.topics import Topics
from streams.windows.coarse import decode_coarse, encode_coarse
from tests.golden import specimens as sp
from tests.streams.pages.page_bytes import encode_page

STAMP_MS = 1_763_636_415_250
TOPICS = Topics()


class Wire(NamedTuple):
    """A record as Kafka holds it; a file has neither key nor headers."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class Kind:
    """One kind of record.

    Attributes:
        write: today's bytes of the specimen; it is given what is stored, whose learned numbers are written again.
        read: what today's code makes of bytes, as plain data.
        version: of the format, by which a reader knows what it cannot read.
        first: the bytes to store where `write` has nothing to read yet.
    """

    name: str
    topic: str
    write: Callable[[Sequence[Wire]], list[Wire]]
    read: Callable[[Sequence[Wire]], Any]
    version: Callable[[Sequence[Wire]], Any]
    first: Callable[[], list[Wire]] | None = None


def plain(value: Any) -> Any:
    """Data as JSON has it, so that what was read can be stored and compared."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple | PageFacts | PageSeries) else value


def kinds() -> list[Kind]:
    """All of them."""
    return [*_telemetry(), *_answers(), *_internal(), *_files()]


def _json_version(wires: Sequence[Wire]) -> Any:
    return msgspec.json.decode(wires[0].value)["v"]


# What others publish, with the encoders that HARMONY's own publishers use.


def _told(source: Source) -> Callable[[Sequence[Wire]], Any]:
    return lambda wires: [plain(decode(w.value, w.key, source, stamp_ms=STAMP_MS)) for w in wires]


def _as_told(wire: Wire, _: Sequence[Wire]) -> list[Wire]:
    return [wire]


def _telemetry() -> list[Kind]:
    w, ts = sp.WORKLOAD, sp.TS_MS
    values: dict[str, float | None] = {"requests_started_total": 48211, "num_requests_running": 41.5, "slo_total": None}
    hist = {"ttft_s": HistogramState((0.5, 1.0), (40112.0, 46020.0), 48170.0, 19877.25)}
    pin = Control("c-1", ts, "pin", w, replicas=3, until_ts_ms=ts + 60_000, by="me", reason="a test")
    two, three = {"slo_total": [1, None]}, {"power_w": [1, float("nan"), 3]}
    made: list[tuple[str, Source, bytes]] = [
        ("requests", "requests", encode_sample("requests", w, "vllm/0", ts, values, hist)),
        ("requests, packed", "requests", encode_packed("requests", w, ["a", "b"], [ts, ts + 1], two)),
        ("gpu", "gpu", encode_sample("gpu", w, "node3/GPU-1", ts, {"sm_active_ratio": 0.83, "power_w": 612})),
        ("gpu, binary", "gpu", encode_binary("gpu", w, ["a", "b", "a"], [ts, ts, ts + 5], three)),
        ("fleet", "requests", encode_fleet(w, "k8s", FleetFacts(ts, 6, 1, 0, 7))),
        ("outcome", "requests", encode_outcome(w, "k8s", OutcomeFact(ts, "c", "ready", 3, 61.5))),
        ("batch", "requests", encode_batch(w, "nightly", ts, [BatchJob(ts + 60_000, 3e6)])),
        ("slo", "requests", encode_slo(w, "gateway", ts, [ClassCounts("chat", 3.0, 4.0)])),
        ("tick", "requests", encode_tick(ts)),
        ("control", "requests", encode_control(pin)),
    ]  # fmt: skip
    return [
        Kind(
            f"telemetry: {name}",
            TOPICS.telemetry_requests if source == "requests" else TOPICS.telemetry_gpu,
            partial(_as_told, Wire(None if name in ("tick", "control") else w.encode(), value)),
            _told(source),
            _header_version if "binary" in name else _json_version,
        )
        for name, source, value in made
    ]


def _header_version(wires: Sequence[Wire]) -> Any:
    value = wires[0].value
    return msgspec.json.decode(value[8 : 8 + int.from_bytes(value[4:8], "little")])["v"]


# What everybody may read.


def _answers() -> list[Kind]:
    decision = decision_record(TOPICS.decisions, "golden", sp.DECISION)
    command = command_record(TOPICS.commands, "golden", sp.COMMAND)
    forecast = Wire(sp.WORKLOAD.encode(), msgspec.json.encode(sp.FORECAST))
    box = DeadLetterBox(TOPICS.dead_letters, TOPICS.telemetry_gpu, 2)
    box.add(LogRecord(17, STAMP_MS, b"key", b"{"), DeadLetter("decode", "the JSON ends early"), published_before=False)
    (letter,) = box.take()

    def read_forecast(wires: Sequence[Wire]) -> Any:
        return plain(msgspec.json.decode(wires[0].value, type=ForecastRecord))

    def read_refused(wires: Sequence[Wire]) -> Any:
        (w,) = wires
        return plain(read_letter(TailRecord(0, 0, STAMP_MS, w.key, w.value, w.headers)))

    def written(out: Any) -> Callable[[Sequence[Wire]], list[Wire]]:
        return lambda _: [Wire(out.key, out.value, tuple(out.headers))]

    return [
        Kind("forecast", TOPICS.forecasts, lambda _: [forecast], read_forecast, _json_version),
        Kind(
            "decision", TOPICS.decisions, written(decision), lambda w: plain(decode_decision(w[0].value)), _json_version
        ),
        Kind("command", TOPICS.commands, written(command), lambda w: plain(decode_command(w[0].value)), _json_version),
        # It is the refused record itself; what is HARMONY's own is in the headers, which have no version.
        Kind("dead letter", TOPICS.dead_letters, written(letter), read_refused, lambda _: None),
    ]


# What only workers read.


def _internal() -> list[Kind]:
    def write_pages(_: Sequence[Wire]) -> list[Wire]:
        records = [pair for page in sp.pages() for pair in encode_page(page, 4, chunk_bytes=400).records]
        return [Wire(*pair) for pair in records]

    def read_pages(wires: Sequence[Wire]) -> Any:
        held = {name for page in sp.pages() for name in page.indicators}
        assembler = PageAssembler(sp.STREAM, 4, tuple(i for i in DEFAULT_CATALOGUE if i.name in held))
        return [plain(done) for record in log_of(wires) for done in assembler.feed(record)]

    def write_coarse(_: Sequence[Wire]) -> list[Wire]:
        return [Wire(b"2939393", part) for part in encode_coarse(sp.COARSE)]

    def write_decided(_: Sequence[Wire]) -> list[Wire]:
        _, records = encode_commit(TOPICS.commits, "decide", 0, 8, "d" * 24, pack_commit(sp.DECIDED))
        return [Wire(r.key, r.value or b"") for r in records]

    def read_decided(wires: Sequence[Wire]) -> Any:
        return plain(unpack_commit(_commit("decide", 0, wires), sp.POLICY, sp.STREAM))

    def read_learned(wires: Sequence[Wire]) -> Any:
        commit = _commit("forecast", 1, wires)
        return _as_then(plain(_restored(commit)), plain(decode_commit(commit.body, sp.STREAM, 1, sp.POLICY.fleet)))

    def write_learned(stored: Sequence[Wire]) -> list[Wire]:
        return _forecast_commit(_restored(_commit("forecast", 1, stored)))

    return [
        Kind("page", TOPICS.pages, write_pages, read_pages, _page_version),
        Kind(
            "coarse row",
            TOPICS.pages_coarse,
            write_coarse,
            lambda w: [plain(decode_coarse(part.value)) for part in w],
            lambda w: msgspec.msgpack.decode(w[0].value)[0],
        ),
        Kind(
            "plan",
            TOPICS.plans,
            lambda _: [Wire(b"1", encode_plan(sp.PLAN))],
            lambda w: plain(decode_plan(w[0].value)),
            lambda w: msgspec.msgpack.decode(zlib.decompress(w[0].value[4:]))["v"],
        ),
        Kind("commit, decide", TOPICS.commits, write_decided, read_decided, _commit_version),
        Kind(
            "commit, forecast",
            TOPICS.commits,
            write_learned,
            read_learned,
            _commit_version,
            first=lambda: _forecast_commit(sp.learned()),
        ),
    ]


def log_of(wires: Sequence[Wire]) -> list[LogRecord]:
    """The records as they would be read from the beginning of a partition."""
    return [LogRecord(offset, STAMP_MS, w.key, w.value) for offset, w in enumerate(wires)]


def _commit(stage: str, partition: int, wires: Sequence[Wire]) -> Any:
    assembler = CommitAssembler(stage, partition)
    for record in log_of(wires):
        assembler.feed(record)
    return assembler.newest


def _restored(commit: Any) -> CommitBody:
    """The body after its numbers were taken into a worker and out again."""
    body = decode_commit(commit.body, sp.STREAM, 1, sp.POLICY.fleet)
    states = {w: snapshot_state(restore_state(w, s, sp.POLICY)) for w, s in body.states.items()}
    return msgspec.structs.replace(body, states=states)


def _forecast_commit(body: CommitBody) -> list[Wire]:
    _, records = encode_commit(TOPICS.commits, "forecast", 1, 5, None, encode_body(body))
    return [Wire(r.key, r.value or b"") for r in records]


def _page_version(wires: Sequence[Wire]) -> Any:
    first = wires[0].value[24:]
    whole = first + b"".join(w.value[24:] for w in wires[1:])
    return msgspec.msgpack.decode(whole[4 : 4 + int.from_bytes(whole[:4], "big")])["v"]


def _commit_version(wires: Sequence[Wire]) -> Any:
    chunk = msgspec.msgpack.decode(wires[0].value)
    body = msgspec.msgpack.decode(zlib.decompress(chunk[8]))
    return [chunk[0], _versions(body)]


def _versions(body: Any) -> Any:
    """All that a body and its parts say of their versions, by name."""
    if not isinstance(body, dict):
        return None
    found = {name: part if name == "v" else _versions(part) for name, part in body.items()}
    return {name: version for name, version in found.items() if version not in (None, {})}


def _as_then(now: Any, then: Any) -> Any:
    """Where there is a newer version of a part, what is made of the older one is its own tests' business."""
    if not isinstance(now, dict) or not isinstance(then, dict):
        return now
    if now.get("v") != then.get("v"):
        return then
    return {name: _as_then(part, then.get(name)) for name, part in now.items()}


# What an actuator keeps on disk.


def _files() -> list[Kind]:
    words = Overrides(stopped="me: a test", pins={sp.WORKLOAD: Pin(3, sp.TS_MS + 60_000, "me", "a test")})
    lease = Lease(1, 9, "c", 4, "c", 4, 4, sp.TS_MS + 75_000)

    def write_guard(_: Sequence[Wire]) -> list[Wire]:
        guard = ApplyGuard(leases={sp.WORKLOAD: lease})
        guard.set_overrides(words, sp.TS_MS)
        return [Wire(None, guard.snapshot_bytes())]

    def read_guard(wires: Sequence[Wire]) -> Any:
        return msgspec.json.decode(ApplyGuard.restore(wires[0].value).snapshot_bytes())

    def write_words(_: Sequence[Wire]) -> list[Wire]:
        return [Wire(None, msgspec.json.encode(words, order="deterministic") + b"\n")]

    def read_words(wires: Sequence[Wire]) -> Any:
        return plain(msgspec.json.decode(wires[0].value, type=Overrides))

    return [
        Kind("file: guard.json", "", write_guard, read_guard, _json_version),
        Kind("file: words.json", "", write_words, read_words, lambda _: None),
    ]
