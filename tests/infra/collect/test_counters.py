"""Counters over time: restarts pass through, and what is derived from counters stays one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.collect.mapping.choices import _ABANDONED_AFTER_MS, _FORGOTTEN_AFTER_MS
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
    assert counters(reader("vllm", workload="w"), (100, 5, 0), (101, 2, 5000), (106, 2, 10000)) == [105.0, 105.0, 110.0]


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


# Arrivals of an engine whose requests wait, are in prefill, decode, finish, are preempted or are given up.
# An act moves requests from one state to another.
_ACTS = {
    "arrive": ("outside", "waiting"),
    "start": ("waiting", "prefill"),
    "answer": ("prefill", "decoding"),
    "finish": ("decoding", "served"),
    "preempt": ("decoding", "preempted"),
    "resume": ("preempted", "decoding"),
    "leave the queue": ("waiting", "aborted"),
    "leave": ("decoding", "aborted"),
}


class Engine:
    """The requests of an engine by state, and what vLLM would export of them."""

    def __init__(self) -> None:
        self.num_in = dict.fromkeys(("waiting", "prefill", "decoding", "preempted", "served", "aborted"), 0)
        self.num_in["outside"] = 10**6
        self.num_arrived = self.num_first_tokens = 0

    def act(self, what: str, n: int) -> None:
        """Let so many requests, or as many as there are, change their state."""
        before, after = _ACTS[what]
        n = min(n, self.num_in[before])
        self.num_in[before] -= n
        self.num_in[after] += n
        self.num_arrived += n if what == "arrive" else 0
        self.num_first_tokens += n if what == "answer" else 0

    def page(self, *, counts_aborted: bool) -> str:
        has, labels = self.num_in, 'engine="0",model_name="m"'
        return (
            f"vllm:num_requests_waiting{{{labels}}} {has['waiting'] + has['preempted']}\n"
            f"vllm:num_requests_running{{{labels}}} {has['prefill'] + has['decoding']}\n"
            f"vllm:time_to_first_token_seconds_count{{{labels}}} {self.num_first_tokens}\n"
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {has["served"]}\n'
            f'vllm:request_success_total{{{labels},finished_reason="abort"}} {has["aborted"] * counts_aborted}\n'
        )


Rounds = list[list[tuple[str, int]]]


def rounds_of(*acts: str) -> st.SearchStrategy[Rounds]:
    return st.lists(st.lists(st.tuples(st.sampled_from(acts), st.integers(1, 30)), max_size=6), min_size=1, max_size=20)


def published(by: Reader, engine: Engine, n: int, *, counts_aborted: bool = False) -> float:
    (reading,) = readings_of(engine.page(counts_aborted=counts_aborted), by, TS_MS + 1000 * n)
    return reading.values["requests_started_total"]


@given(rounds_of("arrive", "start", "answer", "finish", "preempt", "resume", "leave"))
@settings(max_examples=150, deadline=None)
def test_where_no_request_leaves_the_queue_each_arrival_counts_once(rounds: Rounds) -> None:
    engine, by, most_preempted = Engine(), reader("vllm", workload="w"), 0
    last = published(by, engine, 0)
    for n, acts in enumerate(rounds, 1):
        for act in acts:
            engine.act(*act)
        most_preempted = max(most_preempted, engine.num_in["preempted"])
        total = published(by, engine, n)
        assert total >= last
        assert total >= engine.num_arrived - engine.num_in["prefill"]
        # A request that starts while another leaves looks like one that leaves the queue.
        assert total <= engine.num_arrived + most_preempted + engine.num_in["aborted"]
        last = total


@given(
    rounds_of("arrive", "start", "answer", "finish", "leave the queue", "leave"),
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_after_a_queue_was_left_the_next_arrivals_count_at_once(
    rounds: Rounds, later: list[int], counts_aborted: bool
) -> None:
    engine, by = Engine(), reader("vllm", workload="w")
    last = published(by, engine, 0)
    for n, acts in enumerate(rounds, 1):
        for act in acts:
            engine.act(*act)
        # Each reading comes with nothing in prefill, so that no request is out of sight.
        engine.act("answer", engine.num_in["prefill"])
        total = published(by, engine, n, counts_aborted=counts_aborted)
        assert total >= last
        last = total
    for n, arrivals in enumerate(later, len(rounds) + 1):
        engine.act("arrive", arrivals)
        assert published(by, engine, n, counts_aborted=counts_aborted) == last + arrivals
        last += arrivals


def test_what_no_sum_shows_is_not_awaited_for_more_than_half_a_minute() -> None:
    """Triton exports no running requests, so a queue that its clients leave looks like one in execution."""
    by = reader("triton", workload="w")

    def total(served: int, pending: int, after_ms: int) -> float:
        text = f'nv_inference_request_success{{model="m"}} {served}\nnv_inference_request_failure{{model="m"}} 0\n'
        text += f'nv_inference_pending_request_count{{model="m"}} {pending}\n'
        return readings_of(text, by, TS_MS + after_ms)[0].values["requests_started_total"]

    assert [total(100, 0, 0), total(100, 50, 5_000), total(105, 0, 10_000)] == [100.0, 150.0, 150.0]
    assert total(110, 0, 10_000 + _ABANDONED_AFTER_MS) == 150.0
    assert total(115, 0, 15_000 + _ABANDONED_AFTER_MS) == 155.0
