"""Recorded telemetry: what the files become, what is refused and how it is said."""

from __future__ import annotations

import gzip
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from infra.cli import app as cli
from infra.console.errors import HarmonyError
from infra.demo.recording.playback import recording_stream
from infra.demo.recording.recordings import DAY_MS, Readings, Recording, read_recording
from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.records.decode import RecordDecoder
from streams.records.facts import FleetFacts
from streams.records.schema import FleetRecord, Sample, SampleRecord, record_key

DCGM_HEADER = "timestamp,phase,gpu,power_w,temp_c,mem_used_mib,mem_total_mib,gpu_util_pct,sm_active,tensor_active\n"
START_S = 1_700_000_000
DAY_S = 86_400


def dcgm_file(tmp_path: Path, rows: str, name: str = "run_7.csv", header: str = DCGM_HEADER) -> Path:
    path = tmp_path / name
    path.write_text(header + rows)
    return path


def gentd26_directory(tmp_path: Path, **changed: str) -> Path:
    """Three times 57 s apart, two pods; a keyword replaces a whole file."""
    directory = tmp_path / "gentd26"
    directory.mkdir()
    t = [1_662_858_720.0, 1_662_858_777.0, 1_662_858_834.0]
    files = {
        "pod_gpu_duty_cycle_anon": f"value,timestamp_anon,container_ip\n25.0,{t[0]},aa\n50.0,{t[1]},aa\n"
        f"100.0,{t[1]},bb\n7.5,{t[2]},bb\n99.0,{t[2]},NULL\n",
        "pod_gpu_memory_used_bytes_anon": f"timestamp_anon,value,container_ip\n{t[0]},1024.0,aa\n{t[2]},4096.0,aa\n",
        "qps": f"timestamp_anon,value,container_ip,request_type\n{t[0]},1.0,aa,Generative Requests\n"
        f"{t[1]},0.09,aa,Generative Requests\n{t[1]},0.18,bb,Generative Requests\n{t[1]},5.0,,API Requests\n",
        "queue_size_raw_anon": f"value,container_ip,timestamp_anon\n2.0,,{t[0]}\n,,{t[2]}\n",
    }
    for name, text in (files | changed).items():
        (directory / f"{name}.csv").write_text(text)
    return directory


def decoded(recording: Recording, step_ms: int, context_steps: int = 128) -> dict[Source, dict[int, list[Sample]]]:
    """Samples by source topic and slot, as the ingest stage would take them; a dead letter fails the test."""
    found: dict[Source, dict[int, list[Sample]]] = {"requests": {}, "gpu": {}}
    for slot, telemetry in recording.slots(step_ms, context_steps):
        for source, values in (("requests", telemetry.requests), ("gpu", telemetry.gpu)):
            decoder = RecordDecoder(DEFAULT_CATALOGUE, source, 65_536)
            for value in values:
                record = decoder.decode(value, record_key(recording.workload))
                assert isinstance(record, SampleRecord | FleetRecord), record
                if isinstance(record, SampleRecord):
                    assert record.workload == recording.workload
                    assert record.unknown_names == 0
                    found[source].setdefault(slot, []).extend(record.samples)
    return found


def test_of_each_second_the_last_reading_of_each_gpu_is_kept_with_its_own_time(tmp_path: Path) -> None:
    rows = (
        f"{START_S}.100,init,0,100.0,30,10,100,0,0.1,0.01\n"
        f"{START_S}.900,init,0,120.5,31,20,100,0,0.5,0.02\n"
        f"{START_S}.500,init,0,110.0,31,20,100,0,0.4,0.02\n"
        f"{START_S}.900,init,1,200.0,40,50,100,0,1.0004,0.03\n"
        f"{START_S + 1}.000,init,0,130.0,,30,100,0,N/A,0.04\n"
    )
    recording = read_recording(dcgm_file(tmp_path, rows))
    assert (recording.name, recording.workload, recording.interval_ms) == ("run_7.csv", "recording/run_7", 1000)
    gpu = decoded(recording, 1000)["gpu"]
    mib = 1 << 20
    first, second = gpu[START_S]
    assert (first.source, first.ts_ms) == ("gpu-0", START_S * 1000 + 900)
    assert first.values == {
        "power_w": 120.5,
        "temperature_c": 31.0,
        "memory_used_bytes": 20 * mib,
        "memory_total_bytes": 100 * mib,
        "sm_active_ratio": 0.5,
        "tensor_active_ratio": 0.02,
    }
    assert (second.source, second.values["sm_active_ratio"]) == ("gpu-1", 1.0)
    (third,) = gpu[START_S + 1]
    assert third.ts_ms == (START_S + 1) * 1000
    assert third.values["temperature_c"] is third.values["sm_active_ratio"] is None


def test_a_packed_file_and_a_uuid_are_welcome(tmp_path: Path) -> None:
    path = tmp_path / "a b.csv.gz"
    path.write_bytes(gzip.compress((DCGM_HEADER + f"{START_S},x,GPU-5f3c,1,1,1,1,1,1,1\n").encode()))
    recording = read_recording(path)
    assert recording.workload == "recording/a-b"
    assert [s.source for s in decoded(recording, 1000)["gpu"][START_S]] == ["GPU-5f3c"]


