"""The compiled reading of the lists of a packed record: numbers go from the text into their columns.

`at` is the place behind the opening bracket, the answer the one behind the closing; -1 where the list is not plain.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streams.compiled import compiled
from streams.plain_text import BLANK, COMMA, QUOTE, same, string_end
from streams.records.samples import Bytes, Floats, Ints

# What was found: these numbers.
COUNT, WORKLOAD_FROM, WORKLOAD_TO, NUM_SOURCES, NUM_LONG, NEWEST_MS, NUM_FOUND = range(7)

_CLOSE_LIST, _MINUS, _PLUS, _DOT, _ZERO, _NINE, _SMALL_E, _LARGE_E = 93, 45, 43, 46, 48, 57, 101, 69
# Names of sources are found by their FNV hash; whoever makes names that meet in it gains no more than the other parser.
_CELLS, _MOST_LOOKS, _MIX, _MASK = 1024, 8, 16_777_619, 0xFFFFFFFF
_MOST_DIGITS: Final = 18
_MOST_TS_DIGITS: Final = 15
# Whole numbers up to here and these powers are exact, so that one division or product rounds as the number would.
_EXACT: Final = 1 << 53
_MOST_POWER: Final = 22
_POWERS: Final = np.array([float(f"1e{power}") for power in range(_MOST_POWER + 1)])


@compiled
def _cell(text: Bytes, a: int, b: int, spans: Ints, table: Ints) -> int:
    """Cell of the table with the number of the name that stands here, or a free one for it; -1 after a few looks."""
    key = 0
    for i in range(a, b):
        key = ((key ^ text[i]) * _MIX) & _MASK
    for look in range(_MOST_LOOKS):
        cell = (key + look) % len(table)
        number = table[cell]
        if number < 0 or same(text, a, b, text, spans[number, 0], spans[number, 1]):
            return cell
    return -1


# Each list is read in one function, for a call per element takes several times as long as reading it.


@compiled
def read_sources(text: Bytes, at: int, source_of: Ints, first: int, spans: Ints, found: Ints) -> int:
    """Number the sources as they appear for the first time; their names lie at `spans`."""
    size, room, most = len(text), len(source_of) - first, len(spans)
    table = np.full(_CELLS, -1)
    turns = np.full(most + 1, -1)  # which came after each the last time: publishers mostly take them in turns
    num_sources, count, before = 0, 0, most
    while count < room and 0 <= at < size and text[at] == QUOTE:
        at += 1
        number = turns[before]
        repeated = number >= 0
        if repeated:
            start, length = spans[number, 0], spans[number, 1] - spans[number, 0]
            repeated = at + length < size and text[at + length] == QUOTE
            i = 0
            while repeated and i < length:
                repeated = text[at + i] == text[start + i]
                i += 1
            if repeated:
                at += length + 1
        if not repeated:
            end = string_end(text, at)
            if end < 0:
                return -1
            cell = _cell(text, at, end, spans, table)
            if cell < 0 or (table[cell] < 0 and num_sources == most):
                return -1
            if table[cell] < 0:
                table[cell] = num_sources
                spans[num_sources, 0], spans[num_sources, 1] = at, end
                num_sources += 1
            number = table[cell]
            turns[before] = number
            at = end + 1
        source_of[first + count] = number
        before = number
        count += 1
        if at < size and text[at] == _CLOSE_LIST:
            found[COUNT], found[NUM_SOURCES] = count, num_sources
            return at + 1
        if at >= size or text[at] != COMMA:
            return -1
        at += 1
        while at < size and text[at] == BLANK:
            at += 1
    return -1


@compiled
def read_instants(text: Bytes, at: int, ts_ms: Ints, first: int, found: Ints) -> int:
    """Event times of the samples."""
    size, room, count, newest = len(text), len(ts_ms) - first, 0, 0
    while count < room and at >= 0:
        start, instant = at, 0
        while at < size and _ZERO <= text[at] <= _NINE:
            instant = instant * 10 + (text[at] - _ZERO)
            at += 1
        if at == start or at - start > _MOST_TS_DIGITS or (at - start > 1 and text[start] == _ZERO):
            return -1
        ts_ms[first + count] = instant
        newest = max(newest, instant)
        count += 1
        if at < size and text[at] == _CLOSE_LIST:
            found[COUNT], found[NEWEST_MS] = count, newest
            return at + 1
        if at >= size or text[at] != COMMA:
            return -1
        at += 1
        while at < size and text[at] == BLANK:
            at += 1
    return -1


@compiled
def _exponent(text: Bytes, at: int) -> tuple[int, int]:
    """(exponent, place after it) from its letter on; place -1 where it is none, or has more than two digits."""
    at += 1
    down = at < len(text) and text[at] == _MINUS
    if at < len(text) and (down or text[at] == _PLUS):
        at += 1
    exponent, start = 0, at
    while at < len(text) and _ZERO <= text[at] <= _NINE:
        exponent = exponent * 10 + (text[at] - _ZERO)
        at += 1
    if at == start or at - start > 2:
        return 0, -1
    return (-exponent if down else exponent), at


@compiled
def _leading_zeros(text: Bytes, at: int) -> int:
    """Zeros before the first other digit of the number that begins here."""
    zeros = 0
    while at < len(text) and (text[at] == _ZERO or text[at] == _DOT or text[at] == _MINUS):
        zeros += text[at] == _ZERO
        at += 1
    return zeros


@compiled
def _null(text: Bytes, at: int) -> bool:
    return at + 3 < len(text) and text[at] == 110 and text[at + 1] == 117 and text[at + 2] == text[at + 3] == 108


@compiled
def read_column(text: Bytes, at: int, values: Floats, first: int, field: int, long: Ints, found: Ints) -> int:  # noqa: C901
    """Values of one field, NaN for null; of numbers that are not exact the place is noted in `long`."""
    size, room, count = len(text), len(values) - first, 0
    column = values[first:, field]
    while count < room and 0 <= at < size:
        start = at
        negative = text[at] == _MINUS
        if negative:
            at += 1
        mark, whole, power = at, 0, 0
        while at < size and _ZERO <= text[at] <= _NINE:
            whole = whole * 10 + (text[at] - _ZERO)
            at += 1
        digits = at - mark
        if digits > 1 and text[mark] == _ZERO:
            return -1
        if digits > 0 and at < size and text[at] == _DOT:
            at += 1
            mark = at
            while at < size and _ZERO <= text[at] <= _NINE:
                whole = whole * 10 + (text[at] - _ZERO)
                at += 1
            power = mark - at
            if power == 0:
                return -1
            digits -= power
        if digits > 0 and at < size and (text[at] == _SMALL_E or text[at] == _LARGE_E):
            exponent, at = _exponent(text, at)
            power += exponent
        if at < 0 or (digits > _MOST_DIGITS and digits - _leading_zeros(text, start) > _MOST_DIGITS):
            return -1
        if digits == 0:
            if negative or not _null(text, at):
                return -1
            at += 4
            column[count] = np.nan
        elif whole > _EXACT or power < -_MOST_POWER or power > _MOST_POWER:
            num = found[NUM_LONG]
            if num == len(long):
                return -1
            long[num, 0], long[num, 1], long[num, 2], long[num, 3] = first + count, field, start, at
            found[NUM_LONG] = num + 1
        else:
            value = whole / _POWERS[-power] if power < 0 else whole * _POWERS[power]
            column[count] = -value if negative else value
        count += 1
        if at < size and text[at] == _CLOSE_LIST:
            found[COUNT] = count
            return at + 1
        if at >= size or text[at] != COMMA:
            return -1
        at += 1
        while at < size and text[at] == BLANK:
            at += 1
    return -1
