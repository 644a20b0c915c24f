"""`schedule`, `batch` and SLO classes of a workload: what the file may say, and how each mistake is told."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
import yaml

from agents.policy import BatchRule, CalendarRule, KnownEvent, NightlyBatch, Schedule, Slo, SloClass
from infra.console.errors import HarmonyError
from infra.demo.workloads import settings_of
from infra.settings.load import Settings, load_settings

HEAD = "workloads:\n- id: a\n  replicas: {min: 1, max: 9}\n  schedule:\n"
TWICE = """\
calendar: [{name: x, from: '8:00', until: '9:00', min: 2}]
events: [{name: x, from: 2026-01-01, until: 2026-01-02, min: 3}]
"""


def load(tmp_path: Path, schedule: str) -> Settings:
    path = tmp_path / "harmony.yaml"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in schedule.splitlines()))
    return load_settings(path, {}, {})


def ts_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


FULL = """\
time_zone: Europe/Berlin
calendar:
- {name: office, days: weekdays, from: "08:00", until: 20:00, min: 4}
- {name: night, days: [sun, fri], from: 22:30, until: "06:00", max: 3}
- {name: always, from: "00:00", until: "24:00", min: 1}
events:
- {name: launch, from: "2026-03-01T18:00", until: 2026-03-01T21:00:00+01:00, min: 8}
"""


def test_everything_declared_arrives(tmp_path: Path) -> None:
    mixed = FULL.replace("until: 2026-03-01T21:00:00+01:00", 'until: "2026-03-01T21:00"')
    (spec,) = load(tmp_path, mixed).policy.workloads
    assert spec.schedule == Schedule(
        "Europe/Berlin",
        (
            CalendarRule("office", (0, 1, 2, 3, 4), 480, 1200, 4, None),
            CalendarRule("night", (4, 6), 1350, 360, None, 3),
            CalendarRule("always", (0, 1, 2, 3, 4, 5, 6), 0, 1440, 1, None),
        ),
        (KnownEvent("launch", ts_ms("2026-03-01T18:00+01:00"), ts_ms("2026-03-01T21:00+01:00"), 8, None),),
    )


def test_an_instant_may_name_its_own_zone_also_unquoted(tmp_path: Path) -> None:
    text = "events:\n- {name: x, from: 2026-07-01T10:00:00Z, until: 2026-07-01T13:00:00+02:00, load_factor: 2.5}"
    (event,) = load(tmp_path, text).policy.workloads[0].schedule.events
    assert (event.start_ts_ms, event.end_ts_ms) == (ts_ms("2026-07-01T10:00Z"), ts_ms("2026-07-01T11:00Z"))
    assert (event.min_replicas, event.load_factor) == (None, 2.5)


def test_what_is_written_loads_back(tmp_path: Path) -> None:
    loaded = load(tmp_path, FULL.replace("2026-03-01T21:00:00+01:00", '"2026-03-01T21:00"'))
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(settings_of(loaded.policy, loaded.stream, loaded.topics)))
    assert load_settings(path, {}, {}).policy.workloads == loaded.policy.workloads


BATCH = """\
tokens_per_s: 900
jobs:
- {name: nightly, tokens: 2.0e+8, days: weekdays, from: "22:00", until: "06:00"}
"""


def load_batch(tmp_path: Path, batch: str) -> Settings:
    path = tmp_path / "harmony.yaml"
    path.write_text(HEAD.replace("schedule", "batch") + "".join(f"    {line}\n" for line in batch.splitlines()))
    return load_settings(path, {}, {})


def test_batch_work_arrives_and_what_is_written_loads_back(tmp_path: Path) -> None:
    loaded = load_batch(tmp_path, BATCH)
    (spec,) = loaded.policy.workloads
    assert spec.batch == BatchRule(900.0, (NightlyBatch("nightly", 2e8, (0, 1, 2, 3, 4), 1320, 360),))
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(settings_of(loaded.policy, loaded.stream, loaded.topics)))
    assert load_settings(path, {}, {}).policy.workloads == loaded.policy.workloads


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tokens_per_s: 0", ".batch.tokens_per_s: input should be greater than 0"),
        ("jobs: [{name: x, tokens: -1, from: '8:00', until: '9:00'}]", ".batch.jobs[0].tokens: "),
        ("jobs: [{name: x, tokens: 1, from: '24:00', until: '9:00'}]", ".batch.jobs[0]: a day begins at"),
        ("jobs: [{name: x, tokens: 1, days: [], from: '8:00', until: '9:00'}]", "name at least one day."),
        ("jobs: [{name: x, tokens: 1, from: 1, until: 2}, {name: x, tokens: 1, from: 1, until: 2}]", "declared twice."),
    ],
)
def test_each_mistake_in_batch_work_is_told_in_a_sentence(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(HarmonyError) as stop:
        load_batch(tmp_path, text)
    assert told in stop.value.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("time_zone: Mars/Olympus", ":4: workloads[0].schedule: 'Mars/Olympus' is no time zone: give a name such as"),
        ("calendar: [{name: x, from: 8, until: 99:99, min: 2}]", ".calendar[0].until: write a time of day from"),
        ("calendar: [{name: x, from: soon, until: '9:00', min: 2}]", ".calendar[0].from: write a time of day from"),
        ("calendar: [{name: x, from: '24:00', until: '9:00', min: 2}]", 'a day begins at "00:00" and ends at "24:00"'),
        ("calendar: [{name: x, from: '8:00', until: '9:00'}]", ".calendar[0]: give min or max, or both."),
        ("calendar: [{name: x, from: '8:00', until: '9:00', min: 3, max: 2}]", "min (3) is above max (2)."),
        ("calendar: [{name: x, from: '8:00', until: '9:00', min: 30}]", "'x': min (30) is not within replicas.min"),
        ("calendar: [{name: x, from: '8:00', until: '9:00', max: 0}]", "'x': max (0) is not within replicas.min"),
        ("calendar: [{name: x, days: [monday], from: '8:00', until: '9:00', min: 3}]", ".calendar[0].days"),
        ("calendar: [{name: x, days: [], from: '8:00', until: '9:00', min: 3}]", "name at least one day."),
        ("calendar: [{name: x, from: '8:00', till: '9:00', min: 3}]", "unknown key workloads[0].schedule.calendar[0]"),
        ("events: [{name: x, from: 2026-01-02, until: 2026-01-01, min: 3}]", ".events[0]: from is not before until."),
        ("events: [{name: x, from: 2026-01-01, until: 2026-01-02}]", ".events[0]: give min or load_factor, or both."),
        ("events: [{name: x, from: 2026-01-01, until: 2026-01-02, load_factor: 0}]", ".events[0].load_factor: "),
        ("events: [{name: x, from: 2026-01-01, until: 2026-01-02T00:00:00Z, min: 3}]", "a time zone, or neither."),
        ("events: [{name: x, from: someday, until: 2026-01-02, min: 3}]", ".events[0].from: "),
        (TWICE, "'x' is declared twice."),
    ],
)  # fmt: skip
def test_each_mistake_is_told_in_a_sentence(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(HarmonyError) as stop:
        load(tmp_path, text)
    assert stop.value.exit_code == 2
    assert told in stop.value.message


def load_slo(tmp_path: Path, slo: str) -> Settings:
    path = tmp_path / "harmony.yaml"
    path.write_text(f"workloads:\n- id: a\n  replicas: {{min: 1, max: 9}}\n  slo: {slo}\n")
    return load_settings(path, {}, {})


def test_slo_classes_arrive_and_the_strictest_figures_stand_in_front(tmp_path: Path) -> None:
    text = (
        "{classes: [{name: chat, ttft_s: 1, tpot_s: 0.3, objective: 0.995}, {name: bulk, ttft_s: 20, epsilon: 0.05}]}"
    )
    loaded = load_slo(tmp_path, text)
    (spec,) = loaded.policy.workloads
    chat, bulk = SloClass("chat", 1.0, 0.3, 0.995), SloClass("bulk", 20.0, 0.2, 0.99, 0.05)
    assert spec.slo == Slo(1.0, 0.2, 0.995, (chat, bulk))
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(settings_of(loaded.policy, loaded.stream, loaded.topics)))
    assert load_settings(path, {}, {}).policy == loaded.policy


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        ("{ttft_s: 1, classes: [{name: x}]}", ".slo: give ttft_s to each of the classes, not beside them."),
        ("{classes: [{name: x}, {name: x}]}", ".slo: class 'x' is declared twice."),
        ("{classes: [{name: a b}]}", ".slo.classes[0].name: 'a b' is not possible: Name in records of kind slo"),
        ("{classes: [{name: x, objective: 1}]}", ".slo.classes[0].objective: input should be less than 1"),
        ("{classes: [{ttft_s: 1}]}", ".slo.classes[0].name is missing."),
    ],
)
def test_each_mistake_in_slo_classes_is_told_in_a_sentence(tmp_path: Path, slo: str, told: str) -> None:
    with pytest.raises(HarmonyError) as stop:
        load_slo(tmp_path, slo)
    assert told in stop.value.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("role: prefill\n  capacity_rps: 3", "role prefill is measured by capacity_tokens_per_s, not by capacity_rps."),
        ("capacity_tokens_per_s: 3", "role both is measured by capacity_rps, not by capacity_tokens_per_s."),
        ("capacity_off_by: 2", "capacity_off_by says how far a capacity may be off, and none is declared."),
        ("role: decode\n  slo: {classes: [{name: x}]}", "role decode takes no slo.classes: only role both does."),
        ("role: prefill\n  batch: {jobs: [{name: x, tokens: 1, from: 1, until: 2}]}", "role prefill generates nothing"),
        ("role: both halves", "workloads[0].role: input should be 'both', 'prefill' or 'decode'"),
    ],
)
def test_a_role_takes_what_fits_it(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "harmony.yaml"
    path.write_text(f"workloads:\n- id: a\n  {text}\n")
    with pytest.raises(HarmonyError) as stop:
        load_settings(path, {}, {})
    assert told in stop.value.message
    path.write_text("workloads: [{id: a, role: decode, capacity_tokens_per_s: 900, batch: {tokens_per_s: 700}}]")
    loaded = load_settings(path, {}, {})
    assert loaded.policy.workloads[0].role == "decode"
    path.write_text(yaml.safe_dump(settings_of(loaded.policy, loaded.stream, loaded.topics)))
    assert load_settings(path, {}, {}).policy.workloads == loaded.policy.workloads
