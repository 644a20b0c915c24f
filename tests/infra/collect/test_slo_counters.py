"""Good requests counted from a histogram."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policy import Slo
from infra.collect.mapping.choices import slo_counters
from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader
from infra.collect.mapping.workloads import Identities
from streams.records.facts import HistogramState
from tests.infra.collect.samples import VLLM, packed, readings_of

EDGES = (0.5, 1.0, 2.5)


@pytest.mark.parametrize(
    ("ttft_s", "good"), [(0.5, 40.0), (1.0, 80.0), (1.75, 85.0), (2.5, 90.0), (9.0, 90.0), (0.25, 20.0)]
)
def test_bounds_are_exact_between_them_it_is_interpolated_beyond_them_not_good(ttft_s: float, good: float) -> None:
    h = HistogramState(EDGES, (40.0, 80.0, 90.0), 100.0, 77.0)
    assert slo_counters(Slo(ttft_s=ttft_s), h) == {"slo_good_total": good, "slo_total": 100.0}


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=2, max_size=6), st.floats(0.01, 5))
def test_both_only_grow_and_good_is_a_part_of_all(gains: list[list[int]], ttft_s: float) -> None:
    said = []
    for counts in np.cumsum(np.array(gains), axis=0):
        cumulative = np.cumsum(counts)
        h = HistogramState(EDGES, tuple(map(float, cumulative[:3])), float(cumulative[3]), 1.0)
        counters = slo_counters(Slo(ttft_s=ttft_s), h)
        said.append((counters["slo_good_total"], counters["slo_total"]))
    assert all(0 <= good <= total for good, total in said)
    assert all(a[0] <= b[0] + 1e-9 and a[1] <= b[1] for a, b in pairwise(said))


def test_a_workload_with_a_promise_gets_its_counters_and_others_do_not() -> None:
    for slos, wanted in (({"w": Slo(ttft_s=0.5)}, (80.0, 100.0)), ({"other": Slo()}, (None, None)), ({}, (None, None))):
        by = Reader(choose(("vllm",)).profiles, Identities({}, (), "w"), slos.get)
        (reading,) = readings_of(VLLM, by)
        assert (reading.values.get("slo_good_total"), reading.values.get("slo_total")) == wanted
        packed([reading])
