"""Stage 2: pages in, forecasts and plans out. One kernel per pages partition.

    page records ─▶ PageAssembler ─▶ PageJoin ─▶ KnownWorkloads ─▶ ForecastEngine (batch, infer, plan) ─▶ Emission

Everything but the paths themselves is a pure function of the pages log; plans that an earlier life published after its
last commit record are adopted, so that GPU noise cannot split history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from agents.forecast.commit import CommitBody, CommitOf, decode_commit
from agents.forecast.scoring import ForecastScorer
from agents.forecast.workloads import ForecastEngine, KnownWorkloads, Making
from agents.planning.codec import PlanWriter, decode_plan, plan_key, slot_of_plan
from agents.policy import Policy
from agents.priority import PriorityGate
from agents.records import PlanRecord
from agents.workload.state import WorkloadState
from streams.catalogue import Indicator, Source
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

STAGE = "forecast"
# Windows, futures and plans are large: so many workloads at a time bound the memory of a large fleet.
_AT_A_TIME = 256
_MOST_FUTURES = 1024  # workloads of a partition whose forecasts may wait, as futures, until the plan is out
# What nobody waits for gives way to the other lanes after so many workloads, a millisecond or two.
_SLICE = 16
_PIECE = 128  # records that are published at a time, a megabyte: those of a large partition are never all in memory


def _begun(make: Making) -> Making:
    """The same, already on its way."""
    made = make()
    return lambda: made


@dataclass(slots=True)
class _Answer:
    """Of one slot: what makes its forecasts, and what a scorer needs: the windows."""

    forecasts: list[Making] = field(default_factory=list)
    windows: dict[str, Window] = field(default_factory=dict)


class ForecastKernel:
    """Joined slots of one pages partition to forecasts, plans and commit records."""

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
    ) -> None:
        self.partition = partition
        self._known = KnownWorkloads(config, catalogue, policy, meter, engine.min_context)
        self.table = self._known.table
        self._config = config
        self._topics = topics
        self._policy = policy
        self._policy_fingerprint = policy.fingerprint()
        self._engine = engine
        self._meter = meter
        self._scorer = scorer
        self._precedence = precedence or PriorityGate()
        self._assembler = self.new_assembler()
        self._join = PageJoin(config.source_silence_steps)
        self._page_offsets: dict[int, int] = {}
        self._sizes = ReadBackSizes(topics, config.context_steps)
        self._adopted: dict[int, PlanRecord] = {}
        # Operators' words in pages whose slot was planned without them, until the next plan. No commit record need hold
        # them: those before that plan resume where these pages have yet to be completed.
        self._late_controls: tuple[Control, ...] = ()
        self._commits = CommitChain(topics.commits, STAGE, partition)
        self.resume_offset: int | None = None

    # Live.

    async def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        for record in records:
            for straggler in self._take(record):
                self._late_controls += straggler.controls
            joined = list(self._join.ready())
            for k, slot in enumerate(joined):
                # Until the last of them is out, a crash must read this record again.
                resume = record.offset + (k == len(joined) - 1)
                async with aclosing(self._close(slot, resume)) as emissions:
                    async for emission in emissions:
                        yield emission

    def _take(self, record: LogRecord) -> list[Page]:
        """Store or keep the page that a record completes; returned where its slot was planned without it."""
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
        """The plan at once, then what nobody waits for: forecasts, and the commit record.

        A plan that an earlier life published is adopted; of its forecasts it may have published none, so they are made
        again.
        """
        slot, origin_ts_ms = joined.slot, self._config.slot_end_ms(joined.slot)
        closed_stamp_ms = max(page.end_stamp_ms for page in joined.pages.values())
        with self._precedence.urgent():
            outputs = self._fill(joined)
            self._meter.count("slots_total")
            adopted = self._adopted.pop(slot, None)
            retired = self._known.retire(adopted)
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
                self._known.remember(adopted.workloads, origin_ts_ms)
            self._late_controls = ()
        forecasts = []
        while answer.forecasts:  # none is kept with its futures
            await self._precedence.wait()
            forecasts.append(await answer.forecasts.pop(0)())
        if self._scorer is not None:
            self._scorer.settle(slot, self.table)
            self._scorer.offer(slot, origin_ts_ms, forecasts, answer.windows)
        for made in forecasts:
            for rows in batched(range(len(made)), _SLICE):
                await self._precedence.wait()
                outputs += made.records(self._topics.forecasts, rows)
                if len(outputs) >= _PIECE:
                    yield Emission([outputs], (), resume_offset)
                    outputs = []
        yield Emission([outputs], await self._commit(slot, resume_offset), resume_offset)

    def _fill(self, joined: JoinedSlot) -> list[OutRecord]:
        """Store the slot's pages; returns the records of the coarse row that it completes, if it does."""
        coarse = self._known.fill(joined)
        oldest = joined.slot - self._config.context_steps
        for slot in [s for s in self._page_offsets if s <= oldest]:
            del self._page_offsets[slot]
        if coarse is None:
            return []
        key, parts = b"%d" % coarse.index, encode_coarse(coarse)
        for part in parts:
            self._sizes.coarse.add(coarse.index, part)
        return [OutRecord(self._topics.pages_coarse, key, part, self.partition) for part in parts]

    async def _answer(self, joined: JoinedSlot, origin_ts_ms: int, writer: PlanWriter | None) -> _Answer:
        """Plan, into the writer; without one an earlier life's plans stand, and only forecasts are wanted."""
        offsets: dict[str, int] = {source: page.end_offset for source, page in joined.pages.items()}
        with_forecast = joined.slot % self._policy.plan_every == 0
        answer = _Answer()
        names = list(self.table)
        scored = set(self._scorer.chosen(joined.slot, names)) if self._scorer is not None else set()
        refused: Counter[str] = Counter()
        for workloads in batched(names, _AT_A_TIME):
            subjects = self._known.subjects(workloads, joined.slot, origin_ts_ms, offsets)
            answers = await self._engine.plan(subjects, origin_ts_ms, with_forecast, len(names))
            if writer is not None:
                writer.add(answers.plans)
                self._known.remember(answers.plans, origin_ts_ms)
            refused.update(plan.refused for plan in answers.plans if plan.refused is not None)
            # Of many workloads these become quantiles while others are planned; of few, when the plan is out.
            answer.forecasts += map(_begun, answers.forecasts) if len(names) > _MOST_FUTURES else answers.forecasts
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
        """Newest closed slot of each source of which this life has read a page."""
        return self._join.closed_slots()

    def state_of(self, workload: str) -> WorkloadState:
        """What was learned of a workload; replays may begin with what an earlier life would have."""
        return self._known.state_of(workload)

    def needed_bytes(self) -> dict[str, int]:
        """By topic, what it should keep of this partition for a restart, going by the newest records."""
        return self._sizes.needed_bytes()

    # Commit and restore.

    async def _commit(self, slot: int, resume_offset: int) -> list[OutRecord]:
        # As bytes, which take a fraction of a snapshot's room.
        states: dict[str, msgspec.Raw] = {}
        for workloads in batched(self._known.names(), _SLICE):
            await self._precedence.wait()
            states |= {w: msgspec.Raw(encode_body(its)) for w, its in self._known.snapshots(workloads).items()}
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
        self._known.restore(body.states, body.slot)
        self._join.restore(body.slot, body.slot - self._config.context_steps + 1)
        self.resume_offset = body.resume_offset
        return body

    def restore_page(self, record: LogRecord) -> None:
        """Fold a page that an earlier life has already answered: state only, no output."""
        self._take(record)

    def end_restore(self, body: CommitBody, coarse: Sequence[StoredRow], plans: Sequence[LogRecord]) -> int:
        """Fill the coarse ring and keep the plans that were published after the commit record.

        Returns:
            Rows of the past week that should be among `coarse` and are not.
        """
        for stored in coarse:
            self._sizes.coarse.add(stored.row.index, stored.value)
            self._known.restore_coarse(stored.row)
        self.table.restore_running_coarse(body.running_coarse)
        for published in plans:
            if slot_of_plan(published.value, published.offset) <= body.slot:
                continue  # as nearly all that are read, for clocks of brokers may differ by a minute
            record = decode_plan(published.value, published.offset)
            if record.partition == self.partition:
                self._adopted.setdefault(record.slot, record)
        oldest = min((stored.row.index for stored in coarse), default=None)
        return self._known.lost_coarse_rows(oldest, body.newest_coarse)