def test_gentd26_rates_become_a_counter_and_percent_a_ratio(tmp_path: Path) -> None:
    recording = read_recording(gentd26_directory(tmp_path))
    assert (recording.workload, recording.interval_ms) == ("recording/gentd26", 57_000)
    found = decoded(recording, 57_000)
    slots = sorted(found["requests"])
    assert slots == [1_662_858_720 // 57 + k for k in range(3)]
    requests = [found["requests"][slot] for slot in slots]
    assert all(len(samples) == 1 for samples in requests)
    counter = [samples[0].values["requests_started_total"] for samples in requests]
    # 0.27 generative requests a second in the second interval, none in the third; those of the API do not count.
    assert [(b - a) / 57 for a, b in pairwise(counter)] == pytest.approx([0.27, 0.0])  # type: ignore[operator]
    assert [samples[0].values["num_requests_waiting"] for samples in requests] == [2.0, None, None]
    gpu = [{s.source: s.values for s in found["gpu"][slot]} for slot in slots]
    assert gpu[0] == {"aa": {"sm_active_ratio": 0.25, "memory_used_bytes": 1024.0}}
    assert gpu[1]["bb"] == {"sm_active_ratio": 1.0, "memory_used_bytes": None}
    assert gpu[2] == {
        "aa": {"sm_active_ratio": None, "memory_used_bytes": 4096.0},
        "bb": {"sm_active_ratio": 0.075, "memory_used_bytes": None},
    }
    assert [(f.ts_ms // 57_000, f.ready, f.pending) for f in recording.fleet] == [
        (slots[0], 1, 0), (slots[1], 2, 0), (slots[2], 2, 0)
    ]  # fmt: skip
    assert recording.fleet[0].ts_ms == 1_662_858_720_000


def made_up(times_ms: list[int]) -> Recording:
    samples = {(t, f"s{k}"): (float(k),) for t in times_ms for k in range(2)}
    return Recording("x", "recording/x", 1000, gpu=Readings.of("gpu", ("power_w",), samples))


@settings(max_examples=60)
@given(
    st.sets(st.integers(0, 400_000), min_size=1, max_size=40),
    st.sampled_from([1000, 7000, 15_000]),
    st.integers(1, 30),
)
def test_every_sample_is_played_once_in_its_slot_and_gaps_stay_short(
    offsets: set[int], step_ms: int, context_steps: int
) -> None:
    times = [START_S * 1000 + offset for offset in offsets]
    recording = made_up(times)
    played = decoded(recording, step_ms, context_steps)["gpu"]
    assert sorted(s.ts_ms for samples in played.values() for s in samples) == sorted([*times, *times])
    assert all(s.ts_ms // step_ms == slot for slot, samples in played.items() for s in samples)
    slots = recording.slot_numbers(step_ms, context_steps)
    assert slots == sorted(set(slots))
    with_data = {t // step_ms for t in times}
    assert with_data <= set(slots)
    assert max(slots) == max(with_data)
    for slot in range(min(with_data), max(with_data) + 1):
        newest = max(s for s in with_data if s <= slot)
        # One workload: a slot is played exactly while the newest data is less than a context old.
        assert (slot in slots) == (slot - newest < context_steps)


@given(st.sampled_from([1000, 15_000, 57_000]), st.integers(-200 * DAY_MS, 40 * DAY_MS))
def test_a_recording_of_the_future_moves_back_by_whole_days_and_steps(step_ms: int, ahead_ms: int) -> None:
    recording = made_up([START_S * 1000, START_S * 1000 + 90_500])
    now_ms = recording.end_ms + ahead_ms
    moved = recording.before(now_ms, step_ms)
    assert moved.end_ms + step_ms <= now_ms
    shift_ms = recording.end_ms - moved.end_ms
    assert recording.start_ms - moved.start_ms == shift_ms
    assert shift_ms % DAY_MS == shift_ms % step_ms == 0
    assert (shift_ms > 0) == (ahead_ms < step_ms)
    assert shift_ms - math.lcm(DAY_MS, step_ms) < max(1, step_ms - ahead_ms)


def test_what_moves_back_takes_its_replica_counts_along() -> None:
    recording = made_up([START_S * 1000])
    facts = FleetFacts(START_S * 1000, 3, 0, 0)
    whole = Recording("x", "recording/x", 1000, gpu=recording.gpu, fleet=(facts,))
    assert whole.before(START_S * 1000, 1000).fleet == (FleetFacts(START_S * 1000 - DAY_MS, 3, 0, 0),)


def test_a_step_shorter_than_the_interval_is_refused() -> None:
    recording = made_up([START_S * 1000])
    assert recording_stream(recording).step_ms == 1000
    assert recording_stream(recording, 5.0).step_ms == 5000
    with pytest.raises(HarmonyError, match=r"--step 0\.5 is shorter than the 1 s") as caught:
        recording_stream(recording, 0.5)
    assert caught.value.exit_code == 2


GOOD = f"{START_S},x,0,1,1,1,2,1,0.5,0.5\n"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", ["has a header but no row"]),
        (GOOD + f"{START_S},x,0,1\n", ["line 3", "4 of 10 columns"]),
        (GOOD + f"{START_S},x,0,much,1,1,2,1,0.5,0.5\n", ["line 3, column power_w", "'much' is not a number"]),
        (GOOD + f"{START_S},x,0,-1,1,1,2,1,0.5,0.5\n", ["line 3, column power_w", "0 upwards"]),
        (GOOD + f"{START_S},x,0,inf,1,1,2,1,0.5,0.5\n", ["line 3, column power_w"]),
        (GOOD + f"{START_S},x,0,1,1,1,2,1,55,0.5\n", ["line 3, column sm_active", "within 0 to 1.001"]),
        (GOOD + f"{START_S},x,0,1,1,3,2,1,0.5,0.5\n", ["line 3, column mem_used_mib", "more than mem_total_mib"]),
        (GOOD + f"{START_S}0,x,0,1,1,1,2,1,0.5,0.5\n", ["line 3, column timestamp", "outside 2000 to 2100"]),
        (GOOD + "46023.5,x,0,1,1,1,2,1,0.5,0.5\n", ["line 3, column timestamp", "a spreadsheet's number of the day"]),
        (GOOD + ",x,0,1,1,1,2,1,0.5,0.5\n", ["line 3, column timestamp", "is no time"]),
        (GOOD + f"{START_S},x,0,1,1,1,2,1,0,5,0.5\n", ["line 3: has 11 cells, the header 10"]),
        (GOOD + f"{START_S},x,,1,1,1,2,1,0.5,0.5\n", ["line 3, column gpu"]),
        (GOOD + f"{START_S},x,<b>,1,1,1,2,1,0.5,0.5\n", ["line 3, column gpu", "without markup"]),
    ],
)
def test_a_wrong_cell_is_named_with_line_and_column(tmp_path: Path, rows: str, says: list[str]) -> None:
    refused(dcgm_file(tmp_path, rows), "run_7.csv", *says)


def refused(path: Path, *says: str) -> None:
    with pytest.raises(HarmonyError) as caught:
        read_recording(path)
    assert caught.value.exit_code == 2
    for words in says:
        assert words in caught.value.message
    assert caught.value.message.endswith(".")


def test_a_file_that_is_no_recording_is_refused_with_what_to_do(tmp_path: Path) -> None:
    refused(tmp_path / "none.csv", "there is no such file or directory")
    refused(dcgm_file(tmp_path, "", header=""), "is empty", "timestamp,gpu,power_w")
    refused(dcgm_file(tmp_path, "1,2\n", header="timestamp,gpu\n"), "line 1: lacks column power_w")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00timestamp")
    refused(tmp_path / "binary.csv", "is UTF-16 text")
    packed = gzip.compress((DCGM_HEADER + GOOD * 2000).encode())
    (tmp_path / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    refused(tmp_path / "cut.csv.gz", "cut short")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("qps", "timestamp_anon,value\n1,1\n", ["qps.csv, line 1: lacks column request_type"]),
        ("qps", "timestamp_anon,value,request_type\n1,1,API Requests\n", ["no row of 'Generative Requests'"]),
        (
            "pod_gpu_duty_cycle_anon",
            "value,timestamp_anon,container_ip\n130,1,aa\n",
            ["line 2, column value", "0 to 100.1"],
        ),
        (
            "queue_size_raw_anon",
            "value,timestamp_anon\nx,1662858720\n",
            ["queue_size_raw_anon.csv, line 2, column va"],
        ),
    ],
)
def test_a_wrong_gentd26_file_is_named(tmp_path: Path, name: str, text: str, says: list[str]) -> None:
    refused(gentd26_directory(tmp_path, **{name: text}), *says)


def test_a_directory_without_the_files_says_which_it_needs(tmp_path: Path) -> None:
    directory = gentd26_directory(tmp_path)
    (directory / "qps.csv").unlink()
    refused(directory, "holds no qps.csv or qps.csv.gz", "pod_gpu_duty_cycle_anon")


def test_trace_and_recording_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "t.csv").touch()
    result = CliRunner().invoke(cli.app, ["run", "--trace", str(tmp_path / "t.csv"), "--recording", str(tmp_path)])
    assert isinstance(result.exception, HarmonyError)
    assert result.exception.exit_code == 2
    assert result.exception.message == "--trace and --recording exclude each other: drop one of them."


def test_the_recorded_sets_can_be_read(data_dir: Path) -> None:
    node = read_recording(data_dir / "h100-dcgm" / "i4_telemetry.csv.gz")
    assert {s.source for samples in decoded(node, 1000)["gpu"].values() for s in samples} == {
        f"gpu-{k}" for k in range(8)
    }
    platform = read_recording(data_dir / "gentd26")
    assert (platform.interval_ms, len(platform.slot_numbers(57_000, 128))) == (57_000, 720)
    assert {f.pending for f in platform.fleet} == {0}
    assert 80 < min(f.ready for f in platform.fleet) <= max(f.ready for f in platform.fleet) < 110
