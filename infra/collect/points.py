"""What every source is read into: one number of one series at one instant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from streams.records.schema import MAX_NUMBER

EXPORTED = "exported_"


class Point(NamedTuple):
    """A sample as an exporter names it.

    Attributes:
        name: of the series; a histogram comes as `<name>_bucket` with label `le`, `<name>_count` and `<name>_sum`.
        labels: without `__name__`; a label with an empty value counts as absent.
        ts_ms: when it was measured.
    """

    name: str
    labels: Mapping[str, str]
    ts_ms: int
    value: float


def is_measured(value: float) -> bool:
    """False for what stands for no value: NaN (so Prometheus marks an ended series), infinities, DCGM's 64-bit blanks.

    Blanks that a measurement may reach, such as DCGM's 32-bit ones, are for the profile to name.
    """
    return math.isfinite(value) and abs(value) < MAX_NUMBER


def own_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels that the exporter itself wrote, where Prometheus has moved them aside for those of the target."""
    moved = [name for name in labels if name.startswith(EXPORTED)]
    if not moved:
        return labels
    own = {name: value for name, value in labels.items() if not name.startswith(EXPORTED)}
    for name in moved:
        if labels[name]:
            own[name.removeprefix(EXPORTED)] = labels[name]
    return own
