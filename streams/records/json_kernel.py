"""Reading packed JSON records, compiled: numbers go from the text into their columns, with no object in between.

Only plain text is accepted: printable ASCII, no escape, no white space but blanks, no unknown or repeated name, and no
number of more than 18 digits. Every byte of an accepted record is checked. All others go to the parsers that know every
rule.

`at` is a place in the text. A reader of a list starts behind the opening bracket. It returns the place behind the
closing one, or -1 where the list is not plain. Each list is read in one function, because a call per element takes
several times as long as reading it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streams.compiled import compiled
from streams.records.samples import Bools, Bytes, Floats, Ints

QUOTE, COMMA, COLON, BLANK, OPEN_LIST, OPEN, CLOSE = 34, 44, 58, 32, 91, 123, 125
_ESCAPE, _LAST_PRINTABLE = 92, 126


@compiled
def skip_blanks(text: Bytes, at: int) -> int:
    """First place from here on that holds no blank."""
    while at < len(text) and text[at] == BLANK:
        at += 1
    return at


@compiled
def expect(text: Bytes, at: int, byte: int) -> int:
    """Place after this byte and the blanks around it; -1 when another byte is there."""
    if at < 0:
        return -1
    at = skip_blanks(text, at)
    return skip_blanks(text, at + 1) if at < len(text) and text[at] == byte else -1


@compiled
def member_after(text: Bytes, at: int, close: int) -> tuple[int, bool]:
    """(place of the next member or after the object, whether the object has ended); place -1 on any other text."""
    at = skip_blanks(text, at)
    if at < len(text) and text[at] == close:
        return skip_blanks(text, at + 1), True
    return expect(text, at, COMMA), False


@compiled
def string_end(text: Bytes, at: int) -> int:
    """Place of the quote that ends the string whose first byte is here; -1 when it is not plain."""
    while at < len(text):
        byte = text[at]
        if byte == QUOTE:
            return at
        if byte < BLANK or byte > _LAST_PRINTABLE or byte == _ESCAPE:
            return -1
        at += 1
    return -1


@compiled
def quoted_end(text: Bytes, at: int) -> int:
    """Place of the closing quote of the string whose opening quote is here; -1 when none begins, or it is not plain."""
    return string_end(text, at + 1) if 0 <= at < len(text) and text[at] == QUOTE else -1


@compiled
def equal_bytes(one: Bytes, a: int, b: int, other: Bytes, c: int, d: int) -> bool:
    """Whether `one[a:b]` and `other[c:d]` are equal."""
    if b - a != d - c:
        return False
    for i in range(b - a):  # noqa: SIM110 - numba knows no `all`
        if one[a + i] != other[c + i]:
            return False
    return True


@compiled
def word_at(text: Bytes, a: int, b: int, vocab: Bytes, ends: Ints, first: int, last: int, guess: int) -> int:
    """Number of the word `text[a:b]` among those from `first` to `last`, tried at `guess` first; -1: none of them."""
    if first <= guess < last and equal_bytes(text, a, b, vocab, ends[guess], ends[guess + 1]):
        return guess
    for number in range(first, last):
        if equal_bytes(text, a, b, vocab, ends[number], ends[number + 1]):
            return number
    return -1


# Entries of the output `header` of `scan_packed`.
COUNT, WORKLOAD_FROM, WORKLOAD_TO, NUM_SOURCES, NUM_LONG, NEWEST_MS, HEADER_SIZE = range(7)

_CLOSE_LIST, _MINUS, _PLUS, _DOT, _ZERO, _NINE, _SMALL_E, _LARGE_E = 93, 45, 43, 46, 48, 57, 101, 69
# Hash table of source names (FNV-1, Fowler, Noll and Vo). A record with colliding names only goes to the slower parser.
_CELLS, _MAX_PROBES, _FNV_PRIME, _MASK = 1024, 8, 16_777_619, 0xFFFFFFFF
_MAX_DIGITS: Final = 18
_MAX_TS_DIGITS: Final = 15
# Integers up to here and these powers of ten are exact in float64, so one division or product rounds correctly
# (Clinger, How to Read Floating Point Numbers Accurately, PLDI 1990).
_EXACT: Final = 1 << 53
_MAX_POWER: Final = 22
_POWERS: Final = np.array([float(f"1e{power}") for power in range(_MAX_POWER + 1)])


@compiled
def _cell(text: Bytes, a: int, b: int, spans: Ints, table: Ints) -> int:
    """Cell of the table with the number of the name `text[a:b]`, or a free one for it; -1 after a few probes."""
    key = 0
    for i in range(a, b):
        key = ((key ^ text[i]) * _FNV_PRIME) & _MASK
    for probe in range(_MAX_PROBES):
        cell = (key + probe) % len(table)
        number = table[cell]
        if number < 0 or equal_bytes(text, a, b, text, spans[number, 0], spans[number, 1]):
            return cell
    return -1


@compiled
def read_sources(text: Bytes, at: int, source_of: Ints, first: int, spans: Ints, header: Ints) -> int:
    """Read the sources and number them in order of first appearance; `spans` receives the places of their names."""
    size, room, most = len(text), len(source_of) - first, len(spans)
    table = np.full(_CELLS, -1)
    turns = np.full(most + 1, -1)  # the successor of each source: records mostly list them in turns
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
            header[COUNT], header[NUM_SOURCES] = count, num_sources
            return at + 1
        if at >= size or text[at] != COMMA:
            return -1
        at += 1
        while at < size and text[at] == BLANK:
            at += 1
    return -1


@compiled
def read_instants(text: Bytes, at: int, ts_ms: Ints, first: int, header: Ints) -> int:
    """Read the event times of the samples."""
    size, room, count, newest = len(text), len(ts_ms) - first, 0, 0
    while count < room and at >= 0:
        start, instant = at, 0
        while at < size and _ZERO <= text[at] <= _NINE:
            instant = instant * 10 + (text[at] - _ZERO)
            at += 1
        if at == start or at - start > _MAX_TS_DIGITS or (at - start > 1 and text[start] == _ZERO):
            return -1
        ts_ms[first + count] = instant
        newest = max(newest, instant)
        count += 1
        if at < size and text[at] == _CLOSE_LIST:
            header[COUNT], header[NEWEST_MS] = count, newest
            return at + 1
        if at >= size or text[at] != COMMA:
            return -1
        at += 1
        while at < size and text[at] == BLANK:
            at += 1
    return -1


@compiled
def _exponent(text: Bytes, at: int) -> tuple[int, int]:
    """(exponent, place after it), read from its letter on; place -1 where it is malformed or has over two digits."""
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
    """Whether the text here is `null`."""
    return at + 3 < len(text) and text[at] == 110 and text[at + 1] == 117 and text[at + 2] == text[at + 3] == 108


@compiled
def read_column(text: Bytes, at: int, values: Floats, first: int, field: int, long: Ints, header: Ints) -> int:  # noqa: C901
    """Read the values of one field, NaN for null; `long` receives the places of numbers that need exact parsing."""
    size, room, count = len(text), len(values) - first, 0
    column = values[first:, field]
    while count < room and 0 <= at < size:
        start = at
        negative = text[at] == _MINUS
        if negative:
            at += 1
        mark, mantissa, power = at, 0, 0
        while at < size and _ZERO <= text[at] <= _NINE:
            mantissa = mantissa * 10 + (text[at] - _ZERO)
            at += 1
        digits = at - mark
        if digits > 1 and text[mark] == _ZERO:
            return -1
        if digits > 0 and at < size and text[at] == _DOT:
            at += 1
            mark = at
            while at < size and _ZERO <= text[at] <= _NINE:
                mantissa = mantissa * 10 + (text[at] - _ZERO)
                at += 1
            power = mark - at
            if power == 0:
                return -1
            digits -= power
        if digits > 0 and at < size and (text[at] == _SMALL_E or text[at] == _LARGE_E):
            exponent, at = _exponent(text, at)
            power += exponent
        if at < 0 or (digits > _MAX_DIGITS and digits - _leading_zeros(text, start) > _MAX_DIGITS):
            return -1
        if digits == 0:
            if negative or not _null(text, at):
                return -1
            at += 4
            column[count] = np.nan
        elif mantissa > _EXACT or power < -_MAX_POWER or power > _MAX_POWER:
            num = header[NUM_LONG]
            if num == len(long):
                return -1
            long[num, 0], long[num, 1], long[num, 2], long[num, 3] = first + count, field, start, at
            header[NUM_LONG] = num + 1
        else:
            value = mantissa / _POWERS[-power] if power < 0 else mantissa * _POWERS[power]
            column[count] = -value if negative else value
        count += 1
        if at < size and text[at] == _CLOSE_LIST:
            header[COUNT] = count
            return at + 1
        if at >= size or text[at] != COMMA:
            return -1
        at += 1
        while at < size and text[at] == BLANK:
            at += 1
    return -1


HEAD: Final = ("v", "kind", "workload", "source", "ts_ms", "values")  # words, in the order of these numbers
_V, _KIND, _WORKLOAD, _SOURCE, _TS_MS, _VALUES = range(6)
_KIND_NAME: Final = len(HEAD)
FIRST_FIELD: Final = _KIND_NAME + 1  # after the words of the head, and the name of the kind, those of the fields
_ONE = 49


@compiled
def _values(
    text: Bytes, at: int, vocab: Bytes, ends: Ints, values: Floats, first: int, long: Ints, header: Ints
) -> int:  # fmt: skip
    """Read the object of columns; returns the place after it, -1 where it is not plain or its lengths differ."""
    num_fields = values.shape[1]
    has_column = np.zeros(num_fields, np.bool_)
    guess, count, ended = 0, -1, False
    at = expect(text, at, OPEN)
    while not ended:
        end = quoted_end(text, at)
        if end < 0:
            return -1
        field = word_at(text, at + 1, end, vocab, ends, FIRST_FIELD, FIRST_FIELD + num_fields, guess) - FIRST_FIELD
        if field < 0 or has_column[field]:
            return -1
        has_column[field] = True
        guess = field + FIRST_FIELD + 1
        at = read_column(
            text, expect(text, expect(text, end + 1, COLON), OPEN_LIST), values, first, field, long, header
        )
        if at < 0 or (count >= 0 and header[COUNT] != count):
            return -1
        count = header[COUNT]
        at, ended = member_after(text, at, CLOSE)
    for field in range(num_fields):
        if not has_column[field]:
            values[first : first + count, field] = np.nan
    return at


@compiled
def scan_packed(
    text: Bytes, vocab: Bytes, ends: Ints, first: int, values: Floats, ts_ms: Ints, source_of: Ints, spans: Ints,
    long: Ints, header: Ints,
) -> int:  # fmt: skip
    """Read a packed record of samples.

    Args:
        text: of the record.
        vocab, ends: the bytes of all words one after the other, and the start of each, with the end of the last.
        first: row of the first sample.
        values, ts_ms, source_of: out, [rows, F], [rows] and [rows]; a missing value is NaN.
        spans: [max sources, 2] out: start and end in the text of each source name, by the numbers in `source_of`.
        long: [max, 4] out: row, field, and start and end in the text of numbers that need exact parsing.
        header: [HEADER_SIZE] out.

    Returns:
        Number of samples; -1 where the record is not plain, or an output has no room for it.
    """
    header[:] = 0
    name_bits = 0
    count, ended = -1, False
    at = expect(text, 0, OPEN)
    while not ended:
        end = quoted_end(text, at)
        if end < 0:
            return -1
        name = word_at(text, at + 1, end, vocab, ends, 0, _KIND_NAME, _V)
        at = expect(text, end + 1, COLON)
        if name < 0 or name_bits & (1 << name) or at < 0 or at >= len(text):
            return -1
        name_bits |= 1 << name
        if name == _V:
            at = at + 1 if text[at] == _ONE else -1
        elif name in (_KIND, _WORKLOAD):
            end = quoted_end(text, at)
            if end < 0:
                return -1
            if name == _WORKLOAD:
                header[WORKLOAD_FROM], header[WORKLOAD_TO] = at + 1, end
            elif word_at(text, at + 1, end, vocab, ends, _KIND_NAME, FIRST_FIELD, _KIND_NAME) < 0:
                return -1
            at = end + 1
        else:
            if name == _SOURCE:
                at = read_sources(text, expect(text, at, OPEN_LIST), source_of, first, spans, header)
            elif name == _TS_MS:
                at = read_instants(text, expect(text, at, OPEN_LIST), ts_ms, first, header)
            else:
                at = _values(text, at, vocab, ends, values, first, long, header)
            if count >= 0 and header[COUNT] != count:
                return -1
            count = header[COUNT]
        if at < 0:
            return -1
        at, ended = member_after(text, at, CLOSE)
    return count if at == len(text) and name_bits == (1 << _KIND_NAME) - 1 else -1


@compiled
def within(
    values: Floats, least: Floats, greatest: Floats, lower: Floats, upper: Floats, parts: Ints, tolerance: float,
    good: Bools,
) -> bool:  # fmt: skip
    """Whether all values of all samples lie in their bounds.

    Args:
        values: [n, F], NaN where missing; one beyond a bound by rounding becomes the bound, in place.
        least, greatest: [F] bounds with the overshoot of rounding; `lower`, `upper` [F] the bounds.
        parts: [ratios, 2] fields of which the first must not exceed the second times 1 + `tolerance`.
        good: [n] out: the samples whose values all lie in their bounds.
    """
    every = True
    for i in range(len(values)):
        fine = True
        for p in range(len(parts)):
            # A comparison with NaN is false: what is missing lies in every bound.
            if values[i, parts[p, 0]] > values[i, parts[p, 1]] * (1 + tolerance):
                fine = False
        for f in range(values.shape[1]):
            value = values[i, f]
            if value < least[f] or value > greatest[f]:
                fine = False
            elif not np.isnan(value):
                # Adding 0 turns -0 into 0.
                values[i, f] = min(max(value, lower[f]), upper[f]) + 0.0
        good[i] = fine
        every &= fine
    return every
