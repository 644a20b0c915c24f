"""Names that came and went hold nobody up: samples go as columns again once those who bore them are forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.ingest import slots as slots_module
from streams.records import series_index
from streams.records.binary import encode_binary
from streams.records.schema import encode_packed
from tests.streams.ingest.ingest_log import CONFIG, T0, Log

FEW = 8
GAUGE = {"num_requests_running": 1.0}


@pytest.fixture(autouse=True)
def _few_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_SOURCES_PER_WORKLOAD", FEW)


def roomy(log: Log) -> bool:
    return log.kernel._open.roomy()


def test_pods_that_are_replaced_hold_nobody_up() -> None:
    log = Log()
    for slot in range(5 * FEW):
        log.sample(1000 * slot, GAUGE, source=f"pod-{slot}")
        log.tick(1000 * slot + 1)
        assert roomy(log)


@pytest.mark.parametrize("kind", ["workload", "source"])
def test_a_flood_of_names_holds_nobody_up_once_its_slots_are_forgotten(kind: str) -> None:
    config = replace(CONFIG, max_workloads=3)
    log = Log(config)
    log.sample(0, GAUGE)
    for n in range(3 * FEW):
        log.sample(100, GAUGE, **{kind: f"flood-{n}"})
    assert not roomy(log)
    for slot in range(1, config.context_steps + 3):
        log.sample(1000 * slot, GAUGE)
    assert roomy(log)


def packed(form: str, names: list[str], ts_ms: int, share: float) -> bytes:
    encode = encode_binary if form == "binary" else encode_packed
    value = encode("requests", "w", names, [ts_ms] * len(names), {"kv_cache_usage_ratio": [share] * len(names)})
    return value.replace(b'"v":', b'"v"\n:') if form == "other JSON" else value


@pytest.mark.parametrize("form", ["plain", "other JSON", "binary"])
@pytest.mark.parametrize(
    ("names", "ahead_ms", "share"),
    [(["a", "b"], 10_000, 0.5), (["a", "b"], 0, 7.0), (["a", "b", "c" * 1_000], 0, 0.5)],
    ids=["a clock ahead", "out of bounds", "a name too long"],
)
def test_names_of_a_packed_record_that_is_refused_are_not_remembered(
    form: str, names: list[str], ahead_ms: int, share: float
) -> None:
    log = Log()
    log.put(packed(form, ["before"], T0, 0.5), 0)
    log.put(packed(form, names, T0 + ahead_ms, share), 0)
    assert (log.kernel.counters.samples, log.kernel.counters.dead) == (1, 1)
    assert log.kernel._index.num_series == 1


@given(st.lists(st.sets(st.tuples(st.sampled_from("uvw"), st.sampled_from("abc")), max_size=4), max_size=24))
def test_pages_name_who_was_heard_however_often_numbers_are_given_anew(heard: list[set[tuple[str, str]]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(series_index, "_SLACK_NAMES", 0)  # forgets whenever it may
        log = Log()
        log.sample(0, GAUGE)
        for slot, pairs in enumerate(heard, 1):
            for workload, source in sorted(pairs):
                log.sample(1000 * slot, GAUGE, workload=workload, source=source)
        log.tick(1000 * (len(heard) + 1) + log.config.grace_ms)
    told = {page.slot - T0 // 1000: {(s.workload, s.source) for s in page.series} for page in log.pages}
    sent = dict(enumerate([{("w", "a")}, *heard]))
    # Of a long silence only the newest slots have pages.
    assert told == {slot: pairs for slot, pairs in sent.items() if pairs or slot in told}
