"""The slow JSON parser: finds faults that a fast parser accepts, and names the fault of a refused record."""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any, Never

MAX_DEPTH = 32
# An unfinished string runs to the end of the text, so that the scan stays linear on hostile input.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", bytes([1, 1, 255, 255]))  # +1 and -1 as signed bytes


class MalformedError(Exception):
    """The text is not a valid record. `code` is a dead-letter code."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class HugeInt(str):
    """Digits of an integer that no float64 holds exactly; kept as text, because converting it may cost minutes."""

    __slots__ = ()


def depth_of(value: bytes) -> int:
    """Deepest nesting of objects and arrays, found without parsing; strings are skipped.

    >>> depth_of(b'{"a": [1, "[[["]}')
    2
    """
    steps = _STRING.sub(b"", value).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b"), initial=0))


def read(value: bytes) -> Any:
    """Parse bytes as strictly as the wire contract demands.

    Returns:
        Plain JSON data; integers beyond 17 digits come back as `HugeInt`.

    Raises:
        MalformedError: `nesting` (deeper than `MAX_DEPTH`, found without parsing), `decode` (not JSON, not UTF-8, a
            byte-order mark, empty), `non_finite` (NaN, an infinity, a number that overflows) or `schema` (a key twice).
    """
    if not value:
        raise MalformedError("decode", "the value is empty")
    if value.startswith(b"\xef\xbb\xbf"):
        raise MalformedError("decode", "the value starts with a byte-order mark")
    if value.count(b"[") + value.count(b"{") > MAX_DEPTH:
        depth = depth_of(value)
        if depth > MAX_DEPTH:
            raise MalformedError("nesting", f"{depth} levels deep, the limit is {MAX_DEPTH}")
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError("decode", f"not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return _parse(text)
    except json.JSONDecodeError as error:
        raise MalformedError("decode", f"not JSON: {error.msg} at character {error.pos}") from None


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise MalformedError("non_finite", f"{text[:32]} overflows")
    return number


def _int(text: str) -> int | HugeInt:
    return int(text) if len(text) <= 17 else HugeInt(text)


def _constant(text: str) -> Never:
    raise MalformedError("non_finite", f"{text} is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise MalformedError("schema", f"key {name!r} stands twice in one object")
            names.add(name)
    return fields


# `json.loads` makes a new decoder for every text.
_parse = json.JSONDecoder(
    parse_float=_float, parse_int=_int, parse_constant=_constant, object_pairs_hook=_object
).decode
