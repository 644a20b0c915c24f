"""The windower and its pages as hypothesis drives them: any telemetry, any batches, deaths and torn pages anywhere."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.pages.codec import PageAssembler
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_packed, encode_sample, encode_tick
from streams.topics import Topics
from tests.oracles.ingest_oracle import expected_pages
from tests.oracles.page_check import check_page, oracle_settings
from tests.oracles.record_oracle import RawRecord
from tests.streams.ingest.random_logs import POISON, START_MS

TOPICS = Topics()
CONFIG = StreamConfig(
    step_ms=1_000, grace_ms=700, skew_ms=300, context_steps=4, max_workloads=3, source_silence_steps=2
)
WORKLOADS = ("a", "b", "c", "d")
PODS = ("p0", "p1")


class IngestMachine(RuleBasedStateMachine):
    """One partition of one topic: a log that grows, a kernel that lives and dies, the pages topic.

    Whatever happens, what is in `pages` is what the oracle makes of the log, each page once or again byte for byte.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.log: list[RawRecord] = []
        self.topic: list[tuple[bytes, bytes]] = []
        self.unconfirmed = 0
        self.counters: dict[tuple[str, str], int] = {}

    @initialize(source=st.sampled_from(SOURCES))
    def begin(self, source: Source) -> None:
        self.source: Source = source
        self.kernel = self._restored()

    # Telemetry.

    def _append(self, key: bytes | None, value: bytes | None) -> None:
        self.log.append((len(self.log), self.now_ms, key, value))

    def _values(self, workload: str, pod: str, grow: int) -> dict[str, float]:
        total = self.counters[workload, pod] = max(0, self.counters.get((workload, pod), 0) + grow)
        if self.source == "gpu":
            return {"sm_active_ratio": grow % 10 / 10, "power_w": float(grow), "energy_total_j": float(total)}
        return {
            "requests_started_total": float(total),
            "slo_total": float(total),
            "num_requests_waiting": float(grow % 5),
        }

    @rule(
        workload=st.sampled_from(WORKLOADS),
        pod=st.sampled_from(PODS),
        ahead_ms=st.integers(-3_500, 400),
        grow=st.integers(-30, 60),
    )
    def sample(self, workload: str, pod: str, ahead_ms: int, grow: int) -> None:
        values = self._values(workload, pod, grow)
        self._append(workload.encode(), encode_sample(self.source, workload, pod, self.now_ms + ahead_ms, values))

    @rule(workload=st.sampled_from(WORKLOADS), ahead_ms=st.lists(st.integers(-2_500, 350), min_size=1, max_size=5))
    def pack(self, workload: str, ahead_ms: list[int]) -> None:
        name = "power_w" if self.source == "gpu" else "num_requests_running"
        pods = [PODS[n % 2] for n in range(len(ahead_ms))]
        times = [self.now_ms + ms for ms in ahead_ms]
        columns = {name: [float(n) for n in range(len(pods))]}
        self._append(workload.encode(), encode_packed(self.source, workload, pods, times, columns))

    @rule(workload=st.sampled_from(WORKLOADS), ahead_ms=st.integers(-2_500, 350), ready=st.integers(0, 9))
    def fleet(self, workload: str, ahead_ms: int, ready: int) -> None:
        self._append(workload.encode(), encode_fleet(workload, "k8s", FleetFacts(self.now_ms + ahead_ms, ready, 0, 0)))

    @rule(behind_ms=st.integers(-200, 2_000))
    def tick(self, behind_ms: int) -> None:
        self._append(None, encode_tick(self.now_ms - behind_ms))

    @rule(value=st.sampled_from((*POISON, None)), key=st.sampled_from((None, b"a", b"zzz")))
    def poison(self, value: bytes | None, key: bytes | None) -> None:
        self._append(key, value)

    @precondition(lambda self: self.log)
    @rule(back=st.integers(1, 6))
    def repeat(self, back: int) -> None:
        _, _, key, value = self.log[-min(back, len(self.log))]
        self._append(key, value)

    @rule(ms=st.integers(0, 2_500))
    def time_goes_on(self, ms: int) -> None:
        self.now_ms += ms

    # The kernel.

    def _restored(self) -> IngestKernel:
        assembler = PageAssembler(CONFIG, TOPICS.partitions, DEFAULT_CATALOGUE)
        pages: list[Any] = []
        for offset, (key, value) in enumerate(self.topic):
            pages += [(p.page, p.digest) for p in assembler.feed(LogRecord(offset, 0, key, value))]
        kernel = IngestKernel.restore(0, self.source, CONFIG, DEFAULT_CATALOGUE, TOPICS, pages)
        self.read_to = kernel.resume_offset or 0
        self.unconfirmed = 0
        return kernel

    @rule(most=st.integers(1, 12))
    def fold(self, most: int) -> None:
        batch = [LogRecord(*r) for r in self.log[self.read_to : self.read_to + most]]
        self.read_to += len(batch)
        written = [(c.key or b"", c.value or b"") for e in self.kernel.fold(batch) for c in e.commits]
        self.topic += written
        self.unconfirmed = len(written)

    @rule(lost=st.integers(0, 5))
    def die(self, lost: int) -> None:
        """Of the pages of the last fold, the newest never reached the broker."""
        gone = min(lost, self.unconfirmed)
        self.topic = self.topic[: len(self.topic) - gone]
        self.kernel = self._restored()

    def teardown(self) -> None:
        if not hasattr(self, "kernel"):
            return
        while self.read_to < len(self.log):
            self.fold(100)
        want, counters = expected_pages(self.source, self.log, oracle_settings(CONFIG))
        unique = list(dict.fromkeys(self.topic))
        assembler = PageAssembler(CONFIG, TOPICS.partitions, DEFAULT_CATALOGUE)
        pages = [p for n, (k, v) in enumerate(unique) for p in assembler.feed(LogRecord(n, 0, k, v))]
        assert [p.page.slot for p in pages] == [page["slot"] for page in want]
        for stored, page in zip(pages, want, strict=True):
            check_page(stored.page, page)
        found = self.kernel.counters
        assert {name: getattr(found, name) for name in counters} == counters


TestIngestMachine = IngestMachine.TestCase
TestIngestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
