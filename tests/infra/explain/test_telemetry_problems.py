"""Telemetry that cannot be used, in words: every name and the nearest known one, and no word where nothing is wrong."""

from __future__ import annotations

import pytest

from infra.collect.mapping.schema import FIELDS, Kind
from infra.explain.telemetry import problem_text
from streams.ingest.incomplete import IncompleteSources
from streams.ingest.kernel import TelemetryProblem
from streams.records.unknown_names import UnknownName

COUNTERS = (("requests_started_total",), ("requests_finished_total",))
DEVICES = (("sm_active_ratio",), ("memory_used_bytes", "memory_total_bytes"), ("power_w",))
ABSENT = frozenset({"requests_started_total", "requests_finished_total", "slo_total", "kv_cache_usage_ratio"})


def unknown(*names: str, absent: frozenset[str] = ABSENT) -> tuple[UnknownName, ...]:
    return tuple(UnknownName(name, "pod-1", absent, 0) for name in names)


def incomplete(*sources: str, lacking: int = 0, of: int = 0) -> IncompleteSources:
    num_lacking = lacking or len(sources)
    return IncompleteSources("w", sources[:3], num_lacking, of or num_lacking)


NEITHER = "neither requests_started_total nor requests_finished_total, so requests are not counted"
NONE = "none of sm_active_ratio, memory_used_bytes with memory_total_bytes, power_w, so no indicator is made of them"
MISSPELT = "sent instead: `requests_started_totl` (did you mean `requests_started_total`?), not known"
THREE = (
    "sent instead: `requests_finished` (did you mean `requests_finished_total`?), "
    "`kv_cache_usage` (did you mean `kv_cache_usage_ratio`?), `x1`, not known"
)
CASES: list[tuple[TelemetryProblem, str | None]] = [
    (
        TelemetryProblem("requests", "w", incomplete("pod-1"), COUNTERS, unknown("requests_started_totl")),
        f"pod-1 sends {NEITHER}; {MISSPELT}",
    ),
    (
        TelemetryProblem("requests", "w", incomplete("pod-1", of=3), COUNTERS, ()),
        f"pod-1 (1 of 3 sources) sends {NEITHER}; no name is misspelt, so look at what the exporter publishes",
    ),
    (
        TelemetryProblem("requests", "w", incomplete("a", "b", "c", lacking=7, of=9), COUNTERS, unknown("zzz")),
        f"a, b, c and 4 more (7 of 9 sources) send {NEITHER}; sent instead: `zzz`, not known",
    ),
    (  # what resembles a needed name comes first, and only a few names are shown
        TelemetryProblem(
            "requests", "w", incomplete("a"), COUNTERS, unknown("x1", "x2", "x3", "kv_cache_usage", "requests_finished")
        ),
        f"a sends {NEITHER}; {THREE}",
    ),
    (
        TelemetryProblem("gpu", "w", incomplete("g0"), DEVICES, ()),
        f"g0 sends {NONE}; no name is misspelt, so look at what the exporter publishes",
    ),
    (
        TelemetryProblem("requests", "w", None, (), unknown("mine", "slo_totl")),
        "pod-1 sends `slo_totl` (did you mean `slo_total`?), not known",
    ),
    (
        TelemetryProblem("fleet", "w", None, (), unknown("replicas_desird", absent=frozenset({"replicas_desired"}))),
        "pod-1 sends `replicas_desird` (did you mean `replicas_desired`?), not known",
    ),
    # Of a later release, or of somebody's own: nothing that is known is missing for it.
    (TelemetryProblem("requests", "w", None, (), unknown("num_requests_swapped", "queue_depth")), None),
    (TelemetryProblem("requests", "w", None, (), unknown("slo_totl", absent=frozenset())), None),
]


@pytest.mark.parametrize(("problem", "text"), CASES)
def test_the_sentence_names_what_is_wrong_and_what_was_meant(problem: TelemetryProblem, text: str | None) -> None:
    assert problem_text(problem) == text


def test_a_name_of_a_hostile_publisher_is_escaped_and_cut() -> None:
    names = unknown("\x1b[2J" + "a" * 500, absent=frozenset())
    text = problem_text(TelemetryProblem("requests", "w", incomplete("pod-1"), COUNTERS, names))
    assert text is not None
    assert "\x1b" not in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("kind", "sent", "meant"),
    [
        ("requests", "requestsStartedTotal", "requests_started_total"),
        ("requests", "REQUESTS_STARTED_TOTAL", "requests_started_total"),
        ("requests", "requests-started-total", "requests_started_total"),
        ("requests", "requests.started.total", "requests_started_total"),
        ("requests", "request_started_total", "requests_started_total"),
        ("requests", "Num_Requests_Waiting", "num_requests_waiting"),
        ("requests", "vllm:num_requests_running", "num_requests_running"),
        ("requests", "kvCacheUsage", "kv_cache_usage_ratio"),
        ("requests", "prompt_token_total", "prompt_tokens_total"),
        ("gpu", "sm_active", "sm_active_ratio"),
        ("gpu", "memoryUsedBytes", "memory_used_bytes"),
        ("gpu", "powerW", "power_w"),
        ("gpu", "gpu_power_w", "power_w"),
    ],
)
def test_a_name_in_another_spelling_is_recognized(kind: Kind, sent: str, meant: str) -> None:
    lacking = TelemetryProblem("requests", "w", incomplete("a"), COUNTERS, unknown(sent, absent=FIELDS[kind]))
    assert f"`{sent}` (did you mean `{meant}`?)" in str(problem_text(lacking))
