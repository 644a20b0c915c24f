"""A partition of telemetry under construction, and the pages that the ingest kernel makes of it."""

from __future__ import annotations

from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import Emission, LogRecord
from streams.pages.codec import PageAssembler, StoredPage
from streams.pages.page import Page, WorkloadFacts
from streams.records.facts import HistogramState
from streams.records.schema import encode_sample, encode_tick
from streams.topics import Topics

T0 = 1_763_636_400_000  # a slot begins here
CONFIG = StreamConfig(step_ms=1000, grace_ms=500, skew_ms=200, context_steps=4, max_workloads=10)
TOPICS = Topics()


class Log:
    """A partition under construction; times are ms since T0, stamps follow the event time unless told otherwise."""

    def __init__(self, config: StreamConfig = CONFIG, source: Source = "requests") -> None:
        self.config = config
        self.source: Source = source
        self.records: list[LogRecord] = []
        self.kernel = IngestKernel(1, source, config, DEFAULT_CATALOGUE, TOPICS)
        self.emissions: list[Emission] = []

    def put(self, value: bytes | None, stamp: int, workload: str | None = "w") -> None:
        key = None if workload is None else workload.encode()
        self.records.append(LogRecord(len(self.records), T0 + stamp, key, value))
        self.emissions += self.kernel.fold(self.records[-1:])

    def sample(
        self,
        ts: int,
        values: dict[str, float | None],
        stamp: int | None = None,
        workload: str = "w",
        source: str = "a",
        hist: dict[str, HistogramState] | None = None,
    ) -> None:
        body = encode_sample(self.source, workload, source, T0 + ts, values, hist)
        self.put(body, ts if stamp is None else stamp, workload)

    def tick(self, ts: int, stamp: int | None = None) -> None:
        self.put(encode_tick(T0 + ts), ts if stamp is None else stamp, None)

    @property
    def stored(self) -> list[StoredPage]:
        reader = PageAssembler(self.config, TOPICS.partitions, DEFAULT_CATALOGUE)
        records = [r for e in self.emissions for r in e.commits]
        assert all((r.topic, r.partition) == (TOPICS.pages, 1) for r in records)
        return [p for i, r in enumerate(records) for p in reader.feed(LogRecord(i, 0, r.key, r.value))]

    @property
    def pages(self) -> list[Page]:
        """Without the slot before T0: it is still open, and empty, when the first event time is heard."""
        return [p.page for p in self.stored if p.page.slot >= T0 // 1000]

    def cells(self, indicator: str, workload: str = "w") -> list[float | None]:
        """The indicator's value per page, None where it is not observed or the workload is absent."""
        return [cell(page, indicator, workload) for page in self.pages]


def cell(page: Page, indicator: str, workload: str = "w") -> float | None:
    if workload not in page.workloads:
        return None
    at = page.workloads.index(workload), page.indicators.index(indicator)
    return float(page.values[at]) if page.observed[at] else None


def facts(page: Page, workload: str = "w") -> WorkloadFacts:
    return page.facts[page.workloads.index(workload)]


def slots(log: Log) -> list[int]:
    return [page.slot - T0 // 1000 for page in log.pages]
