"""The week that a worker reads back is a week, in however many records its ten minutes stand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.log import ContractBroken, LogRecord
from streams.runtime.restore import LogReader
from streams.windows import coarse as coarse_log
from streams.windows.coarse import COARSE_ROWS, CoarseRow, decode_coarse, encode_coarse, read_coarse_week

FIRST = 2_939_000
TOPIC = "harmony.pages.coarse"
FEW_ROWS = 10


def part(index: int, workload: str) -> bytes:
    row = CoarseRow(index, (workload,), ("request.arrival_rate",), np.ones((1, 1), np.float32), np.ones((1, 1), bool))
    return encode_coarse(row)[0]


class Reader:
    """A log of these values, of which retention has removed the first `begin`."""

    def __init__(self, values: list[bytes], begin: int = 0) -> None:
        self._values, self._begin = values, begin
        self.num_read = 0

    async def bounds(self, _topic: str, _partition: int) -> tuple[int, int]:
        return self._begin, len(self._values)

    async def read(self, _topic: str, _partition: int, start: int, end: int) -> AsyncIterator[LogRecord]:
        for offset in range(start, end):
            self.num_read += 1
            yield LogRecord(offset, 0, None, self._values[offset])


async def week(reader: Reader, newest: int) -> list[CoarseRow]:
    stored = await read_coarse_week(cast("LogReader", reader), TOPIC, 3, newest)
    assert all(decode_coarse(each.value, "").index == each.row.index for each in stored)
    return [each.row for each in stored]


@given(parts=st.integers(1, 9), num_rows=st.integers(0, 60), begin=st.integers(0, 200), later=st.integers(0, 2))
async def test_a_week_is_read_back_whole(parts: int, num_rows: int, begin: int, later: int) -> None:
    log = [(index, f"w{k}") for index in range(FIRST, FIRST + num_rows) for k in range(parts)]
    begin, newest = min(begin, len(log)), FIRST + num_rows - 1 - later
    reader = Reader([part(*at) for at in log], begin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse_log, "COARSE_ROWS", FEW_ROWS)
        found = [(row.index, row.workloads[0]) for row in await week(reader, newest)]
    retained = [at for at in log[begin:] if at[0] <= newest]
    assert found == retained[len(retained) - len(found) :]
    assert {at for at in retained if at[0] > newest - FEW_ROWS} <= set(found)


async def test_of_a_log_of_years_only_the_end_is_read() -> None:
    reader = Reader([part(index, "w") for index in range(FIRST, FIRST + 20_000)])
    rows = await week(reader, FIRST + 19_999)
    assert len(rows) == reader.num_read == 2 * COARSE_ROWS


async def test_what_is_no_coarse_row_is_named() -> None:
    with pytest.raises(ContractBroken, match=r"harmony\.pages\.coarse/3: offset 1 is not ten minutes of means"):
        await week(Reader([part(FIRST, "w"), b"?"]), FIRST)
