"""The text that exporters serve, in Prometheus' own format or OpenMetrics.

Source: "Exposition formats" of Prometheus' documentation, with the quoted UTF-8 names of Prometheus 3; the OpenMetrics
specification 1.0. The suite compares the reader with the parsers of prometheus_client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from infra.collect.formats.values import count_ms, parse_number, with_aliases
from infra.collect.points import EXPORTED, Point

_MARGIN = " \t\r\ufeff"  # blanks around a line, and the byte-order mark that its file began with
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_NAME_LABEL = "__name__"
_OPENED = re.compile(r"[ \t]*\{")
_CLOSED = re.compile(r"[ \t]*\}")
# One `name="text"` of a set of labels, or the quoted name of the series.
_LABEL = re.compile(
    r"""[ \t]* (?: (?P<name> [A-Za-z_][A-Za-z0-9_]* ) (?= [ \t]* = ) | "(?P<quoted> (?:[^"\\]|\\.)*+ )" )
    [ \t]* (?: = [ \t]* "(?P<text> (?:[^"\\]|\\.)*+ )" [ \t]* )? (?: , | (?= \} ) )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r'\\([\\n"])')
_WORD = re.compile(r"[^ \t]+")
_MOST_CHARS = 80


class UnreadableError(Exception):
    """What was read is not what its format says; the message names the place."""


def read_exposition(
    text: str, name_filter: Callable[[str], bool], ts_ms: int, labels: Mapping[str, str] | None = None
) -> list[Point]:
    """The wanted samples of an exposition.

    Names are taken as they stand. A time of a sample's own counts in seconds in OpenMetrics and in milliseconds in the
    older format; its size says which. Comments, exemplars and lines of other series are passed over unread.

    Args:
        name_filter: true for the names of series to read.
        ts_ms: of samples without a time of their own, which is the rule.
        labels: added to every sample as Prometheus adds those of a target: a label that the sample itself has of that
            name becomes `exported_<name>`.

    Raises:
        UnreadableError: a line that is none; names it.
    """
    points = []
    # Only a line feed ends a line: what else `splitlines` takes for an end may stand in a label.
    for number, line in enumerate(text.split("\n"), 1):
        try:
            point = _point(line.rstrip(_MARGIN), name_filter, ts_ms)
        except _Fault as fault:
            raise UnreadableError(f"line {number}{fault}") from None
        if point is not None:
            points.append(point._replace(labels=with_target_labels(point.labels, labels)))
    return points


def with_target_labels(own: Mapping[str, str], target: Mapping[str, str] | None) -> Mapping[str, str]:
    """A sample's labels joined with those of its target."""
    if not target:
        return own
    return {EXPORTED + name if name in target else name: value for name, value in own.items()} | dict(target)


class _Fault(Exception):
    """What is wrong with a line, to follow its number."""


def _point(line: str, name_filter: Callable[[str], bool], ts_ms: int) -> Point | None:
    """The sample of a line without its end; None for a comment, an empty line or another series."""
    at = len(line) - len(line.lstrip(_MARGIN))
    if line[at : at + 1] in ("", "#"):
        return None
    found = _NAME.match(line, at)
    if found is not None and not name_filter(found.group()):
        return None
    name, end = (found.group(), found.end()) if found else ("", at)
    labels: dict[str, str] = {}
    opened = _OPENED.match(line, end)
    if opened is not None:
        quoted_name, labels, end = _labels(line, opened.end())
        if bool(name) == bool(quoted_name):
            raise _Fault(f": the series has {'two names' if name else 'no name'}: {line[at : at + _MOST_CHARS]!r}")
        name = name or quoted_name
    elif found is None or line[end : end + 1] not in (" ", "\t"):
        raise _Fault(f' is no sample such as name{{label="text"}} 4.5: {line[at : at + _MOST_CHARS]!r}')
    if not name_filter(name):
        return None
    comment = line.find("#", end)
    words = list(_WORD.finditer(line, end, len(line) if comment < 0 else comment))
    if not 1 <= len(words) <= 2:
        raise _Fault(f", column {end + 1}: after the name stand {len(words)} words; write a value and at most one time")
    value = parse_number(words[0].group())
    if value is None:
        raise _Fault(f", column {words[0].start() + 1}: {_quoted(words[0])} is no number; write it such as 4.5")
    if len(words) == 2:
        count = parse_number(words[1].group())
        at_ms = None if count is None else count_ms(count)
        if at_ms is None:
            raise _Fault(
                f", column {words[1].start() + 1}: {_quoted(words[1])} is no time; write milliseconds since 1970"
            )
        ts_ms = at_ms
    return Point(name, labels, ts_ms, value)


def _labels(line: str, at: int) -> tuple[str, dict[str, str], int]:
    """The series' name where it stands among its labels, the labels, and where they end; `at` is behind the brace."""
    labels: dict[str, str] = {}
    while (closed := _CLOSED.match(line, at)) is None:
        label = _LABEL.match(line, at)
        if label is None:
            raise _Fault(f', column {at + 1}: {line[at : at + _MOST_CHARS]!r} begins with no label such as name="text"')
        key, text = _unescaped(label["name"] or label["quoted"]), label["text"]
        key, text = (_NAME_LABEL, key) if text is None else (key, _unescaped(text))
        if key in labels:
            raise _Fault(f", column {at + 1}: {key[:_MOST_CHARS]!r} stands twice among the labels")
        labels[key] = text
        at = label.end()
    name = labels.pop(_NAME_LABEL, "")
    return name, with_aliases(labels), closed.end()


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text


def _quoted(word: re.Match[str]) -> str:
    return repr(word.group()[:_MOST_CHARS])
