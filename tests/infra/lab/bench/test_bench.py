"""The benches measure what they say: one job in every form, rivals that compute it, figures that are computed right."""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from infra.console.errors import HarmonyError
from infra.lab.bench import scale
from infra.lab.bench.cli import app
from infra.lab.bench.inference import InferenceBench, _flops_per_window, _subjects, run_inference_bench
from infra.lab.bench.job import (
    CATALOGUE,
    FIELDS,
    NUM_WORKLOADS,
    PARTITIONS,
    START_TS_MS,
    STREAM,
    closing_tick,
    partition_of,
    records,
    samples,
)
from infra.lab.bench.latency import StageStamps, _by_batch, _by_forecaster, parts_ms
from infra.lab.bench.live_loop import step_ms_for
from infra.lab.bench.scale import measure, ring_kb, slopes
from infra.lab.bench.subjects import RIVALS
from infra.lab.report import percentile, spread
from streams.catalogue import DEFAULT_CATALOGUE
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.pages.codec import PageAssembler
from streams.pages.page import Page
from streams.topics import Topics

COUNT = 8_000


def pages_of(form: str) -> dict[int, Page]:
    """Pages of partition 0 that hold something."""
    mine = [value for key, value in records(form, COUNT) if partition_of(key, PARTITIONS) == 0]  # type: ignore[arg-type]
    stamp_ms = START_TS_MS + 10_000_000
    keys = [key for key, _ in records(form, COUNT) if partition_of(key, PARTITIONS) == 0]  # type: ignore[arg-type]
    log = [LogRecord(i, stamp_ms, key, value) for i, (key, value) in enumerate(zip(keys, mine, strict=True))]
    log.append(LogRecord(len(log), stamp_ms, None, closing_tick(COUNT)))
    kernel = IngestKernel(0, "requests", STREAM, CATALOGUE, Topics())
    assembler = PageAssembler(STREAM, PARTITIONS, CATALOGUE)
    out = [c for e in kernel.fold(log) for c in e.commits]
    found = [p.page for i, c in enumerate(out) for p in assembler.feed(LogRecord(i, 0, c.key, c.value))]
    assert kernel.counters.dead == kernel.counters.late == kernel.counters.duplicate == 0
    return {page.slot: page for page in found if page.workloads}


@pytest.mark.parametrize("form", ["packed", "binary"])
def test_other_forms_hold_the_same_job(form: str) -> None:
    single, packed = pages_of("single"), pages_of(form)
    assert single.keys() == packed.keys()
    assert len(single) == COUNT // (NUM_WORKLOADS * 5)
    for slot, page in single.items():
        other = packed[slot]
        assert page.workloads == other.workloads
        assert page.observed.tobytes() == other.observed.tobytes()
        assert page.values.tobytes() == other.values.tobytes()


def test_the_rivals_windows_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RIVALS))
    orjson, windows = pytest.importorskip("orjson"), pytest.importorskip("windows")
    job = list(samples(3_000))
    table = windows.Windows(len(FIELDS), STREAM.step_ms, STREAM.grace_ms)
    closed = []
    for first in range(0, len(job), 700):
        part = job[first : first + 700]
        ids = np.array([table.id_of(s.workload) for s in part])
        closed += table.add(ids, np.array([s.ts_ms for s in part]), np.array([s.values for s in part]))
    closed += table.finish()
    wanted: dict[tuple[int, str], list[tuple[float, ...]]] = defaultdict(list)
    for s in job:
        wanted[s.ts_ms // STREAM.step_ms, s.workload].append(s.values)
    seen = 0
    for body in map(orjson.loads, closed):
        for i, workload in enumerate(body["workloads"]):
            rows = wanted[body["slot"], workload]
            assert body["count"][i] == len(rows)
            assert body["mean"][i] == pytest.approx(np.mean(rows, axis=0).tolist())
            assert body["max"][i] == np.max(rows, axis=0).tolist()
            seen += 1
    assert seen == len(wanted)
    monkeypatch.delitem(sys.modules, "windows")


def test_figures() -> None:
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([5.0], 0.5) == 5.0
    assert percentile([3, 1, 2], 0.5) == 2
    assert spread([3, 1, 2]) == {"median": 2, "min": 1, "max": 3}


def test_a_fleet_fills_its_rings_and_every_slot_is_answered() -> None:
    told = measure(workloads=12, slots=2, seed=3)
    assert told["samples_per_slot"] == 12 * 3  # two samples and what the fleet says of itself
    assert len(told["ingest_s"]) == len(told["forecast_s"]) == 2
    assert min(told["ingest_s"] + told["forecast_s"]) > 0
    # 128 steps of twelve indicators, and 1,008 rows of three.
    assert ring_kb() == (128 * len(DEFAULT_CATALOGUE) * 4 + 1_008 * 3 * 2) / 1024


def test_a_planned_fleet_is_commanded_in_every_slot() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scale.Planning, "plans_of", lambda *_: [])
        with pytest.raises(RuntimeError, match="stage 3 did not command"):
            measure(workloads=2, slots=1, seed=3, planned=True)
    told = measure(workloads=2, slots=1, seed=3, planned=True)
    assert told["samples_per_slot"] == 2 * 3
    assert len(told["forecast_s"]) == len(told["decide_s"]) == 1
    assert min(told["forecast_s"] + told["decide_s"]) > 0


