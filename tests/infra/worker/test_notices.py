"""Notices of telemetry that cannot be used: at once, again while it lasts, no longer when it is over."""

from __future__ import annotations

from random import random
from typing import Any

from structlog.testing import capture_logs

from infra.explain.dead_letters import NOTICE_EVERY_S, UNUSED, notices, read_letter
from infra.kafka.tail import TailRecord
from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from infra.worker.notices import LOOK_S, TelemetryNotices
from streams.ingest.incomplete import IncompleteSources
from streams.ingest.kernel import TelemetryProblem
from streams.log import OutRecord
from streams.records.unknown_names import UnknownName
from streams.topics import Topics

TOPICS = Topics("t.")
NEEDS = (("requests_started_total",), ("requests_finished_total",))
NAME = UnknownName("requests_started_totl", "pod-1", frozenset({"requests_started_total"}), 0)
MISSPELT = TelemetryProblem("requests", "prod/chat", None, (), (NAME,))
LACKING = TelemetryProblem("requests", "prod/chat", IncompleteSources("prod/chat", ("pod-1",), 1, 2), NEEDS, (NAME,))
HARMLESS = TelemetryProblem("requests", "prod/other", None, (), (NAME._replace(absent=frozenset()),))


class Kernel:
    def __init__(self, *problems: TelemetryProblem) -> None:
        self.found = list(problems)

    def problems(self) -> list[TelemetryProblem]:
        return self.found


class Place:
    """A worker's watch of one kernel, looked at after each step of a hand clock."""

    def __init__(self, *problems: TelemetryProblem) -> None:
        self.kernel = Kernel(*problems)
        self.meter, self.health = PrometheusMeter(strict=True), Health(0.0)
        self.watch = TelemetryNotices(TOPICS, self.health, self.meter)
        self.now_s = 0.0
        self.kernels: list[tuple[tuple[str, int], object]] = [
            ((TOPICS.plans, 0), object()), ((TOPICS.telemetry_requests, 1), self.kernel),
        ]  # fmt: skip

    def look(self, lapse_s: float = LOOK_S) -> list[OutRecord]:
        self.now_s += lapse_s
        return self.watch.look(self.kernels, self.now_s)

    def check(self) -> Any:
        (check,) = self.health.snapshot(0.0).checks
        return check

    def gauge(self) -> float | None:
        return self.meter.registry.get_sample_value("harmony_incomplete_sources", {"source": "requests"})


def letter(record: OutRecord, stamp_ms: int = 0) -> Any:
    return read_letter(TailRecord(0, 0, stamp_ms, record.key, record.value, record.headers))


def test_a_problem_is_published_logged_and_checked_and_again_while_it_lasts() -> None:
    place = Place(LACKING, HARMLESS)
    with capture_logs() as logs:
        (first,) = place.look()
        assert [place.look() for _ in range(3)] == [[], [], []]
        (again,) = place.look(NOTICE_EVERY_S)
    assert first == again
    assert (first.topic, first.key, first.value) == (TOPICS.dead_letters, b"prod/chat", None)
    view = letter(first)
    assert (view.reason, view.topic, view.partition, view.offset) == (UNUSED, TOPICS.telemetry_requests, 1, None)
    assert view.detail.startswith("requests: pod-1 (1 of 2 sources) sends neither requests_started_total nor")
    assert "`requests_started_totl` (did you mean `requests_started_total`?)" in view.detail
    (line,) = logs
    assert (line["event"], line["log_level"], line["workload"]) == ("telemetry_unused", "warning", "prod/chat")
    assert line["detail"] in view.detail
    check = place.check()
    assert (check.name, check.ok, check.required) == ("telemetry_usable", False, False)
    assert check.detail == f"prod/chat: {line['detail']}"
    assert place.gauge() == 1.0


def test_what_is_over_is_reported_no_longer_and_what_comes_back_is_at_once() -> None:
    place = Place(MISSPELT)
    assert len(place.look()) == 1
    assert place.gauge() == 0.0
    place.kernel.found = []
    assert place.look() == []
    assert place.check().ok
    place.kernel.found = [MISSPELT]
    assert len(place.look()) == 1


def test_a_source_that_turns_out_to_lack_something_is_reported_at_once() -> None:
    place = Place(MISSPELT)
    (first,) = place.look()
    place.kernel.found = [LACKING]
    (second,) = place.look()
    found = notices([letter(first, 1), letter(second, 2)], 1_000)
    assert [notice.text for notice in found] == [letter(second).detail], "the newest of a workload and kind counts"


def test_a_worker_that_reads_no_telemetry_has_no_word_on_it() -> None:
    place = Place(LACKING)
    place.look()
    place.kernels.pop()
    assert place.look() == []
    assert place.gauge() is None
    assert place.check().ok


def test_a_flood_of_workloads_is_reported_in_part() -> None:
    place = Place(*(LACKING._replace(workload=f"w{n}") for n in range(500)))
    assert len(place.look()) == 64
    assert place.check().detail.endswith("and 61 more")


def test_names_of_many_workloads_are_compared_a_few_at_a_time_and_the_misspelt_one_is_found() -> None:
    absent = frozenset({"requests_started_total", f"only-{random()}"})  # compared by nobody before
    names = [UnknownName(f"zz{n}", "pod", absent, 0) for n in range(1_000)]
    harmless = [TelemetryProblem("requests", f"a{n}", None, (), (name,)) for n, name in enumerate(names)]
    misspelt = TelemetryProblem("requests", "z", None, (), (NAME._replace(absent=absent),))
    place = Place(*harmless, misspelt)
    looks = [place.look() for _ in range(8)]
    assert [len(notices) for notices in looks] == [0] * 4 + [1] + [0] * 3
    assert looks[4][0].key == b"z"
