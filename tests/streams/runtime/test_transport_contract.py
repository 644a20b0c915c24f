"""The hooks of Faust that `streams/runtime/transport.py` relies on are there and have the shape that it expects."""

from __future__ import annotations

import inspect
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import faust
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.consumer import fetcher
from aiokafka.producer.sender import Sender
from faust.tables import TableManager
from faust.tables.recovery import Recovery
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP

from streams.runtime.transport import BatchConsumer, NoTables


def test_faust_is_the_version_that_was_read() -> None:
    assert version("faust-streaming") == "0.15.3"


@pytest.mark.parametrize(
    ("name", "parameters", "is_coroutine"),
    [
        ("_drain_messages", ["self", "fetcher"], True),
        ("_new_offset", ["self", "tp"], False),
        ("_filter_tps_with_pending_acks", ["self", "topics"], False),
        ("ack", ["self", "message"], False),
        ("_commit_offsets", ["self", "offsets", "start_new_transaction"], True),
        ("perform_seek", ["self"], True),
        ("on_partitions_revoked", ["self", "revoked"], True),
        ("on_buffer_drop", ["self", "tp"], False),
    ],
)
def test_every_overridden_method_exists_with_the_same_shape(
    name: str, parameters: list[str], is_coroutine: bool
) -> None:
    stock, ours = getattr(driver.Consumer, name), getattr(BatchConsumer, name)
    assert ours is not stock
    assert list(inspect.signature(stock).parameters) == parameters
    assert list(inspect.signature(ours).parameters) == parameters
    assert inspect.iscoroutinefunction(stock) == is_coroutine == inspect.iscoroutinefunction(ours)


def test_fetched_records_pass_through_the_hooks_that_make_them_lean() -> None:
    fetched = inspect.getsource(fetcher.Fetcher._proc_fetch_request)
    assert "self._records[tp] = FetchResult(" in fetched
    assert "self._consumer_record(tp, record)" in inspect.getsource(fetcher.PartitionRecords._unpack_records)
    assert "_partition_records" in vars(fetcher.FetchResult(None, assignment=None, partition_records=[], backoff=0))


def test_state_is_restored_before_the_position_is_sought() -> None:
    source = inspect.getsource(Recovery._resume_streams)
    assert source.index("on_rebalance_complete.send") < source.index("perform_seek")


def test_what_stock_faust_does_when_tables_start_is_all_that_ours_does_but_for_the_wait() -> None:
    def does(on_start: object) -> list[str]:
        lines = inspect.getsource(on_start).splitlines()  # type: ignore[arg-type]
        return [line.strip() for line in lines if "await" in line and "sleep" not in line]

    assert does(NoTables.on_start) == does(TableManager.on_start) != []


def test_commits_ask_for_our_offsets() -> None:
    source = inspect.getsource(driver.Consumer._filter_committable_offsets)
    assert "_new_offset" in source


@pytest.mark.parametrize("taken", [True, False])
async def test_a_refused_commit_does_not_count_as_done(monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    tp = TP("t", 0)

    async def stock(self: driver.Consumer, offsets: dict[TP, int], start_new_transaction: bool = True) -> bool:
        self._committed_offset.update(offsets)
        return taken

    monkeypatch.setattr(driver.Consumer, "_commit_offsets", stock)
    consumer = BatchConsumer.__new__(BatchConsumer)
    consumer._committed_offset = defaultdict(lambda: None, {tp: 5})
    consumer._safe = {tp: 9}
    assert await consumer._commit_offsets({tp: 9}) is taken
    assert consumer.commit_state(tp) == (9, 9 if taken else 5)


def test_offsets_that_the_compiled_stream_notes_do_not_pile_up() -> None:
    tp, other = TP("t", 0), TP("t", 1)
    consumer = BatchConsumer.__new__(BatchConsumer)
    consumer.app = SimpleNamespace(consumer_generation_id=7)  # type: ignore[assignment]
    consumer._safe, consumer._committed_offset = {}, defaultdict(lambda: None)
    consumer._acked = defaultdict(list, {tp: [4, 5, 6], other: [1]})
    consumer._acked_index = defaultdict(set, {tp: {4, 5, 6}, other: {1}})
    consumer.mark_safe(tp, 7, generation=7)
    assert consumer.commit_state(tp)[0] == 7
    assert (dict(consumer._acked), dict(consumer._acked_index)) == ({other: [1]}, {other: {1}})
    compiled = (Path(faust.__file__).parent / "_cython" / "streams.pyx").read_text()
    assert "acked_for_tp.append(offset)" in compiled


def test_watchdogs_find_the_sender_task_of_the_producer() -> None:
    assert isinstance(Sender.sender_task, property)
    assert "_sender" in inspect.getsource(AIOKafkaProducer.__init__)
    assert "_producer = self._new_producer()" in inspect.getsource(driver.Producer.on_start)
