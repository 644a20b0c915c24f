"""Binds stages to one Faust app: agents feed lanes, a rebalance restores kernels before the flow resumes.

What Faust does here: consumer group, assignment and rebalance, fetching, flow control, agents, producer, commit timer.
What it does not do: tables, windows, acks, topic declaration, leader election, web (docs/adr/0001).
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol, cast

import faust
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)
from faust.types.tuples import TP

from streams.log import ContractBroken, OutRecord
from streams.meter import Meter, NullMeter
from streams.runtime.lane import BatchRule, FailPoint, Kernel, Lane
from streams.runtime.producer import send_batches
from streams.runtime.restore import LogReader, LossReport, check_retention
from streams.runtime.transport import (
    BatchConsumer,
    BatchPort,
    BatchSchema,
    FetchedBatch,
    NoTables,
    highwater_lag,
    install,
    kafka_producer,
)
from streams.topics import PLAN_BYTES


def descriptor_limit() -> str | None:
    """A sentence on cause and remedy if the process has reached its limit of open files, else None.

    At that limit other errors name everything but the cause.
    """
    try:
        os.close(os.dup(2))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return (
                "no file or connection can be opened any more, the limit of open files is reached; raise it "
                "(`ulimit -n`, LimitNOFILE= of systemd, --ulimit nofile= of a container)"
            )
    return None


_AUTHORIZATION_ERRORS = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


def crash(stage: str, error: BaseException) -> None:
    """Print one sentence and exit at once, with the exit code of a `ContractBroken`, else 1 and a stack trace.

    Nothing is cleaned up or acknowledged: the replacement rebuilds the state from Kafka (crash-only software, Candea
    and Fox, HotOS 2003).
    """
    kind = ""
    cause = descriptor_limit()
    if cause is not None:
        error = ContractBroken(f"{cause}. It was noticed by {type(error).__name__}: {error}")
    elif isinstance(error, MemoryError):
        error = ContractBroken(
            f"no memory is left ({str(error) or 'MemoryError'}); raise the limit (of the container, `ulimit -v`, "
            "MemoryMax= of systemd), or spread the partitions over more workers"
        )
    elif isinstance(error, _AUTHORIZATION_ERRORS):
        error = ContractBroken(
            f"Kafka refuses this worker's user ({type(error).__name__}: {error}): a right was taken away while it ran; "
            "`harmony topics rights` lists what it needs"
        )
    elif isinstance(error, UnsupportedCodecError):
        error = ContractBroken(
            f"records are compressed, by a publisher or by the brokers, as this installation cannot read ({error}); "
            "install cramjam, which HARMONY depends on, and start again, nothing is lost"
        )
    if not isinstance(error, ContractBroken):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
        kind = f"{type(error).__name__}: "
    sentence = " ".join(f"{kind}{error}".split())
    sys.stderr.write(f"harmony worker stops ({stage}): {sentence}\n")
    sys.stderr.flush()
    os._exit(error.exit_code if isinstance(error, ContractBroken) else 1)


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """How the worker reaches Kafka.

    Attributes:
        instance_id: makes the membership static: from a kill to the next output about 2 s instead of a session.
        security: keyword arguments of aiokafka's clients (security_protocol, ssl_context, sasl_...).
    """

    brokers: str
    group: str
    instance_id: str | None = None
    security: Mapping[str, Any] = field(default_factory=dict)
    session_timeout_s: float = 10.0
    heartbeat_s: float = 2.0
    request_timeout_s: float = 30.0
    commit_interval_s: float = 1.0
    producer_linger_s: float = 0.0

    def credentials(self) -> faust.SASLCredentials | faust.SSLCredentials | None:
        """The security settings in the form that Faust takes; None for plain text."""
        context = self.security.get("ssl_context")
        mechanism = self.security.get("sasl_mechanism")
        if mechanism is not None:
            return faust.SASLCredentials(
                username=self.security.get("sasl_plain_username"),
                password=self.security.get("sasl_plain_password"),
                mechanism=mechanism,
                ssl_context=context,
            )
        return faust.SSLCredentials(context=context) if context is not None else None


# New objects that start a run of the garbage collector. A slot makes next to no cycles, and with Python's default of
# some hundred objects the collector takes a twentieth of the CPU for a thousand workloads.
_COLLECTION_THRESHOLD_OBJECTS: Final = 50_000


def tune_garbage_collector() -> None:
    """Exclude all present objects from garbage collection, and raise the threshold for new ones."""
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD_OBJECTS)
    gc.enable()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off while the block runs.

    Restoring state makes millions of objects, all of which stay. Collecting meanwhile takes a third more time.
    A collector that is off already stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# Size of a producer batch. A request carries one batch per partition, so with the usual 16 KiB the outputs of a slot
# take dozens of round trips. Brokers allow a megabyte by default.
_MAX_BATCH_BYTES: Final = 1 << 19


class Stage(Protocol):
    """One of ingest, forecast, decide: its input topics, and how the kernel of a partition is restored."""

    @property
    def name(self) -> str: ...

    @property
    def input_topics(self) -> tuple[str, ...]: ...

    @property
    def batch_rule(self) -> BatchRule | None:
        """How small batches of its topics are folded together; None = every batch on its own."""
        ...

    async def restore(self, topic: str, partition: int, reader: LogReader) -> Kernel:
        """The kernel of a partition with the state of the logs; a fresh one when the logs hold none.

        Raises:
            ContractBroken: state exists but cannot be restored exactly; names the remedy.
        """
        ...


@dataclass(slots=True)
class HostStatus:
    """State of the host for health checks; only the host writes it.

    Attributes:
        restored: the assigned partitions have their state; False from a rebalance until the restore is done.
        restoring: a restore is running.
        restore_marks: a counter that grows with every answer of the broker during a restore.
    """

    assigned: frozenset[tuple[str, int]] = frozenset()
    restored: bool = False
    restoring: bool = False
    restore_marks: int = 0
    restore_s: float = 0.0
    last_record_s: float | None = None
    lanes: dict[tuple[str, int], Lane] = field(default_factory=dict)


class StageHost:
    """Owns the Faust app, the lanes of the assigned partitions, and their restoration."""

    def __init__(
        self,
        connection: ConnectionConfig,
        stages: Sequence[Stage],
        meter: Meter | None = None,
        on_failure: Callable[[str, BaseException], None] = crash,
        fail_point: FailPoint = lambda _name: None,
        withhold: Callable[[OutRecord], bool] = lambda _record: False,
    ) -> None:
        self.status = HostStatus()
        self._connection = connection
        self._stage_of = {topic: stage for stage in stages for topic in stage.input_topics}
        self._meter = meter or NullMeter()
        self._on_failure = on_failure
        self._fail_point = fail_point
        self._withhold = withhold
        self._lanes = self.status.lanes
        self._loss_report = LossReport(self._meter)
        self._generation = -1
        self.app = self._new_app()
        install(
            self.app,
            BatchPort(
                topics=frozenset(self._stage_of),
                start_offset=self._start_offset,
                on_missing_state=self._on_missing_state,
                on_removed=self._on_removed,
            ),
        )
        # Faust keeps weak references to handlers only, so the host holds them.
        self._handlers = (self._on_rebalance_complete, self._on_partitions_revoked)
        self.app.on_rebalance_complete.connect(self._handlers[0])
        self.app.on_partitions_revoked.connect(self._handlers[1])

    def _new_app(self) -> faust.App:
        c = self._connection
        # Without a prefix Faust would read some eighty bare environment variables (BROKER_URL, TIMEZONE, ...).
        return faust.App(
            c.group,
            env_prefix="HARMONY_FAUST_",
            broker=[f"kafka://{b}" for b in c.brokers.split(",")],
            broker_credentials=c.credentials(),
            store="memory://",
            datadir=str(Path(tempfile.gettempdir()) / f"harmony-faust-{os.getuid()}"),
            web_enabled=False,
            TableManager=NoTables,
            topic_disable_leader=True,
            topic_allow_declare=False,
            table_standby_replicas=0,
            stream_buffer_maxsize=16,
            stream_wait_empty=False,
            consumer_auto_offset_reset="earliest",
            consumer_group_instance_id=c.instance_id,
            consumer_max_fetch_size=4 << 20,
            broker_commit_interval=c.commit_interval_s,
            broker_session_timeout=c.session_timeout_s,
            broker_heartbeat_interval=c.heartbeat_s,
            broker_request_timeout=c.request_timeout_s,
            producer_acks=-1,
            producer_linger=c.producer_linger_s,
            producer_max_request_size=PLAN_BYTES,
            producer_max_batch_size=_MAX_BATCH_BYTES,
        )

    def batch_topic(self, name: str) -> Any:
        """The topic for an agent: its events are `FetchedBatch` values."""
        schema = BatchSchema(key_type=bytes, value_type=bytes, value_serializer="raw")
        return self.app.topic(name, schema=schema)

    async def accept(self, batch: FetchedBatch) -> None:
        """Give a batch to its lane; batches of an older generation are dropped, and their offsets are read again."""
        lane = self._lanes.get((batch.topic, batch.partition))
        if lane is None or batch.generation != self._generation or batch.generation != self.app.consumer_generation_id:
            return
        self.status.last_record_s = monotonic()
        try:
            await lane.put(batch.records)
        except ContractBroken as error:
            self._on_failure(lane.stage, error)

    async def send(self, records: Sequence[OutRecord]) -> list[Any]:
        """Publish a few records, in order, and await the broker's acknowledgement of each."""
        producer = self.app.producer
        with self._cancelled_when_stopping():
            futures = [
                await producer.send(r.topic, r.key, r.value, r.partition, None, list(r.headers)) for r in records
            ]
            return list(await asyncio.gather(*futures))

    async def send_outputs(self, records: Sequence[OutRecord]) -> None:
        """Publish the outputs of a stage in batches, and await the broker's acknowledgement of all."""
        with self._cancelled_when_stopping():
            await send_batches(kafka_producer(self.app), [r for r in records if not self._withhold(r)])

    @contextmanager
    def _cancelled_when_stopping(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self.app.should_stop:
                # A worker that stops closes the producer of lanes that still publish. The next owner repeats the work.
                raise asyncio.CancelledError(str(error)) from error
            raise

    def lag(self) -> dict[tuple[str, int], int]:
        """Records that the broker has and the lane has not read, per assigned partition."""
        next_offsets = {TP(*key): lane.next_offset for key, lane in self._lanes.items() if lane.next_offset is not None}
        return {(tp.topic, tp.partition): n for tp, n in highwater_lag(self.app, next_offsets).items()}

    def reader(self) -> LogReader:
        """A groupless reader of the same cluster."""
        options = {"bootstrap_servers": self._connection.brokers, **self._connection.security}
        return LogReader(options, self._count_restored)

    def _count_restored(self) -> None:
        self.status.restore_marks += 1

    def _start_offset(self, tp: TP) -> int | None:
        lane = self._lanes.get((tp.topic, tp.partition))
        return lane.kernel.resume_offset if lane is not None else None

    def _on_missing_state(self, tp: TP, committed: int) -> None:
        self._on_failure(
            self._stage_of[tp.topic].name,
            ContractBroken(
                f"{tp.topic}/{tp.partition}: the group has committed offset {committed} but no state is found; its "
                "pages or commits topic was lost or truncated. `harmony state reset` accepts a new, empty start"
            ),
        )

    def _on_removed(self, tp: TP, expected_offset: int, first: int) -> None:
        lane = self._lanes.get((tp.topic, tp.partition))
        if lane is None:
            return
        try:
            self._loss_report.while_running(tp.topic, tp.partition, lane, expected_offset, first)
        except ContractBroken as error:
            self._on_failure(lane.stage, error)

    async def _on_partitions_revoked(self, *_args: Any, **_kwargs: Any) -> None:
        self.status.restored = False
        revoked = sorted({lane.stage for lane in self._lanes.values()})
        await self._close_lanes(list(self._lanes))
        for stage in revoked:
            self._fail_point(f"{stage}.after_revoked")

    async def _close_lanes(self, keys: Iterable[tuple[str, int]]) -> None:
        closing = [self._lanes.pop(key) for key in keys]
        await asyncio.gather(*(lane.close() for lane in closing))

    async def _on_rebalance_complete(self, *_args: Any, **_kwargs: Any) -> None:
        """Restore the state of the assigned partitions.

        Faust awaits this handler before it seeks and before the flow resumes, so a restore cannot race with reading.
        """
        started = monotonic()
        await self._close_lanes(list(self._lanes))
        self._generation = self.app.consumer_generation_id
        partitions = self.app.consumer.assignment()
        assigned = sorted((tp.topic, tp.partition) for tp in partitions if tp.topic in self._stage_of)
        self._fail_point("restore.begin")
        self.status.restoring = True
        stage_name = "restore"
        try:
            with without_garbage_collection():
                async with self.reader() as reader:
                    # One partition after the other bounds the peak memory of reading state back.
                    for topic, partition in assigned:
                        stage = self._stage_of[topic]
                        stage_name = f"{stage.name} of {topic}/{partition}"
                        kernel = await stage.restore(topic, partition, reader)
                        if lost := await check_retention(topic, partition, kernel, reader):
                            self._loss_report.count(lost)
                        self._fail_point("restore.partition")
                        self._lanes[topic, partition] = self._new_lane(stage, TP(topic, partition), kernel)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._on_failure(stage_name, error)
            raise
        finally:
            self.status.restoring = False
        self._fail_point("restore.end")
        self.status.assigned = frozenset(assigned)
        self.status.restored = True
        self.status.restore_s = monotonic() - started
        self._meter.observe("restore_seconds", self.status.restore_s)

    def _new_lane(self, stage: Stage, tp: TP, kernel: Kernel) -> Lane:
        generation = self._generation

        def on_failure(_stage: str, error: BaseException) -> None:
            self._on_failure(f"{stage.name} of {tp.topic}/{tp.partition}", error)

        return Lane(
            stage=stage.name,
            kernel=kernel,
            send=self.send_outputs,
            mark_safe=lambda offset: cast("BatchConsumer", self.app.consumer).mark_safe(tp, offset, generation),
            meter=self._meter,
            on_failure=on_failure,
            fail_point=self._fail_point,
            batch_rule=stage.batch_rule,
        )
