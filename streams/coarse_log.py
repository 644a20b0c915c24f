"""Reads a week of ten-minute means back from `pages.coarse`, in however many records it stands."""

from __future__ import annotations

from typing import NamedTuple

from streams.runtime.commits import decode_coarse
from streams.runtime.restore import LogReader
from streams.windows.coarse import COARSE_ROWS, CoarseRow


class StoredRow(NamedTuple):
    """A row, or the part of one that a record holds, with the record's value."""

    row: CoarseRow
    value: bytes | None


async def read_coarse_week(reader: LogReader, topic: str, partition: int, newest: int) -> list[StoredRow]:
    """The last 1,008 ten minutes up to the one of index `newest`, and some before them, in log order.

    They are fewer where the log begins later. Ten minutes of many workloads are several rows.

    Raises:
        ContractBroken: a record is no coarse row.
    """
    begin, end = await reader.bounds(topic, partition)
    stretch = 2 * COARSE_ROWS  # enough where each ten minutes are a record, though a crash has repeated some
    while True:
        start = max(begin, end - stretch)
        rows = [
            StoredRow(decode_coarse(record.value, f"{topic}/{partition}: offset {record.offset}"), record.value)
            async for record in reader.read(topic, partition, start, end)
        ]
        if start == begin or (rows and rows[0].row.index <= newest - COARSE_ROWS):
            return [stored for stored in rows if stored.row.index <= newest]
        stretch *= 2