def test_slopes_are_between_neighbouring_fleets() -> None:
    fleets = [{"workloads": n, "resident_kb": kb} for n, kb in ((100, 5_000), (1_100, 30_000), (2_100, 54_000))]
    assert slopes(fleets) == [25.0, 24.0]


def test_what_a_batch_takes_is_the_mean_between_two_looks() -> None:
    text = "\n".join(f"harmony_{name}_seconds_{key} {{}}" for name in ("inference", "plan") for key in ("sum", "count"))
    assert _by_batch(text.format(7.5, 30.0, 4.0, 40.0), text.format(5.0, 20.0, 4.0, 40.0)) == {"inference": 250.0}
    assert _by_batch(text.format("5e-01", 2.0, 4.0, 40.0), "") == {"inference": 250.0, "plan": 100.0}


def test_a_decision_is_on_its_way_to_its_page_to_its_plan_and_to_itself() -> None:
    # Slots of 10 ms; workload a is in partition 0, b and c in 1. What is not asked for or has no page is left out.
    decided = {("a", 20): 1_100, ("b", 20): 1_205, ("c", 20): 1_210, ("a", 30): 9_999, ("b", 40): 9_999}
    stamps = StageStamps({(0, 1): 1_020, (1, 1): 1_030, (0, 2): 5_000}, {(0, 1): 1_090, (1, 1): 1_200, (0, 2): 5_000})
    ticks = {20: {0: 1_000, 1: 1_005}, 30: {0: 2_000, 1: 2_000}, 40: {0: 3_000, 1: 3_000}}
    found = parts_ms(decided, {"a": 0, "b": 1, "c": 1}, ticks, stamps, (20, 40), 10)
    assert found == {
        "page": {"p50_ms": 25, "p99_ms": 25},
        "plan": {"p50_ms": 170, "p99_ms": 170},
        "decision": {"p50_ms": 10, "p99_ms": 10},
    }
    assert parts_ms(decided, {"a": 0, "b": 1, "c": 1}, ticks, StageStamps({}, {}), (20,), 10) == {}


def test_larger_fleets_have_longer_steps() -> None:
    assert [step_ms_for(n) for n in (1, 1_000, 1_001, 10_000)] == [5_000, 5_000, 10_000, 50_000]


def test_who_forecast_between_two_looks() -> None:
    before = 'harmony_forecasts_total{source="pool"} 40\nharmony_forecasts_total{source="seasonal_naive"} 7.0\n'
    after = before.replace(" 40", " 70") + 'harmony_forecasts_total{source="combined"} 10\n'
    assert _by_forecaster(after, before) == {"pool": 0.75, "combined": 0.25}
    assert _by_forecaster("", "") == {}


@pytest.mark.parametrize(
    "arguments", [["ingest", "--form", "xml"], ["latency", "--workloads", "many"], ["recovery", "--workloads", "0"]]
)
def test_wrong_arguments_are_named(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, HarmonyError)
    assert done.exception.exit_code == 2
    assert arguments[-1] in done.exception.message


def test_inference_is_measured_beside_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    body = run_inference_bench(InferenceBench(rounds=1, batches=(1, 3), rows=64, horizon=4, paths=16))
    rows = [row for row in body["results"] if row["device"] == "cpu"]
    assert [(row["subject"], row["windows"]) for row in rows] == [
        (subject, windows) for windows in (1, 3) for subject in ("eager", "network", "combined", "pool", "floor")
    ]
    assert all(row["ms"]["median"] > 0 for row in rows)
    assert all(row["over_floor"] == 1 for row in rows if row["subject"] == "floor")
    assert all((row["of_eager"] == 1) == (row["subject"] == "eager") for row in rows)
    assert "over floor" in capsys.readouterr().out


def test_the_network_is_on_the_device_before_anything_is_measured_there() -> None:
    network, _ = _subjects(torch.device("meta"))
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"meta"}


def test_floor_counts_the_products_of_every_step() -> None:
    network = torch.nn.ModuleDict({"enter": torch.nn.Linear(5, 7), "head": torch.nn.Linear(3, 2)})
    assert _flops_per_window(network, columns=4, horizon=10) == 4 * 2 * (5 * 7 + 10 * 3 * 2)
