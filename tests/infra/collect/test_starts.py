"""Stages of replica starts: what is reported equals what has happened, and nothing is reported that may not have."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from urllib.parse import unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from infra.cli.app import app
from infra.collect.formats.exposition import read_exposition
from infra.collect.loop import Collector
from infra.collect.mapping.starts import START_SERIES, PodStarts, ReplicaStart, summaries
from infra.collect.points import Point
from infra.collect.sources.scrape import Round
from tests.infra.collect.exporter import answering
from tests.infra.collect.samples import TOPICS, VLLM, reader
from tests.infra.collect.test_loop import Kept, Script

BEGIN_S = 1_763_636_400


@dataclass
class Pod:
    """What happens to a pod, in seconds since the epoch; `ready` holds when it is ready and when not, in turn."""

    name: str
    created: int
    scheduled: int
    started: list[int]
    ready: list[int]
    restarts: list[int] = field(default_factory=list)
    node: str = "n"
    uid: str = ""

    def series(self, now: int) -> dict[str, list[tuple[str, float]]]:
        """As kube-state-metrics would report it now: each instant is that of the newest transition."""
        if now < self.created:
            return {}
        found: dict[str, list[tuple[str, float]]] = {"kube_pod_created": [("", self.created)]}
        found["kube_pod_info"] = [(f',node="{self.node if now >= self.scheduled else ""}"', 1)]
        if now >= self.scheduled:
            found["kube_pod_status_scheduled_time"] = [("", self.scheduled)]
        for number, first in enumerate(self.started):
            again = [t for t in self.restarts if t <= now] if number == 0 else []
            label = f',container="c{number}"'
            if now >= first:
                value = max([first, *again])
                found.setdefault("kube_pod_container_state_started", []).append((label, value))
            found.setdefault("kube_pod_container_status_restarts_total", []).append((label, len(again)))
        past = [t for t in self.ready if t <= now]
        if len(past) % 2:
            found["kube_pod_status_ready_time"] = [("", past[-1])]
        return found


def exposition(
    pods: list[Pod], now: int, without: frozenset[str] = frozenset(), nodes: dict[str, int] | None = None
) -> str:
    lines = [f'kube_node_created{{node="{node}"}} {created}\n' for node, created in (nodes or {}).items()]
    for pod in pods:
        labels = f'namespace="prod",pod="{pod.name}",uid="{pod.uid or pod.name}"'
        for name, series in pod.series(now).items():
            lines += [f"{name}{{{labels}{more}}} {value}\n" for more, value in series if name not in without]
    return "".join(lines)


def points(text: str, now: int) -> list[Point]:
    return read_exposition(text, START_SERIES.__contains__, now * 1000, {"instance": "ksm:8080"})


def followed(
    pods: list[Pod], looks: list[int], without: frozenset[str] = frozenset(), nodes: dict[str, int] | None = None
) -> list[ReplicaStart]:
    starts = PodStarts(reader("kube").workload_of_pod)
    return [s for now in looks for s in starts.read(points(exposition(pods, now, without, nodes), now))]


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    created = BEGIN_S + draw(st.integers(-300, 600))
    scheduled = created + draw(st.integers(0, 60))
    started = [scheduled + draw(st.integers(0, 90)) for _ in range(draw(st.integers(1, 2)))]
    ready = [max(started) + draw(st.integers(0, 200))]
    for _ in range(draw(st.integers(0, 2))):
        ready += [ready[-1] + draw(st.integers(1, 300)), ready[-1] + draw(st.integers(301, 600))]
    restarts = [ready[0] - 1] * draw(st.booleans()) + ([ready[1]] if len(ready) > 1 and draw(st.booleans()) else [])
    return Pod("chat-5d9c7b6f4-x2k8p", created, scheduled, started, ready, [t for t in restarts if t > started[0]])


@given(pods(), st.integers(5, 90), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 99))
def test_what_is_reported_is_what_happened(pod: Pod, every: int, missed: list[int], seed: int) -> None:
    rng = random.Random(seed)
    looks = [now for n, now in enumerate(range(BEGIN_S, BEGIN_S + 2_400, every)) if n == 0 or n not in missed]
    starts = PodStarts(reader("kube").workload_of_pod)
    found = []
    for first in range(0, len(looks), 3):
        # A server answers with several scrapes at once, series by series.
        batch = [p for now in looks[first : first + 3] for p in points(exposition([pod], now, nodes={"m": 0}), now)]
        rng.shuffle(batch)
        found += starts.read(batch)
    assert len(found) <= 1
    begin = looks[0]
    gaps = [b - a for a, b in pairwise(looks)]
    if pod.created < begin:
        assert found == []
    # A readiness that nobody saw, because it was lost before the next look, is no part of the claim.
    seen_first = next(now for now in looks if now >= pod.ready[0])
    if len(pod.ready) > 1 and seen_first >= pod.ready[1]:
        return
    if pod.created >= begin and max(gaps) <= 120:
        (start,) = found
        assert start.total_s == pod.ready[0] - pod.created
        assert start.schedule_s == pod.scheduled - pod.created
        restarted = any(t <= seen_first for t in pod.restarts)
        assert start.pull_s == (None if restarted else max(pod.started) - pod.scheduled)
        assert start.load_s == (None if restarted else pod.ready[0] - max(pod.started))
    for start in found:
        assert start.workload == "prod/chat"
        assert start.total_s == pod.ready[0] - pod.created


WARM = Pod("chat-5d9c7b6f4-x2k8p", BEGIN_S + 60, BEGIN_S + 62, [BEGIN_S + 64], [BEGIN_S + 99])
LOOKS = list(range(BEGIN_S, BEGIN_S + 300, 15))
NEW_NODE = {"n": BEGIN_S + 61}


@pytest.mark.parametrize(
    ("without", "stages"),
    [
        ((), (2.0, 2.0, 35.0)),
        (("kube_pod_status_scheduled_time",), (None, None, 35.0)),
        (("kube_pod_container_state_started",), (2.0, None, None)),
        (("kube_pod_container_status_restarts_total",), (2.0, None, None)),
        (("kube_pod_status_scheduled_time", "kube_pod_container_state_started"), (None, None, None)),
    ],
)
def test_a_series_that_is_missing_takes_its_stages_with_it(
    without: tuple[str, ...], stages: tuple[float | None, ...]
) -> None:
    (start,) = followed([WARM], LOOKS, frozenset(without))
    assert (start.schedule_s, start.pull_s, start.load_s) == stages
    assert start.total_s == 39.0


@pytest.mark.parametrize("name", ["kube_pod_created", "kube_pod_status_ready_time"])
def test_without_begin_or_end_no_start_is_reported(name: str) -> None:
    assert followed([WARM], LOOKS, frozenset([name])) == []


def test_a_pod_of_the_same_name_is_another_one() -> None:
    again = replace(WARM, uid="second", created=BEGIN_S + 150, scheduled=BEGIN_S + 150, started=[BEGIN_S + 151])
    again.ready = [BEGIN_S + 200]
    assert [s.total_s for s in followed([WARM, again], LOOKS)] == [39.0, 50.0]


@pytest.mark.parametrize(
    ("pull_s", "nodes", "without", "cold"),
    [
        (2, None, (), False),
        (2, {"n": BEGIN_S}, (), False),
        (2, NEW_NODE, (), True),
        (40, None, (), True),
        (10, None, (), False),
        (40, None, ("kube_pod_container_state_started",), None),
        (2, NEW_NODE, ("kube_pod_container_state_started",), True),
    ],
)
def test_a_cold_start_is_one_on_a_node_that_had_to_be_prepared(
    pull_s: int, nodes: dict[str, int] | None, without: tuple[str, ...], cold: bool | None
) -> None:
    pod = replace(WARM, started=[WARM.scheduled + pull_s], ready=[WARM.scheduled + 60])
    (start,) = followed([pod], LOOKS, frozenset(without), nodes)
    assert start.cold is cold


WARM_SENTENCE = (
    "prod/chat: warm start of chat-5d9c7b6f4-x2k8p took 39 s "
    "(2 s until scheduled, 2 s until its containers ran, 35 s until ready)"
)
COLD_SENTENCE = (
    "prod/chat: cold start of chat-5d9c7b6f4-b7c9d took 100 s "
    "(2 s until scheduled, 60 s until its containers ran, 38 s until ready)"
)


def test_a_start_in_words_and_the_medians_of_several() -> None:
    cold = replace(WARM, name="chat-5d9c7b6f4-b7c9d", started=[BEGIN_S + 122], ready=[BEGIN_S + 160])
    starts = followed([WARM, cold], LOOKS, nodes={"n": BEGIN_S - 5})
    assert [s.sentence() for s in starts] == [
        WARM_SENTENCE,
        COLD_SENTENCE,
    ]
    assert list(summaries(starts)) == [
        {
            "workload": "prod/chat",
            "starts": 2,
            "cold": {"starts": 1, "median_s": {"schedule": 2.0, "pull": 60.0, "load": 38.0, "total": 100.0}},
            "warm": {"starts": 1, "median_s": {"schedule": 2.0, "pull": 2.0, "load": 35.0, "total": 39.0}},
        }
    ]


def test_the_collector_reports_starts_of_what_it_measures_only() -> None:
    other = replace(WARM, name="cron-29543210-x2k8p", uid="other")
    engine = {"instance": "h", "namespace": "prod", "pod": WARM.name}
    by, said = reader("vllm"), list[str]()
    rounds = [
        Round([*points(exposition([WARM, other], now), now), *read_exposition(VLLM, by.reads, now * 1000, engine)])
        for now in LOOKS
    ]
    script = Script(*rounds)
    starts = PodStarts(by.workload_of_pod)
    collector = Collector(script, by, TOPICS, Kept(), starts=starts, say=said.append)
    collector.run(0.0001, script.stop)
    assert [line for line in said if "start of" in line] == [f"{WARM_SENTENCE}."]
    assert [entry["workload"] for entry in collector.summary()["starts"]] == ["prod/chat"]


@pytest.mark.parametrize("option", [(), ("--starts",)])
def test_the_option_has_the_series_asked_for_and_read(option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    read: list[str] = []
    monkeypatch.setattr(PodStarts, "read", lambda _, points: read.extend(p.name for p in points) or [])
    common = ["--once", "--dry-run", "--json", *option]
    text = exposition([WARM], WARM.ready[0], nodes=NEW_NODE)
    with answering(metrics=VLLM + text) as exporter:
        result = CliRunner().invoke(app, ["collect", "prometheus", "--scrape", exporter.address, *common])
    assert result.exit_code == 0, result.output
    assert ("starts" in json.loads(result.stdout.splitlines()[-1])) == bool(option)
    assert set(START_SERIES) & set(read) == (set(START_SERIES) if option else set())
    answer = '{"status":"success","data":{"resultType":"matrix","result":[]}}'
    with answering(**{"api/v1/query": answer}) as server:
        CliRunner().invoke(app, ["collect", "prometheus", "--server", server.url, *common])
        asked = " ".join(unquote_plus(f"{path} {body}") for _, path, body, _ in server.asked)
    assert {name for name in START_SERIES if name in asked} == (set(START_SERIES) if option else set())
