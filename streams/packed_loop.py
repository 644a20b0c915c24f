"""The compiled reading of packed JSON records, with no object between the text and the columns.

It takes the plain shape only: printable ASCII, no escape, no white space but blanks, no name that is unknown or stands
twice, no number of more than 18 digits. Of what it takes every byte was looked at; all else is left to the parsers that
know every rule.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streams.compiled import compiled
from streams.plain_text import CLOSE, COLON, OPEN, OPEN_LIST, expect, member_after, quoted_end, word_at
from streams.records.json_kernel import COUNT, WORKLOAD_FROM, WORKLOAD_TO, read_column, read_instants, read_sources
from streams.records.samples import Bytes, Floats, Ints

HEAD: Final = ("v", "kind", "workload", "source", "ts_ms", "values")  # words, in the order of these numbers:
_V, _KIND, _WORKLOAD, _SOURCE, _TS_MS, _VALUES = range(6)
_KIND_NAME: Final = len(HEAD)
FIRST_FIELD: Final = _KIND_NAME + 1  # after the words of the head, and the name of the kind, those of the fields
_ONE = 49


@compiled
def _values(
    text: Bytes, at: int, words: Bytes, ends: Ints, values: Floats, first: int, long: Ints, found: Ints
) -> int:  # fmt: skip
    """Place after the object, -1 where it is not plain or its columns are not equally long."""
    num_fields = values.shape[1]
    seen = np.zeros(num_fields, np.bool_)
    guess, count, ended = 0, -1, False
    at = expect(text, at, OPEN)
    while not ended:
        end = quoted_end(text, at)
        if end < 0:
            return -1
        field = word_at(text, at + 1, end, words, ends, FIRST_FIELD, FIRST_FIELD + num_fields, guess) - FIRST_FIELD
        if field < 0 or seen[field]:
            return -1
        seen[field] = True
        guess = field + FIRST_FIELD + 1
        at = read_column(text, expect(text, expect(text, end + 1, COLON), OPEN_LIST), values, first, field, long, found)
        if at < 0 or (count >= 0 and found[COUNT] != count):
            return -1
        count = found[COUNT]
        at, ended = member_after(text, at, CLOSE)
    for field in range(num_fields):
        if not seen[field]:
            values[first : first + count, field] = np.nan
    return at


@compiled
def scan_packed(
    text: Bytes, words: Bytes, ends: Ints, first: int, values: Floats, ts_ms: Ints, source_of: Ints, spans: Ints,
    long: Ints, found: Ints,
) -> int:  # fmt: skip
    """Read a packed record of samples.

    Args:
        text: of the record.
        words, ends: the bytes of all words one after the other, and where each begins; the end of the last.
        first: row of the first sample.
        values, ts_ms, source_of: out, [rows, F], [rows] and [rows]; a missing value is NaN.
        spans: [most sources, 2] out: where in the text the names of the sources lie, by the numbers in `source_of`.
        long: [most, 4] out: row, field, and where in the text numbers lie that only a longer look makes exact.
        found: [NUM_FOUND] out.

    Returns:
        How many samples it holds; -1 where it is not plain, or there is no room for all that was to be noted.
    """
    found[:] = 0
    seen = 0
    count, ended = -1, False
    at = expect(text, 0, OPEN)
    while not ended:
        end = quoted_end(text, at)
        if end < 0:
            return -1
        name = word_at(text, at + 1, end, words, ends, 0, _KIND_NAME, _V)
        at = expect(text, end + 1, COLON)
        if name < 0 or seen & (1 << name) or at < 0 or at >= len(text):
            return -1
        seen |= 1 << name
        if name == _V:
            at = at + 1 if text[at] == _ONE else -1
        elif name in (_KIND, _WORKLOAD):
            end = quoted_end(text, at)
            if end < 0:
                return -1
            if name == _WORKLOAD:
                found[WORKLOAD_FROM], found[WORKLOAD_TO] = at + 1, end
            elif word_at(text, at + 1, end, words, ends, _KIND_NAME, FIRST_FIELD, _KIND_NAME) < 0:
                return -1
            at = end + 1
        else:
            if name == _SOURCE:
                at = read_sources(text, expect(text, at, OPEN_LIST), source_of, first, spans, found)
            elif name == _TS_MS:
                at = read_instants(text, expect(text, at, OPEN_LIST), ts_ms, first, found)
            else:
                at = _values(text, at, words, ends, values, first, long, found)
            if count >= 0 and found[COUNT] != count:
                return -1
            count = found[COUNT]
        if at < 0:
            return -1
        at, ended = member_after(text, at, CLOSE)
    return count if at == len(text) and seen == (1 << _KIND_NAME) - 1 else -1
