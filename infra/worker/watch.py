"""What a worker tells of itself once a second: lag, open transactions, silent and incomplete sources, retention."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Protocol, runtime_checkable

import structlog

from infra.kafka.retention import RetentionWatch
from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from infra.observability.stage_metrics import DecideMetrics
from infra.settings.load import Settings
from infra.worker.notices import TelemetryNotices
from streams.catalogue import SOURCES, Source
from streams.log import OutRecord
from streams.runtime.app import StageHost
from streams.runtime.transactions import LogEnd, Place, TransactionWatch, overdue

# Notices a telemetry source without a page or tick: the forecast stage waits for it, so decisions stop.


# (source, partition) -> newest closed slot; None before the first.
Closed = Mapping[tuple[Source, int], int | None]


@runtime_checkable
class ReadsPages(Protocol):
    """A kernel that closes slots of several sources: the forecast stage's, of which other workers know nothing."""

    def closed_slots(self) -> Mapping[Source, int]: ...


@runtime_checkable
class ReadsSource(Protocol):
    """A kernel that closes slots of one source: the ingest stage's, likewise."""

    def closed_slot(self) -> tuple[Source, int | None]: ...


class SourceWatch:
    """Remembers when each partition of each source last went on.

    Args:
        patience_s: a partition that has not closed a slot for so long is silent.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._progress: dict[tuple[Source, int], tuple[int | None, float]] = {}

    def silent(self, closed: Closed, now_s: float) -> dict[Source, list[int]]:
        """Silent partitions of each source that this worker sees; a partition new to it begins its patience now."""
        for key in self._progress.keys() - closed.keys():
            del self._progress[key]
        silent: dict[Source, list[int]] = {source: [] for source, _ in sorted(closed)}
        for key, slot in sorted(closed.items(), key=lambda item: item[0]):
            previous = self._progress.get(key)
            if previous is None or previous[0] != slot:
                self._progress[key] = slot, now_s
            elif now_s - previous[1] > self._patience_s:
                silent[key[0]].append(key[1])
        return silent


def closed_slots(kernels: Iterable[tuple[int, object]]) -> Closed:
    """Newest closed slot of every source partition that these (partition, kernel) pairs read, whichever knows more."""
    closed: dict[tuple[Source, int], int | None] = {}
    for partition, kernel in kernels:
        if isinstance(kernel, ReadsSource):
            slots: dict[Source, int | None] = dict([kernel.closed_slot()])
        elif isinstance(kernel, ReadsPages):
            closed_by_source = kernel.closed_slots()
            slots = {source: closed_by_source.get(source) for source in SOURCES}
        else:
            continue
        for source, slot in slots.items():
            before = closed.get((source, partition))
            closed[source, partition] = slot if before is None else max(before, slot if slot is not None else before)
    return closed


_WATCH_S = 1.0

log = structlog.get_logger()


class WorkerWatch:
    """Looks at the lanes of a worker.

    Args:
        host: whose lanes.
        stages: of the worker; each has a lag.
        decided: what the decide stage tells, where the worker has that role.
        ends: of the logs that its lanes read, as last asked for.
        brokers: for remedies.
    """

    def __init__(
        self,
        settings: Settings,
        host: StageHost,
        stages: Iterable[str],
        health: Health,
        meter: PrometheusMeter,
        decided: DecideMetrics | None,
        ends: Callable[[], Mapping[Place, LogEnd]] = dict,
        brokers: str = "",
    ) -> None:
        self._host, self._stages, self._health, self._meter = host, tuple(stages), health, meter
        self._decided = decided
        self._sources = SourceWatch(settings.stream.source_silence_steps * settings.stream.step_ms / 1000)
        self._retention = RetentionWatch(settings.topics, health)
        self._notices = TelemetryNotices(settings.topics, health, meter)
        self._ends, self._brokers = ends, brokers
        self._transactions = TransactionWatch()
        self._reported: set[tuple[str, int, int]] = set()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(_WATCH_S)
            notices = self.look(monotonic())
            if notices:
                await self._publish(notices)

    async def _publish(self, notices: list[OutRecord]) -> None:
        try:
            await self._host.send(notices)
        except Exception as error:  # noqa: BLE001 - a report must never end a worker; the stages notice what is wrong
            log.warning("notices_not_published", count=len(notices), reason=f"{type(error).__name__}: {error}")

    def look(self, now_s: float) -> list[OutRecord]:
        """Look once; returns notices to publish."""
        lanes = self._host.status.lanes
        lag: dict[str, int] = dict.fromkeys(self._stages, 0)
        for key, records in self._host.lag().items():
            lane = lanes.get(key)
            if lane is not None:
                lag[lane.stage] += records
        for stage, records in lag.items():
            self._meter.gauge("lag_records", records, stage=stage)
        self._look_at_transactions(now_s)
        if self._host.status.restored:
            self._look_at_sources(now_s)
            self._drop_foreign_metrics()
        self._retention.look((partition, lane.kernel) for (_, partition), lane in lanes.items())
        return self._notices.look(((place, lane.kernel) for place, lane in lanes.items()), now_s)

    def _look_at_transactions(self, now_s: float) -> None:
        lanes = self._host.status.lanes
        open_now = self._transactions.look({p: end for p, end in self._ends().items() if p in lanes}, now_s)
        for stage in self._stages:
            own = [one for one in open_now if lanes[one.topic, one.partition].stage == stage]
            self._meter.gauge("unstable_records", sum(one.num_waiting for one in own), stage=stage)
            self._meter.gauge("open_transaction_seconds", max((one.open_s for one in own), default=0.0), stage=stage)
        late = {(one.topic, one.partition, one.first_offset): one.sentence(self._brokers) for one in overdue(open_now)}
        for place in sorted(late.keys() - self._reported):
            log.warning("open_transaction", detail=late[place])
        if late or self._reported:
            self._health.set_check("transactions", not late, "; ".join(late.values()), required=False)
        self._reported = set(late)

    def _look_at_sources(self, now_s: float) -> None:
        lanes = self._host.status.lanes.items()
        silent = self._sources.silent(closed_slots((p, lane.kernel) for (_, p), lane in lanes), now_s)
        for source in SOURCES:
            value = float(bool(silent[source])) if source in silent else math.nan
            self._meter.gauge("source_silent", value, source=source)
        message = "; ".join(f"{s}: no page or tick in partitions {p}" for s, p in silent.items() if p)
        if silent:
            self._health.set_check("sources", not message, message, required=False)
        else:
            self._health.drop_check("sources")

    def _drop_foreign_metrics(self) -> None:
        """Numbers of a stage whose partitions went to other workers would stand still here, beside theirs."""
        stages = {lane.stage for lane in self._host.status.lanes.values()}
        if self._decided is not None and "decide" not in stages:
            self._decided.forget()
        if "forecast" not in stages:
            self._meter.forget("forecast_coverage_ratio")
            self._meter.forget("forecast_pinball")
