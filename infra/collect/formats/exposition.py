"""The text that exporters serve, Prometheus' own format or OpenMetrics, read by prometheus_client's parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from infra.collect.points import EXPORTED, Point

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_EXEMPLAR = " # {"
_END_OF_OPENMETRICS = "# EOF"


class UnreadableError(Exception):
    """What was read is not what its format says; the message names the place."""


def read_exposition(
    text: str, name_filter: Callable[[str], bool], ts_ms: int, labels: Mapping[str, str] | None = None
) -> list[Point]:
    """The wanted samples of an exposition.

    Args:
        name_filter: true for the names of series to read; other lines are passed over unread.
        ts_ms: of samples without a time of their own, which is the rule.
        labels: added to every sample as Prometheus adds those of a target: a label that the sample itself has of that
            name becomes `exported_<name>`.

    Raises:
        UnreadableError: a line that is none; names it.
    """
    lines: list[str] = []
    numbers: list[int] = []
    # Only a line feed ends a line: what else `splitlines` takes for an end may stand in a label.
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        name = _NAME.match(line)
        if name is not None:
            if not name_filter(name.group()):
                continue
        elif not line.startswith("{"):
            if line.strip() and not line.startswith("#"):
                raise UnreadableError(f"line {number} is no sample: {line[:80]!r}")
            continue
        lines.append(line.partition(_EXEMPLAR)[0])
        numbers.append(number)
    # Times are seconds in OpenMetrics, milliseconds in the older format.
    per_unit = 1_000.0 if text.rstrip().endswith(_END_OF_OPENMETRICS) else 1.0
    points = []
    for sample in _samples(lines, numbers):
        if not name_filter(sample.name):
            continue
        try:
            at_ms = ts_ms if sample.timestamp is None else round(float(sample.timestamp) * 1_000 * per_unit)
            value = float(sample.value)
        except (OverflowError, ValueError):
            raise UnreadableError(f"{sample.name}: a value or a time of it is no number that can be held") from None
        points.append(Point(sample.name, with_target_labels(sample.labels, labels), at_ms, value))
    return points


def with_target_labels(own: Mapping[str, str], target: Mapping[str, str] | None) -> Mapping[str, str]:
    """A sample's labels joined with those of its target."""
    if not target:
        return own
    return {EXPORTED + name if name in target else name: value for name, value in own.items()} | dict(target)


def _samples(lines: Sequence[str], numbers: Sequence[int]) -> list[Sample]:
    # Without the TYPE lines, which were passed over, the parser leaves names as they stand.
    try:
        return list(_parsed("\n".join(lines)))
    except (ValueError, IndexError, OverflowError):
        for line, number in zip(lines, numbers, strict=True):
            try:
                list(_parsed(line))
            except (ValueError, IndexError, OverflowError) as error:
                reason = str(error) or "not a sample"
                raise UnreadableError(f"line {number}: {line[:80]!r}: {reason[:120]}") from None
        raise


def _parsed(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples
