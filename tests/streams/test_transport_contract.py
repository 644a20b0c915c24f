"""The hooks of Faust that `streams/transport.py` relies on are there and have the shape that it expects."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
from faust.tables.recovery import Recovery
from faust.transport.drivers import aiokafka as driver

from streams.transport import BatchConsumer


def test_faust_is_the_version_that_was_read() -> None:
    assert version("faust-streaming") == "0.15.3"


@pytest.mark.parametrize(
    ("name", "parameters", "is_coroutine"),
    [
        ("_drain_messages", ["self", "fetcher"], True),
        ("_new_offset", ["self", "tp"], False),
        ("_filter_tps_with_pending_acks", ["self", "topics"], False),
        ("ack", ["self", "message"], False),
        ("perform_seek", ["self"], True),
        ("on_partitions_revoked", ["self", "revoked"], True),
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


def test_state_is_restored_before_the_position_is_sought() -> None:
    source = inspect.getsource(Recovery._resume_streams)
    assert source.index("on_rebalance_complete.send") < source.index("perform_seek")


def test_commits_ask_for_our_offsets() -> None:
    source = inspect.getsource(driver.Consumer._filter_committable_offsets)
    assert "_new_offset" in source
