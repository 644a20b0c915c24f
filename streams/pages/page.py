"""The slot page: commit record of ingest, changelog of the windowed state, and input of the forecast stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.catalogue import Source
from streams.records.facts import BatchQueue, Control, FleetFacts, HistogramState, OutcomeFact, SloCounts


class WorkloadFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts of one slot about one workload beside its indicator values.

    `newest_ts_ms` is the newest sample's time, or the newest fact's where `num_samples` is 0.
    `sources_known` counts the sources whose newest sample is at most `source_silence_steps` slots old, this slot
    included, and not older than L slots. `sources_seen` counts the sources with samples in this slot.
    """

    num_samples: int
    newest_ts_ms: int
    sources_seen: int
    sources_known: int
    censored: bool = False
    reset: bool = False
    fleet: FleetFacts | None = None
    outcomes: tuple[OutcomeFact, ...] = ()
    batch: tuple[BatchQueue, ...] = ()
    slo: tuple[SloCounts, ...] = ()


class SeriesState(msgspec.Struct, frozen=True, array_like=True):
    """Last values of the counters and histograms of one (workload, source), as of one slot's close.

    `ts_ms` is the newest sample's time; `older_ts_ms` holds the times of those fields that this sample did not carry.
    """

    workload: str
    source: str
    ts_ms: int
    counters: dict[str, float]
    hists: dict[str, HistogramState] = {}
    older_ts_ms: dict[str, int] = {}


class Counters(msgspec.Struct, frozen=True):
    """Cumulative counts of a chain, up to and including the closing offset.

    `records` counts everything read. `samples` (fleet facts and outcomes included) went into a slot; `late` and
    `duplicate` ones did not. `dead` counts dead-lettered records, `future` those of them that were ahead of the
    broker's clock. `refused` counts samples whose workload was one too many. `tombstones` are null values.
    """

    records: int = 0
    samples: int = 0
    late: int = 0
    duplicate: int = 0
    dead: int = 0
    future: int = 0
    refused: int = 0
    unknown_names: int = 0
    tombstones: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """One closed slot of one partition of one telemetry topic.

    Attributes:
        slot: covers `[slot*step_ms, (slot+1)*step_ms)`.
        prev, prev_digest: the chain's previous page; None for the first.
        end_offset: offset of the record whose stream time closed the slot.
        end_stamp_ms: that record's broker stamp.
        resume_offset: where reading must restart so that no open slot loses a sample.
        workloads: ids with at least one sample or fact in the slot, sorted.
        values: float32 [k, N]; 0 where not observed.
        observed: bool [k, N].
        facts: aligned with `workloads`.
        series: the (workload, source) pairs with samples in this slot, sorted.
    """

    source: Source
    partition: int
    slot: int
    prev: int | None
    prev_digest: str | None
    end_offset: int
    end_stamp_ms: int
    resume_offset: int
    step_ms: int
    grace_ms: int
    indicators: tuple[str, ...]
    workloads: tuple[str, ...]
    values: NDArray[np.float32]
    observed: NDArray[np.bool_]
    facts: Sequence[WorkloadFacts]
    series: Sequence[SeriesState] = ()
    controls: tuple[Control, ...] = ()
    counters: Counters = field(default_factory=Counters)
