"""A page of any content as the records that hold it; what ingest writes comes from its own columns."""

from __future__ import annotations

from streams.pages.codec import CHUNK_BYTES, FORMAT, EncodedPage, PageHeader, seal_page
from streams.pages.facts_codec import PageFacts, PageSeries
from streams.pages.page import Page


def encode_page(page: Page, num_partitions: int, chunk_bytes: int = CHUNK_BYTES) -> EncodedPage:
    """Turn a page into chunk records; the same page gives the same bytes.

    Args:
        page: values [k, N] and observed [k, N] aligned with its workloads and indicators.
        num_partitions: of the telemetry topics, stored so that a later change is noticed.
        chunk_bytes: largest payload of one chunk.
    """
    k, n = len(page.workloads), len(page.indicators)
    if page.values.shape != (k, n) or page.observed.shape != (k, n) or len(page.facts) != k:
        raise ValueError(f"page of {k} workloads and {n} indicators has values of shape {page.values.shape}")
    header = PageHeader(
        v=FORMAT,
        source=page.source,
        partition=page.partition,
        num_partitions=num_partitions,
        slot=page.slot,
        prev=page.prev,
        prev_digest=page.prev_digest,
        end_offset=page.end_offset,
        end_stamp_ms=page.end_stamp_ms,
        resume_offset=page.resume_offset,
        step_ms=page.step_ms,
        grace_ms=page.grace_ms,
        indicators=page.indicators,
        workloads=page.workloads,
        facts=PageFacts.from_records(page.facts).columns,
        series=PageSeries.from_records(page.series, page.workloads).columns,
        controls=page.controls,
        counters=page.counters,
    )
    return seal_page(header, page.values, page.observed, chunk_bytes)
