"""prometheus-kafka-adapter's JSON: one sample a record, `{timestamp, value, name, labels}`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from infra.collect.formats.values import labels_of, naming, number, text_of, time_ms
from infra.collect.points import Point


def points(document: dict[str, Any], stamp_ms: int, _: Counter[str]) -> list[Point]:
    """The one point of a record."""
    labels = labels_of(document.get("labels"))
    name = text_of(labels.pop("__name__", None) or document.get("name"), "name")
    with naming(name):
        return [Point(name, labels, time_ms(document.get("timestamp"), stamp_ms), number(document.get("value")))]
