"""Every reader of bytes that come from elsewhere, as a function that may answer or refuse and nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import msgspec

from agents.decide.records import decode_command, decode_decision
from agents.planning.codec import decode_plan, open_plans
from infra.collect.formats.exposition import UnreadableError, read_exposition
from infra.collect.formats.json_documents import read_documents
from infra.collect.formats.raw_record import UNFORESEEN, RawPoints, read_raw
from infra.collect.points import Point, is_measured
from infra.collect.sources.remote_write import read_remote_write
from infra.page.memory import FleetMemory
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import ContractBroken, LogRecord
from streams.pages.codec import PageAssembler, decode_page, page_key
from streams.records import strict_json
from streams.records.binary import encode_binary
from streams.records.decode import RecordDecoder
from streams.records.fast_reader import SampleReader
from streams.records.schema import DeadLetter
from streams.records.series_index import SeriesIndex
from streams.records.strict_json import MalformedError
from streams.topics import Topics
from streams.windows.coarse import decode_coarse
from tests.fuzz import tables
from tests.fuzz.mutation import Mutator
from tests.fuzz.telemetry import (
    Grammar,
    numbers_in_json,
    numbers_in_otlp_protobuf,
    numbers_in_request,
    numbers_in_text,
)
from tests.infra.collect.samples import TS_MS as EXPORTED_MS
from tests.infra.collect.samples import VLLM
from tests.infra.collect.test_remote_write import written
from tests.infra.collect.writers import otlp, telegraf_v1, telegraf_v2, vector
from tests.infra.page.fleet_records import step_records
from tests.streams.ingest.random_logs import POISON, random_log
from tests.streams.records.test_telemetry_schema import GOLDEN

CONFIG = StreamConfig(step_ms=1_000, grace_ms=1_000, skew_ms=500, context_steps=4)
TOPICS = Topics()
STAMP_MS = 1_763_636_415_000
KEY = b"w"
_NOT_OURS = (msgspec.MsgspecError, UnicodeDecodeError)
_EXPOSED = (VLLM.encode()[:3_000], b"a 1\n# EOF\n", b'a_bucket{le="+Inf"} 3 1700000000.5\n')
# A series index keeps names; a reader of a real worker sweeps them between batches.
_INPUTS_PER_READER = 2_000


@dataclass(frozen=True, slots=True)
class Target:
    """A reader under fuzzing.

    Attributes:
        run: takes bytes, returns a word for what became of them; anything that it raises is a crash.
        draw: makes inputs by the grammar of what is read, beside those that come from changes of the seeds.
        seeds: good and known bad inputs.
        timed: it reads what strangers send, so that no input may hold it up.
        us_per_kib: what it may take beyond a millisecond: records of others hold hundreds of series.
        decoder: it is what every record of telemetry meets first.
        mutator: draws its inputs.
    """

    name: str
    run: Callable[[bytes], str]
    seeds: tuple[bytes, ...]
    timed: bool = True
    us_per_kib: float = 0.0
    decoder: bool = False
    draw: Callable[[Grammar], bytes] | None = None
    mutator: type[Mutator] = Mutator


def targets() -> tuple[Target, ...]:
    """All of them, anew: some keep state."""
    telemetry = {s: tuple(v for source, v in GOLDEN if source == s) + POISON + _logged(s) for s in SOURCES}
    addressed = {"name": "prometheus", "tags": {"url": "http://[::1]:8000/metrics", "host": "h"}, "fields": {"x": 3}}
    bodies = (otlp(), telegraf_v1(), telegraf_v2(), vector(), addressed, {**addressed, "tags": {"url": "http://[::1"}})
    raw = tuple(json.dumps(body).encode() for body in bodies)
    coarse, pages = _internal()
    answers: dict[str, tuple[bytes, ...]] = {}
    for topic, value in step_records(3, 0):
        answers[topic] = (*answers.get(topic, ()), value)
    return (
        *(Target(f"decoder, {s}", _decoder(s), telemetry[s] + _binary(s), decoder=True) for s in SOURCES),
        *(Target(f"batch reader, {s}", _batch(s), telemetry[s] + _binary(s)) for s in SOURCES),
        Target("strict JSON", _refusing(strict_json.read, MalformedError), telemetry["requests"] + raw),
        Target("formats of others", _refusing(_others, MalformedError), raw, us_per_kib=200.0),
        Target("exposition", _refusing(_exposition, UnreadableError), _EXPOSED, us_per_kib=200.0),
        Target("remote write", _refusing(read_remote_write, UnreadableError), _requests()),
        *_telemetry(),
        Target("page chunks", _chunk, pages, timed=False),
        Target("page body", _page_body, tuple(page[24:] for page in pages), timed=False),
        Target("coarse rows", _refusing(decode_coarse, ContractBroken), coarse, timed=False),
        Target("plans", _refusing(decode_plan, ContractBroken), answers[TOPICS.plans], timed=False),
        Target("plans, one at a time", _refusing(_each_plan, ContractBroken), answers[TOPICS.plans], timed=False),
        Target("decisions", _refusing(decode_decision, *_NOT_OURS), answers[TOPICS.decisions], timed=False),
        Target("commands", _refusing(decode_command, *_NOT_OURS), answers[TOPICS.decisions], timed=False),
        *(Target(f"page of {t.rsplit('.', 1)[-1]}", _shown(t), seeds, timed=False) for t, seeds in answers.items()),
        *_files(),
    )


def _files() -> tuple[Target, ...]:
    """Readers of tables, and of the instants in them."""
    by_table = {
        "device CSV": (tables.device_table, tables.DEVICE_SEEDS),
        "load CSV": (tables.load_table("t.csv"), tables.LOAD_SEEDS),
        "request traces": (tables.trace_file(), tables.TRACE_SEEDS),
        "rates": (tables.rate_file(), tables.RATE_SEEDS),
    }
    drawn = tables.ParquetMutator([], random.Random(1))
    parquet = tuple(drawn.draw() for _ in range(20))
    return (
        *(
            Target(f"files, {name}", run, seeds, timed=False, mutator=tables.TableMutator)
            for name, (run, seeds) in by_table.items()
        ),
        Target(
            "files, load Parquet", tables.load_table("t.parquet"), parquet, timed=False, mutator=tables.ParquetMutator
        ),
        Target("files, instants", tables.instant_cell, tables.CELL_SEEDS, timed=False),
    )


def _each_plan(value: bytes) -> None:
    packed = open_plans(value)
    for number in range(len(packed.shown())):
        packed.plan(number)


def _decoder(source: Source) -> Callable[[bytes], str]:
    decoder = RecordDecoder(DEFAULT_CATALOGUE, source, CONFIG.max_record_bytes)

    def run(value: bytes) -> str:
        found = decoder.decode(value, KEY, STAMP_MS)
        return found.code if isinstance(found, DeadLetter) else type(found).__name__

    return run


def _batch(source: Source) -> Callable[[bytes], str]:
    held: list[SampleReader] = []
    read = 0

    def run(value: bytes) -> str:
        nonlocal read
        if read % _INPUTS_PER_READER == 0:
            size, skew = CONFIG.max_record_bytes, CONFIG.skew_ms
            held[:] = [SampleReader(DEFAULT_CATALOGUE, source, size, skew, SeriesIndex())]
        read += 1
        readings = list(held[0].read([LogRecord(read, STAMP_MS, KEY, value)]))
        return ",".join("slow" if reading.run is None else "samples" for reading in readings)

    return run


def _refusing(read: Callable[[bytes], Any], *refusals: type[Exception]) -> Callable[[bytes], str]:
    def run(value: bytes) -> str:
        try:
            read(value)
        except refusals as error:
            return str(getattr(error, "code", type(error).__name__))
        return "read"

    return run


def _others(value: bytes) -> RawPoints:
    try:
        return read_raw(value, STAMP_MS)
    except MalformedError as error:
        if error.detail.startswith(UNFORESEEN):
            raise AssertionError(error.detail) from error
        raise


def _exposition(value: bytes) -> list[Point]:
    return read_exposition(value.decode("utf-8", "replace"), lambda _name: True, STAMP_MS)


def _telemetry() -> Iterator[Target]:
    """Readers of telemetry under the law that every value that comes out stands in the input."""
    texts = ("otlp_json", Grammar.otlp), ("telegraf", Grammar.telegraf), ("vector", Grammar.vector)
    others = ("prometheus-kafka-adapter", Grammar.adapter), ("prometheus-api", Grammar.answer)
    for form, draw in (*texts, *others):
        yield sourced(form, lambda value: _others(value).points, numbers_in_json, draw)
    if find_spec("opentelemetry") is not None:
        read = lambda value: read_raw(value, STAMP_MS, "otlp_proto").points  # noqa: E731
        yield sourced("otlp_proto", read, numbers_in_otlp_protobuf, Grammar.otlp_protobuf)
    yield sourced("JSON documents", _documents, numbers_in_json, Grammar.documents)
    yield sourced("exposition", _exposition, numbers_in_text, Grammar.exposition)
    yield sourced("remote write", read_remote_write, numbers_in_request, Grammar.remote_write)


def sourced(
    form: str,
    read: Callable[[bytes], list[Point]],
    numbers: Callable[[bytes], Container[float]],
    draw: Callable[[Grammar], bytes],
) -> Target:
    """A reader of points with inputs by a grammar; `numbers` are those of an input, found without the reader."""

    def run(value: bytes) -> str:
        try:
            points = read(value)
        except (MalformedError, UnreadableError) as error:
            return str(getattr(error, "code", type(error).__name__))
        found = numbers(value) if points else ()
        for p in points:
            # OTLP's protobuf, and JSON made of it, leaves out a count of 0.
            left_out = p.value == 0.0 and p.name.endswith("_count")
            if is_measured(p.value) and p.value not in found and not left_out:
                raise AssertionError(f"{p} stands nowhere in the input")
        return f"read {min(len(points), 2)}"

    grammar = Grammar(random.Random(form))
    return Target(f"telemetry, {form}", run, tuple(draw(grammar) for _ in range(40)), timed=False, draw=draw)


def _documents(value: bytes) -> list[Point]:
    lines = value.decode("utf-8", "replace").splitlines(keepends=True)
    return [point for points in read_documents(lines, "auto", STAMP_MS, Counter()) for point in points]


def _chunk(value: bytes) -> str:
    assembler = PageAssembler(CONFIG, TOPICS.partitions, DEFAULT_CATALOGUE)
    return _refusing(lambda v: assembler.feed(LogRecord(0, STAMP_MS, page_key("gpu", 0, 1, 0), v)), ContractBroken)(
        value
    )


def _page_body(value: bytes) -> str:
    return _refusing(lambda v: decode_page(v, CONFIG, TOPICS.partitions), ContractBroken)(value)


def _shown(topic: str) -> Callable[[bytes], str]:
    memory = FleetMemory(TOPICS, CONFIG.step_ms)

    def run(value: bytes) -> str:
        before = memory.unreadable
        memory.fold(topic, value)
        return "unreadable" if memory.unreadable > before else "shown"

    return run


# Seeds.


def _logged(source: Source) -> tuple[bytes, ...]:
    log = random_log(1, source, CONFIG.step_ms, CONFIG.grace_ms, CONFIG.skew_ms, 6)
    return tuple(value for *_, value in log if value)[:60]


def _binary(source: Source) -> tuple[bytes, ...]:
    name = "power_w" if source == "gpu" else "slo_total"
    return (
        encode_binary(source, "w", ["a", "b", "a"], [STAMP_MS] * 3, {name: [1.0, 2.0, float("nan")]}),
        encode_binary(source, "w", ["a"], [STAMP_MS], {}),
    )


def _requests() -> tuple[bytes, ...]:
    points = read_exposition(VLLM, lambda name: name.startswith("vllm"), EXPORTED_MS)
    return (written(points[:40]), written(points[:1]), b"")


def _internal() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Bytes as the stages write them to each other."""
    kernel = IngestKernel(0, "gpu", CONFIG, DEFAULT_CATALOGUE, TOPICS)
    log = random_log(2, "gpu", CONFIG.step_ms, CONFIG.grace_ms, CONFIG.skew_ms, 8)
    pages: Sequence[bytes] = [
        out.value for e in kernel.fold([LogRecord(*r) for r in log]) for out in e.commits if out.value is not None
    ]
    packed = [msgspec.msgpack.encode([1, n, ["w"], ["i"], b"\0" * 4, b"\0"]) for n in range(3)]
    return tuple(packed), tuple(pages[-6:])
