"""Counters over time: restarts pass through, and what is derived from counters stays one."""

from __future__ import annotations

from infra.collect.mapping.choices import _FORGOTTEN_AFTER_MS
from infra.collect.mapping.readings import Reader
from tests.infra.collect.samples import TS_MS, VLLM, reader, readings_of


def counters(by: Reader, *scrapes: tuple[int, int, int]) -> list[float]:
    """What `requests_started_total` says after scrapes of (first tokens, waiting, ms after the start)."""
    said = []
    for first_tokens, waiting, after_ms in scrapes:
        text = VLLM.replace('_count{engine="0",model_name="acme/chat-7b"} 100.0', f"_count{{}} {first_tokens}")
        text = text.replace(
            'num_requests_waiting{engine="0",model_name="acme/chat-7b"} 3.0', f"num_requests_waiting{{}} {waiting}"
        )
        reading = readings_of(text, by, TS_MS + after_ms)
        said += [r.values["requests_started_total"] for r in reading if "requests_started_total" in r.values]
    return said


def test_a_restart_passes_through_as_a_counter_that_falls() -> None:
    assert counters(reader("vllm", workload="w"), (100, 5, 0), (120, 0, 5000), (3, 1, 10000)) == [105.0, 120.0, 4.0]


def test_what_leaves_the_queue_uncounted_is_no_restart() -> None:
    """Two waiting requests are given up: nothing counts them, and the sum would fall."""
    assert counters(reader("vllm", workload="w"), (100, 5, 0), (101, 2, 5000), (106, 2, 10000)) == [105.0, 105.0, 108.0]


def test_an_older_scrape_that_comes_late_changes_nothing_that_follows() -> None:
    assert counters(reader("vllm", workload="w"), (100, 5, 5000), (90, 2, 0), (101, 3, 10000)) == [105.0, 92.0, 105.0]


def test_raw_counters_are_never_smoothed() -> None:
    by = reader("vllm", workload="w")
    said = []
    for n, total in enumerate((52000.0, 60000.0, 12.0)):
        (reading,) = readings_of(VLLM.replace("52000.0", str(total)), by, TS_MS + n)
        said.append(reading.values["prompt_tokens_total"])
    assert said == [52000.0, 60000.0, 12.0]


def node(idle: float, user: float) -> str:
    return (
        f'node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}\nnode_cpu_seconds_total{{cpu="0",mode="user"}} {user}\n'
        "node_memory_MemTotal_bytes 4096\nnode_memory_MemAvailable_bytes 1024\n"
    )


def test_node_exporter_busy_share_is_of_the_time_between_two_scrapes() -> None:
    by = reader("node", workload="w")
    assert "sm_active_ratio" not in readings_of(node(100, 50), by)[0].values
    (reading,) = readings_of(node(103, 51), by, TS_MS + 5000)
    assert reading.values == {"sm_active_ratio": 0.25, "memory_used_bytes": 3072.0, "memory_total_bytes": 4096.0}
    restarted = readings_of(node(1, 1), by, TS_MS + 10000)[0]
    assert "sm_active_ratio" not in restarted.values
    assert readings_of(node(2, 2), by, TS_MS + 15000)[0].values["sm_active_ratio"] == 0.5
    forgotten = TS_MS + 15000 + _FORGOTTEN_AFTER_MS
    assert readings_of(node(4, 2), by, forgotten)[0].values["sm_active_ratio"] == 0.0
