"""Stage 2: pages in, forecasts and plans out. One kernel per pages partition.

    page records ─▶ PageAssembler ─▶ PageJoin ─▶ PartitionWorkloads ─▶ ForecastEngine (batch, infer, plan) ─▶ Emission

Everything except the paths is a pure function of the pages log. Plans that an earlier run published after its last
commit record are adopted, so that rounding on another device cannot change published history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from agents.forecast.commit import CommitBody, CommitOf, decode_commit
from agents.forecast.scoring import ForecastScorer
from agents.forecast.workloads import ForecastEngine, ForecastTask, PartitionWorkloads
from agents.planning.codec import PlanWriter, decode_plan, plan_key, slot_of_plan
from agents.policy import Policy
from agents.priority import PriorityGate
from agents.records import PlanRecord, WorkloadPlan
from agents.workload.state import LearnedState
from streams.catalogue import SOURCES, Indicator, Source
from streams.config import StreamConfig
from streams.log import Emission, LogRecord, OutRecord, batched
from streams.meter import Meter
from streams.pages.chain import JoinedSlot, PageJoin
from streams.pages.codec import PageAssembler, slot_of_page
from streams.pages.page import Page
from streams.records.facts import Control
from streams.runtime.commits import Commit, CommitChain, encode_body
from streams.topics import Topics
from streams.windows.coarse import ReadBackSizes, StoredRow, encode_coarse
from streams.windows.table import Window

# Name of the stage in commit records.
STAGE = "forecast"
# Workloads planned at a time, which bounds the memory of windows, paths and plans.
_WORKLOADS_PER_BATCH = 256
_MAX_DEFERRED_WORKLOADS = 1024  # workloads of a partition whose forecasts may wait, as futures, until the plan is out
# Workloads after which low-priority work yields to the other lanes, about a millisecond of work.
_WORKLOADS_PER_SLICE = 16
# records that are published at a time, a megabyte: those of a large partition are never all in memory
_RECORDS_PER_EMISSION = 128
_MAX_LATE_CONTROLS = 1_024  # of pages whose slots were planned without them


def _start_now(make: ForecastTask) -> ForecastTask:
    """Start a task at once; awaiting the returned task gives its result."""
    awaitable = make()
    return lambda: awaitable


def _without_content(plan: WorkloadPlan) -> WorkloadPlan:
    """What is left of a plan for which its record has no room: enough to hold, and to renew a lease."""
    refused = plan.refused or "plan_full"
    return WorkloadPlan(plan.workload, refused, plan.inputs, fleet=plan.fleet, facts_age_ms=plan.facts_age_ms)


@dataclass(slots=True)
class _SlotForecasts:
    """The forecast tasks of one slot, and the windows of the workloads that are scored."""

    forecasts: list[ForecastTask] = field(default_factory=list)
    windows: dict[str, Window] = field(default_factory=dict)


class ForecastKernel:
    """Turns the joined slots of one pages partition into forecasts, plans and commit records.

    Args:
        sources: whose pages there are; a slot is planned once all of them have closed it.
    """

    def __init__(
        self,
        partition: int,
        config: StreamConfig,
        catalogue: tuple[Indicator, ...],
        topics: Topics,
        policy: Policy,
        engine: ForecastEngine,
        meter: Meter,
        scorer: ForecastScorer | None = None,
        precedence: PriorityGate | None = None,
        sources: Sequence[Source] = SOURCES,
    ) -> None:
        self.partition = partition
        self._workloads = PartitionWorkloads(config, catalogue, policy, meter, engine.min_context)
        self.table = self._workloads.table
        self._config = config
        self._topics = topics
        self._policy = policy
        self._policy_fingerprint = policy.fingerprint()
        self._engine = engine
        self._meter = meter
        self._scorer = scorer
        self._precedence = precedence or PriorityGate()
        self._assembler = self.new_assembler()
        self._join = PageJoin(sources=sources)
        self._page_offsets: dict[int, int] = {}
        self._sizes = ReadBackSizes(topics, config.context_steps)
        self._adopted: dict[int, PlanRecord] = {}
        # Operator controls of pages whose slot was planned without them, until the next plan. Commit records need not
        # hold them: a restart before that plan reads these pages again.
        self._late_controls: tuple[Control, ...] = ()
        self._commits = CommitChain(topics.commits, STAGE, partition)
        self.resume_offset: int | None = None

    # Live.

    async def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        for record in records:
            for straggler in self._take(record):
                self._keep_late_controls(straggler)
            joined = list(self._join.ready())
            for k, slot in enumerate(joined):
                # Until the last of them is out, a crash must read this record again.
                resume = record.offset + (k == len(joined) - 1)
                async with aclosing(self._close(slot, resume)) as emissions:
                    async for emission in emissions:
                        yield emission

    def _keep_late_controls(self, straggler: Page) -> None:
        room = _MAX_LATE_CONTROLS - len(self._late_controls)
        self._late_controls += straggler.controls[:room]
        if len(straggler.controls) > room:
            self._meter.count("dead_letters_total", len(straggler.controls) - room, code="limit")

    def _take(self, record: LogRecord) -> list[Page]:
        """Store the page that a record completes; returns the pages whose slots were planned without them."""
        stragglers = []
        completed = self._assembler.feed(record)
        self._sizes.pages.add(slot_of_page(record.key), record.value)
        for done in completed:
            straggler = self._join.offer(done.page, done.digest, done.first_offset)
            self._page_offsets.setdefault(done.page.slot, done.first_offset)
            if straggler is not None:
                stragglers.append(straggler)
                if self.table.newest is not None:
                    self.table.write(straggler)
        return stragglers

    async def _close(self, joined: JoinedSlot, resume_offset: int) -> AsyncGenerator[Emission, None]:
        """Emit the plan at once, then the forecasts and the commit record, which have low priority.

        A plan that an earlier run published is adopted. Its forecasts may be missing, so they are made again.
        """
        slot, origin_ts_ms = joined.slot, self._config.slot_end_ms(joined.slot)
        closed_stamp_ms = max(page.end_stamp_ms for page in joined.pages.values())
        with self._precedence.urgent():
            outputs = self._fill(joined)
            self._meter.count("slots_total")
            adopted = self._adopted.pop(slot, None)
            retired = self._workloads.retire(adopted)
            if adopted is None:
                head = self._plan_head(joined, origin_ts_ms)
                writer = PlanWriter(head, len(self.table) + len(retired))
                answer = await self._answer(joined, origin_ts_ms, writer)
                writer.add(retired)
                plan = writer.close()
                self._precedence.expect(plan)
                plans = [OutRecord(self._topics.plans, plan_key(self.partition), plan, 0)]
                yield Emission([plans], (), resume_offset, closed_stamp_ms, urgent=True)
            else:
                answer = await self._answer(joined, origin_ts_ms, None)
                self._workloads.remember(adopted.workloads, origin_ts_ms)
            self._late_controls = ()
        forecasts = []
        while answer.forecasts:  # popped, so that the paths of each are freed
            await self._precedence.wait()
            forecasts.append(await answer.forecasts.pop(0)())
        if self._scorer is not None:
            self._scorer.settle(slot, self.table)
            self._scorer.offer(slot, origin_ts_ms, forecasts, answer.windows)
        for batch in forecasts:
            for rows in batched(range(len(batch)), _WORKLOADS_PER_SLICE):
                await self._precedence.wait()
                outputs += batch.records(self._topics.forecasts, rows)
                if len(outputs) >= _RECORDS_PER_EMISSION:
                    yield Emission([outputs], (), resume_offset)
                    outputs = []
        yield Emission([outputs], await self._commit(slot, resume_offset), resume_offset)

    def _fill(self, joined: JoinedSlot) -> list[OutRecord]:
        """Store the slot's pages; returns the records of the coarse row that it completes, if it does."""
        coarse = self._workloads.fill(joined)
        oldest = joined.slot - self._config.context_steps
        for slot in [s for s in self._page_offsets if s <= oldest]:
            del self._page_offsets[slot]
        if coarse is None:
            return []
        key, parts = b"%d" % coarse.index, encode_coarse(coarse)
        for part in parts:
            self._sizes.coarse.add(coarse.index, part)
        return [OutRecord(self._topics.pages_coarse, key, part, self.partition) for part in parts]

    async def _answer(self, joined: JoinedSlot, origin_ts_ms: int, writer: PlanWriter | None) -> _SlotForecasts:
        """Plan into the writer; without a writer the adopted plans stand, and only forecasts are made."""
        offsets: dict[str, int] = {source: page.end_offset for source, page in joined.pages.items()}
        with_forecast = joined.slot % self._policy.plan_every == 0
        answer = _SlotForecasts()
        names = list(self.table)
        scored = set(self._scorer.chosen(joined.slot, names)) if self._scorer is not None else set()
        refused: Counter[str] = Counter()
        # Undeclared workloads come last, and their number takes no forecaster away from the declared ones.
        declared = [name for name in names if self._policy.spec(name) is not None]
        undeclared = [name for name in names if self._policy.spec(name) is None]
        groups = [(group, len(declared)) for group in batched(declared, _WORKLOADS_PER_BATCH)]
        groups += [(group, len(names)) for group in batched(undeclared, _WORKLOADS_PER_BATCH)]
        for workloads, size in groups:
            subjects = self._workloads.subjects(workloads, joined.slot, origin_ts_ms, offsets)
            answers = await self._engine.plan(subjects, origin_ts_ms, with_forecast, size)
            plans = answers.plans
            if writer is not None:
                if writer.is_full:
                    plans = [_without_content(p) for p in plans]
                writer.add(plans)
                self._workloads.remember(plans, origin_ts_ms)
            refused.update(plan.refused for plan in plans if plan.refused is not None)
            # In a large partition quantiles are made while others are planned, in a small one after the plan.
            answer.forecasts += (
                map(_start_now, answers.forecasts) if len(names) > _MAX_DEFERRED_WORKLOADS else answers.forecasts
            )
            answer.windows.update((s.window.workload, s.window) for s in subjects if s.window.workload in scored)
        for reason, number in sorted(refused.items()):
            self._meter.count("refusals_total", number, reason=reason)
        return answer

    def _plan_head(self, joined: JoinedSlot, origin_ts_ms: int) -> PlanRecord:
        """The slot's record without its plans."""
        pages: list[Page] = list(joined.pages.values())
        return PlanRecord(
            partition=self.partition,
            slot=joined.slot,
            origin_ts_ms=origin_ts_ms,
            step_ms=self._config.step_ms,
            model_fingerprint=self._engine.fingerprint,
            policy_fingerprint=self._policy_fingerprint,
            workloads=(),
            controls=(*self._late_controls, *(c for page in pages for c in page.controls)),
            end_stamp_ms=max(page.end_stamp_ms for page in pages),
        )

    def closed_slots(self) -> dict[Source, int]:
        """Newest closed slot of each source of which a page was read since the start."""
        return self._join.closed_slots()

    def state_of(self, workload: str) -> LearnedState:
        """The learned state of a workload, with which a replay may begin."""
        return self._workloads.state_of(workload)

    def needed_bytes(self) -> dict[str, int]:
        """By topic, what it should keep of this partition for a restart, going by the newest records."""
        return self._sizes.needed_bytes()

    # Commit and restore.

    async def _commit(self, slot: int, resume_offset: int) -> list[OutRecord]:
        # As bytes, which take a fraction of a snapshot's room.
        states: dict[str, msgspec.Raw] = {}
        for workloads in batched(self._workloads.names(), _WORKLOADS_PER_SLICE):
            await self._precedence.wait()
            states |= {
                w: msgspec.Raw(encode_body(snapshot)) for w, snapshot in self._workloads.snapshots(workloads).items()
            }
        pending = self._join.first_pending_offset()
        partial = self._assembler.first_pending_offset()
        reach = [resume_offset, *self._page_offsets.values(), *(o for o in (pending, partial) if o is not None)]
        body = CommitOf(
            slot=slot,
            resume_offset=resume_offset,
            pages_from=min(reach),
            step_ms=self._config.step_ms,
            grace_ms=self._config.grace_ms,
            policy=self._policy_fingerprint,
            model=self._engine.fingerprint,
            states=states,
            running_coarse=self.table.running_coarse(),
            context_steps=self._config.context_steps,
            fleet=self._policy.fleet,
        )
        return self._commits.append(encode_body(body))

    def new_assembler(self) -> PageAssembler:
        """Reads this partition's pages with the columns of the table."""
        where = f"{self._topics.pages}/{self.partition}"
        return PageAssembler(self._config, self._topics.partitions, self.table.catalogue, where)

    def begin_restore(self, commit: Commit) -> CommitBody:
        """Take over a commit record; then the caller offers pages, coarse rows and published plans.

        Raises:
            ContractBroken: the record was written for another fleet, or with another step or grace.
        """
        body = decode_commit(commit.body, self._config, self.partition, self._policy.fleet)
        self._commits.follow(commit)
        self._workloads.restore(body.states, body.slot)
        self._join.restore(body.slot, body.slot - self._config.context_steps + 1)
        self.resume_offset = body.resume_offset
        return body

    def restore_page(self, record: LogRecord) -> None:
        """Fold a page that an earlier run has already answered: state only, no output."""
        self._take(record)

    def end_restore(self, body: CommitBody, coarse: Sequence[StoredRow], plans: Sequence[LogRecord]) -> int:
        """Fill the coarse ring and keep the plans that were published after the commit record.

        Returns:
            Rows of the past week that should be among `coarse` and are not.
        """
        for stored in coarse:
            self._sizes.coarse.add(stored.row.index, stored.value)
            self._workloads.restore_coarse(stored.row)
        self.table.restore_running_coarse(body.running_coarse)
        for published in plans:
            if slot_of_plan(published.value, published.offset) <= body.slot:
                continue  # most records are older, because the read begins a minute early for clock differences
            record = decode_plan(published.value, published.offset)
            if record.partition == self.partition:
                self._adopted.setdefault(record.slot, record)
        oldest = min((stored.row.index for stored in coarse), default=None)
        return self._workloads.lost_coarse_rows(oldest, body.newest_coarse)
