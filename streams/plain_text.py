"""Plain text in compiled loops: blanks, strings of printable ASCII without escapes, and known words."""

from __future__ import annotations

from streams.compiled import compiled
from streams.records.samples import Bytes, Ints

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
    """Place after this byte and the blanks around it; -1 when another stands there."""
    if at < 0:
        return -1
    at = skip_blanks(text, at)
    return skip_blanks(text, at + 1) if at < len(text) and text[at] == byte else -1


@compiled
def member_after(text: Bytes, at: int, close: int) -> tuple[int, bool]:
    """(place of the next member, or after the object; whether it has ended); place -1 where neither is."""
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
def same(one: Bytes, a: int, b: int, other: Bytes, c: int, d: int) -> bool:
    if b - a != d - c:
        return False
    for i in range(b - a):  # noqa: SIM110 - numba knows no `all`
        if one[a + i] != other[c + i]:
            return False
    return True


@compiled
def word_at(text: Bytes, a: int, b: int, words: Bytes, ends: Ints, first: int, last: int, guess: int) -> int:
    """Number of the word that stands here, from `first` to `last`, most likely `guess`; -1: none of them."""
    if first <= guess < last and same(text, a, b, words, ends[guess], ends[guess + 1]):
        return guess
    for number in range(first, last):
        if same(text, a, b, words, ends[number], ends[number + 1]):
            return number
    return -1
