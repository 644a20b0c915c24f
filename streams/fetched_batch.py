"""A fetched batch as Faust carries it from the consumer to an agent: one message, one event, bytes untouched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import faust
from faust.types.tuples import TP, ConsumerMessage

from streams.log import LogRecord

_LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Contiguous records of one partition, fetched together under one group generation."""

    topic: str
    partition: int
    records: list[LogRecord]
    generation: int


class BatchMessage(ConsumerMessage):
    """Carries a `FetchedBatch` through Faust; its offset is the batch's last."""


class BatchSchema(faust.Schema[Any, Any]):
    """Passes a fetched batch to the agent as it is: bytes stay bytes until our own decoder sees them."""

    def compile(self, app: Any, **kwargs: Any) -> Callable[..., Any]:
        plain = super().compile(app, **kwargs)

        async def decode(message: Any, *, propagate: bool = False) -> Any:
            if isinstance(message, BatchMessage):
                return app.create_event(None, message.value, message.headers, message)
            return await plain(message, propagate=propagate)

        return decode


def to_message(tp: TP, records: list[LogRecord], generation: int) -> BatchMessage:
    """The message of contiguous records of one partition."""
    batch = cast("Any", FetchedBatch(tp.topic, tp.partition, records, generation))
    return BatchMessage(
        topic=tp.topic,
        partition=tp.partition,
        offset=records[-1].offset,
        timestamp=records[0].stamp_ms / 1000.0,
        timestamp_type=_LOG_APPEND_TIME,
        headers=[],
        key=None,
        value=batch,
        checksum=None,
        serialized_key_size=0,
        serialized_value_size=0,
        tp=tp,
        generation_id=generation,
    )
