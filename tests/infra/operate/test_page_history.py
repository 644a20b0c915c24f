"""A history from pages: every observed cell once, the first copy of a slot, and back through a file unchanged."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.kafka.tail import TailRecord
from infra.lab.series import read_series
from infra.operate.export import NAMES, PageHistory, write_csv
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source, of_source
from streams.config import StreamConfig
from streams.pages.page import Page, WorkloadFacts
from tests.streams.pages.page_bytes import encode_page

STREAM = StreamConfig(step_ms=15_000)
FIRST = 112_000_000  # a slot of 2023


def page(source: Source, slot: int, workloads: tuple[str, ...], rng: np.random.Generator) -> Page:
    names = tuple(i.name for i in of_source(DEFAULT_CATALOGUE, source))
    shape = (len(workloads), len(names))
    return Page(
        source=source,
        partition=0,
        slot=slot,
        prev=None,
        prev_digest=None,
        end_offset=slot,
        end_stamp_ms=slot,
        resume_offset=slot,
        step_ms=STREAM.step_ms,
        grace_ms=STREAM.grace_ms,
        indicators=names,
        workloads=workloads,
        values=rng.lognormal(0.0, 5.0, shape).astype(np.float32),
        observed=rng.random(shape) < 0.7,
        facts=tuple(WorkloadFacts(1, slot, 1, 1) for _ in workloads),
    )


def taken(pages: list[Page], *, chunk_bytes: int = 700, wanted: tuple[str, ...] = ()) -> PageHistory:
    history = PageHistory(STREAM, 1, wanted)
    records = [record for one in pages for record in encode_page(one, 1, chunk_bytes).records]
    for offset, (key, value) in enumerate(records):
        history.take(TailRecord(0, offset, 0, key, value, ()))
    return history


@given(seed=st.integers(0, 2**32 - 1), gaps=st.sets(st.integers(1, 9)), chunk_bytes=st.integers(200, 5_000))
def test_what_was_observed_comes_back_from_the_file_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, seed: int, gaps: set[int], chunk_bytes: int
) -> None:
    rng = np.random.default_rng(seed)
    slots = [FIRST + k for k in range(12) if k not in gaps]
    pages = [page(source, slot, ("a", "b, the second"), rng) for slot in slots for source in SOURCES]
    out = io.StringIO()
    rows, indicators = write_csv(out, taken(pages, chunk_bytes=chunk_bytes).histories(), STREAM.step_ms)
    assert rows == 2 * len(slots)

    file = tmp_path_factory.mktemp("history") / "history.csv"
    file.write_text(out.getvalue())
    tables = {table.item_id: table for table in read_series(file, STREAM.step_ms)}
    assert sorted(tables) == ["a", "b, the second"]
    for k, table in enumerate(tables[name] for name in ("a", "b, the second")):
        assert table.indicators == indicators
        expected = np.full((12, len(NAMES)), np.nan, dtype=np.float32)
        for one in pages:
            columns = [NAMES.index(name) for name in one.indicators]
            expected[one.slot - FIRST, columns] = np.where(one.observed[k], one.values[k], np.nan)
        shown = [NAMES.index(name) for name in indicators]
        assert table.start_ts_ms == FIRST * STREAM.step_ms
        np.testing.assert_array_equal(table.values.astype(np.float32), expected[: len(table.values), shown])
        hidden = sorted(set(range(len(NAMES))) - set(shown))
        assert np.isnan(expected[:, hidden]).all()


def test_of_two_copies_of_a_slot_the_first_counts_and_a_torn_one_does_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first = page("requests", FIRST, ("a",), rng)
    second = replace(first, values=first.values + 1)
    (whole,) = taken([first, second]).histories()
    (alone,) = taken([first]).histories()
    np.testing.assert_array_equal(whole.values, alone.values)

    history = PageHistory(STREAM, 1)
    for offset, (key, value) in enumerate(encode_page(first, 1, 200).records[1:]):  # retention took the first chunk
        history.take(TailRecord(0, offset, 0, key, value, ()))
    assert list(history.histories()) == []


def test_only_who_is_wanted_and_only_so_long_ago() -> None:
    rng = np.random.default_rng(1)
    history = taken([page("requests", FIRST + k, ("a", "b"), rng) for k in range(10)], wanted=("b",))
    assert history.workloads == {"a", "b"}
    (kept,) = history.histories(since_s=60.0)
    assert (kept.workload, kept.slots.tolist()) == ("b", [FIRST + k for k in range(6, 10)])


def test_a_foreign_record_is_named_with_its_place() -> None:
    with pytest.raises(HarmonyError, match=r"pages, partition 3.*offset 17.*not a page chunk"):
        PageHistory(STREAM, 4).take(TailRecord(3, 17, 0, b"k", b"v", ()))
