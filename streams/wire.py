"""Field layout of telemetry records on the wire, as the fast decoder reads them; single and packed share one layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from streams.catalogue import Source
from streams.unreadable import UNREADABLE


class HistogramWire(msgspec.Struct, gc=False):
    """A cumulative histogram: finite ascending upper bounds, counts at or below each, all counts, sum of values."""

    le: tuple[float, ...]
    cumulative: tuple[float, ...]
    count: float
    sum: float


class SamplesWire(msgspec.Struct, gc=False, tag_field="kind"):
    v: int
    workload: str
    source: str | list[str]
    values: dict[str, float | list[float | None] | None]
    ts_ms: int | list[int] | UnsetType = UNSET
    hist: dict[str, HistogramWire | list[HistogramWire | None] | None] | None = None


class RequestsWire(SamplesWire, gc=False, tag_field="kind", tag="requests"):
    """Samples of the request side."""


class GpuWire(SamplesWire, gc=False, tag_field="kind", tag="gpu"):
    """Samples of the device side."""


class FleetWire(msgspec.Struct, gc=False, tag_field="kind", tag="fleet"):
    v: int
    workload: str
    source: str | list[str]
    values: dict[str, int | list[int | None] | None]
    ts_ms: int | list[int] | UnsetType = UNSET


class OutcomeWire(msgspec.Struct, gc=False, tag_field="kind", tag="outcome"):
    v: int
    workload: str
    source: str
    command_id: str
    status: str
    ts_ms: int | UnsetType = UNSET
    replicas_ready: int | None = None
    lead_time_s: float | None = None


class BatchJobWire(msgspec.Struct, gc=False):
    due_ts_ms: int
    tokens: float


class BatchWire(msgspec.Struct, gc=False, tag_field="kind", tag="batch"):
    v: int
    workload: str
    source: str
    jobs: list[BatchJobWire]
    ts_ms: int | UnsetType = UNSET


class ClassCountsWire(msgspec.Struct, gc=False):
    good_total: float
    total: float


class SloWire(msgspec.Struct, gc=False, tag_field="kind", tag="slo"):
    v: int
    workload: str
    source: str
    classes: dict[str, ClassCountsWire]
    ts_ms: int | UnsetType = UNSET


class TickWire(msgspec.Struct, gc=False, tag_field="kind", tag="tick"):
    v: int
    ts_ms: int


class ControlWire(msgspec.Struct, gc=False, tag_field="kind", tag="control"):
    v: int
    control_id: str
    action: str
    ts_ms: int | UnsetType = UNSET
    workload: str | None = None
    mode: str | None = None
    replicas: int | None = None
    until_ts_ms: int | None = None
    by: str = ""
    reason: str = ""


RequestsTopicWire = RequestsWire | FleetWire | BatchWire | SloWire | OutcomeWire | TickWire | ControlWire
GpuTopicWire = GpuWire | FleetWire | OutcomeWire | TickWire
KINDS: dict[Source, tuple[str, ...]] = {
    "requests": ("requests", "fleet", "batch", "slo", "outcome", "tick", "control"),
    "gpu": ("gpu", "fleet", "outcome", "tick"),
}

# What a parser says of a text that is not of its layout.
REFUSED = (*UNREADABLE, TypeError)
# Colons between the keys and values of a record without any name of its own: v, kind, workload, source, ts_ms, values.
FRAME_COLONS = 6

_MOST_TS_MS = 1 << 53
_Instant = Annotated[int, msgspec.Meta(ge=0, lt=_MOST_TS_MS)]


def sample_struct(name: str, kind: Source, fields: Sequence[str], value: Any, default: Any, many: bool) -> Any:
    """Layout of the ordinary samples of one topic, its known fields as attributes: all that the fast reading takes.

    Args:
        value, default: type of a field, and what stands for one that is not there.
        many: packed records, which come without histograms, or single ones.
    """
    values = msgspec.defstruct(f"{name}Values", [(f, value, default) for f in fields], gc=False)
    layout: list[Any] = [
        ("v", Literal[1]),
        # Not as a tag: of a struct that stands alone msgspec does not ask that its tag be there.
        ("kind", Literal[kind]),
        ("workload", str),
        ("source", list[str] if many else str),
        ("values", values),
        ("ts_ms", list[_Instant] if many else _Instant),
    ]
    if not many:
        layout.append(("hist", dict[str, HistogramWire] | None, None))
    return msgspec.defstruct(name, layout, gc=False)
