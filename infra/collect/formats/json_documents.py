"""Files of JSON documents: one a line as collectors write them, or each over several lines as people print them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from infra.collect.formats.exposition import UnreadableError
from infra.collect.formats.raw_record import UnusableError, read_raw
from infra.collect.points import Point
from streams.records.strict_json import MalformedError

# How a line of an exposition begins that quotes the name of its series, or leaves it to a label.
_SERIES = re.compile(r'\{\s*(?:"(?:[^"\\]|\\.)*+"\s*[,}=]|[A-Za-z_][A-Za-z0-9_]*\s*=)')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?')
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def begins_document(text: str) -> bool:
    """True for the begin of a JSON object or array.

    >>> begins_document('{"name": "up"'), begins_document('{"up", job="a"} 1')
    (True, False)
    """
    return text[:1] in ("{", "[") and not _SERIES.match(text)


def read_documents(lines: Iterable[str], form: str, stamp_ms: int, passed_over: Counter[str]) -> Iterator[list[Point]]:
    """The points of each document.

    Args:
        form: one of `FORMATS`.
        stamp_ms: stands in for a missing time.
        passed_over: counts the numbers that cannot be used, by reason.

    Raises:
        UnreadableError: a document is none, or nothing in all of them can be used; names the line.
    """
    num_points = 0
    for line, text in _documents(lines):
        points: list[Point] = []
        try:
            points, unused = read_raw(text.encode(), stamp_ms, form)
        except UnusableError as error:
            unused = error.passed_over
        except MalformedError as error:
            raise UnreadableError(_fault(line, text, error)) from None
        num_points += len(points)
        passed_over.update(unused)
        yield points
    if not num_points and passed_over:
        raise UnreadableError(str(UnusableError(passed_over)))


def _documents(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The text of each document, with the number of its first line.

    Where the first line is a whole document every line is one, so that a torn line does not hide the next. Else a
    document ends where its brackets are closed.
    """
    one_a_line: bool | None = None
    begun, depth = 0, 0
    held: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            # Kept inside a document: its lines are counted.
            held += [line] if held else []
            continue
        begun = begun if held else number
        held.append(line)
        if not one_a_line:
            depth += sum(_STEPS.get(char, 0) for char in _STRING.sub("", line))
            one_a_line = depth <= 0 if one_a_line is None else one_a_line
        if one_a_line or depth <= 0:
            yield begun, "".join(held)
            held, depth = [], 0
    if held:
        yield begun, "".join(held)


def _fault(first_line: int, text: str, error: MalformedError) -> str:
    """What is wrong with a document, and where."""
    if error.code == "decode":
        try:
            json.loads(text.rstrip())
        except json.JSONDecodeError as fault:
            where = f"line {first_line + fault.lineno - 1}, column {fault.colno}"
            begun = f" of the document that begins in line {first_line}" if fault.lineno > 1 else ""
            return (
                f"{where}{begun}: not JSON: {fault.msg}; write whole documents, one a line or each over several lines"
            )
    return f"line {first_line}: {error.detail}"
