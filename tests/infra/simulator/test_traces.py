"""Request traces are read to the request, or refused in a sentence that names file, line and column."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.simulator.arrivals import TraceError
from infra.simulator.traces import read_trace, remark

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:50.9951691,879,55\r
"""
PLAIN = "arrival_s,prompt_tokens,output_tokens\n0.5,10,2\n0.5,11,3\n7,12,4\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_published_azure_layout(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "conv.csv", AZURE))
    assert trace.name == "conv"
    assert trace.start_ts_ms == 1_700_158_546_000
    assert trace.arrivals.arrival_s.tolist() == pytest.approx([0.68059, 4.995169, 4.9951691], abs=1e-9)
    assert trace.arrivals.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.arrivals.output_tokens.tolist() == [44, 109, 55]
    assert len(trace.between(0.0, trace.end_s)) == 3


def test_the_plain_layout_and_gzip_whatever_the_name(tmp_path: Path) -> None:
    for name, body in (
        ("a.csv", PLAIN.encode()),
        ("b.csv.gz", gzip.compress(PLAIN.encode(), mtime=0)),
        ("c.dat", PLAIN.encode()),
    ):
        trace = read_trace(write(tmp_path / name, body))
        assert trace.arrivals.arrival_s.tolist() == [0.5, 0.5, 7.0]
        assert trace.start_ts_ms is None
    assert read_trace(tmp_path / "b.csv.gz").name == "b"


def test_byte_order_mark_blank_lines_and_other_columns_do_no_harm(tmp_path: Path) -> None:
    text = "\ufeffregion,arrival_s,output_tokens,prompt_tokens\n\neu,1,2,3\n\n"
    trace = read_trace(write(tmp_path / "t.csv", text))
    assert (trace.arrivals.prompt_tokens.tolist(), trace.arrivals.output_tokens.tolist()) == ([3], [2])


HEAD = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", r"t\.csv: is empty; give a CSV file"),
        (HEAD, r"t\.csv: has a header but no request"),
        ("a,b\n1,2\n", r"line 1: has no column TIMESTAMP or arrival_s; the header must hold"),
        ('{"timestamp": 1, "input_length": 2}\n', r"line 1: lacks output_length; JSON lines must hold"),
        (
            '{"timestamp": 1.5, "input_length": 2, "output_length": 3}\n',
            r"line 1, .* is no whole number of milliseconds; ",
        ),
        (
            '{"timestamp": true, "input_length": 2, "output_length": 3}\n',
            r"column timestamp: True is not a number; correct",
        ),
        ('{"timestamp": 1, "input_length": "", "output_length": 3}\n', r"column input_length: holds no number; "),
        (
            f'{{"timestamp": {"9" * 400}, "input_length": 1, "output_length": 3}}\n',
            r"column timestamp: .* is not a number; ",
        ),
        ('{"timestamp": 1\n', r"line 1: is not JSON .*; give one object a line"),
        ("[" * 100_000, r"line 1: is not JSON .*; give one object a line"),
        ("[1]\n", r"line 1: is no JSON object; give one object a line"),
        ("arrival_s,prompt_tokens\n1,2\n", r"line 1: lacks column output_tokens"),
        ("TIMESTAMP,ContextTokens\n", r"line 1: lacks column GeneratedTokens"),
        (HEAD + "2,1,1\n1,1,1\n", r"line 3, column arrival_s: goes back in time; sort the file by arrival_s"),
        (HEAD + "-1,1,1\n", r"line 2, column arrival_s: '-1' is not a finite number >= 0"),
        (HEAD + "nan,1,1\n", r"column arrival_s: 'nan' is not a finite number"),
        (HEAD + "soon,1,1\n", r"column arrival_s: 'soon' is not a number"),
        (HEAD + "1,0,1\n1,1,0\n", r"has a header but no request; 2 have no prompt or no answer"),
        (HEAD + "1,,1\n", r"line 2, column prompt_tokens: holds no number; complete or remove the line"),
        (HEAD + "1,1_0,1\n", r"column prompt_tokens: '1_0' is not a whole number"),
        (HEAD + "1,10000001,1\n", r"column prompt_tokens: 1e\+07 is outside 1 to"),
        (HEAD + "0,5,10,2\n", r"line 2: has 4 cells, the header 3; correct the line"),
        (HEAD + "1795900000,1,1\n", r"the first request comes 2.079e\+04 days after second 0; count seconds"),
        (HEAD + "20260131,1,1\n", r"the first request comes 234.5 days after second 0; count seconds"),
        ("arrival_s,arrival_s,prompt_tokens,output_tokens\n1,1,1,1\n", r"column arrival_s is there twice; rename"),
        (HEAD + "1,1,-3\n", r"line 2, column output_tokens: -3 is outside 1 to"),
        (HEAD + "1,1.5,1\n", r"column prompt_tokens: '1\.5' is not a whole number"),
        (HEAD + "1,1,1\n2,2\n", r"line 3: has 2 of 3 columns"),
        (AZURE + "2023-11-16 18:15:49,1,1\n", r"line 5, column TIMESTAMP: goes back in time"),
        (AZURE + "yesterday,1,1\n", r"line 5, column TIMESTAMP: 'yesterday' is not a time; write it as"),
        (
            AZURE + "2023-11-16 20:15:52+02:00,1,1\n",
            r"line 5, column TIMESTAMP: .* has an offset from UTC and others have",
        ),
        (HEAD.encode() + b"1,1,\xff\xfe\n", r"is not UTF-8 text; convert the file to UTF-8"),
        (gzip.compress((HEAD + "1,1,1\n" * 50).encode(), mtime=0)[:-20], r"the gzip file is cut short; fetch it again"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:-8] + b"\0" * 8, r"is not a sound gzip file"),
        (HEAD + '1,1,"2\n', r"is not CSV"),
    ],
)
def test_a_bad_trace_is_named_with_place_and_remedy(tmp_path: Path, body: str | bytes, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint) as caught:
        read_trace(write(tmp_path / "t.csv", body))
    assert str(caught.value).startswith(str(tmp_path / "t.csv"))
    assert "; " in str(caught.value)


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_the_recorded_azure_trace(data_dir: Path) -> None:
    trace = read_trace(data_dir / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.gz")
    assert len(trace.arrivals) == 19_366
    assert trace.arrivals.prompt_tokens.mean() == pytest.approx(1155, abs=1)
    assert trace.arrivals.output_tokens.mean() == pytest.approx(211, abs=1)
    assert 3500 < trace.end_s < 3505


def test_offsets_are_kept_and_capitals_do_not_matter(tmp_path: Path) -> None:
    text = "timestamp,contexttokens,generatedtokens\n2024-05-10 02:00:00.5+02:00,1,2\n2024-05-10T00:00:01.25Z,3,4\n"
    trace = read_trace(write(tmp_path / "t.csv", text))
    assert trace.start_ts_ms == 1_715_299_200_000
    assert trace.arrivals.arrival_s.tolist() == [0.5, 1.25]


def test_whole_numbers_with_a_point_are_whole(tmp_path: Path) -> None:
    """As pandas writes integers of a column with a gap."""
    trace = read_trace(write(tmp_path / "t.csv", HEAD + "0,1060.0,3.68e2\n"))
    assert (trace.arrivals.prompt_tokens.tolist(), trace.arrivals.output_tokens.tolist()) == ([1060], [368])


def test_requests_without_tokens_are_counted_and_passed_over(tmp_path: Path) -> None:
    text = "Timestamp,Model,Request tokens,Response tokens,Log Type\n5,A,472,18,x\n45,A,9,0,x\n46,A,1,2,x\n"
    trace = read_trace(write(tmp_path / "burst.csv", text))
    assert trace.arrivals.arrival_s.tolist() == [5.0, 46.0]
    assert trace.arrivals.output_tokens.tolist() == [18, 2]
    assert remark(trace) == "burst: passed over 1 of its requests, which lack prompt or answer"
    assert remark(read_trace(write(tmp_path / "t.csv", PLAIN))) is None


@pytest.mark.parametrize("packed", [False, True])
def test_json_lines_count_milliseconds_and_those_of_chats_seconds(tmp_path: Path, packed: bool) -> None:
    requests = [(0, 6955, 52), (3052, 6472, 26), (27482, 10, 0), (27483, 7, 1)]
    names = ("timestamp", "input_length", "output_length")
    lines = [dict(zip(names, request, strict=True)) | {"hash_ids": [1, 2]} for request in requests]
    chats = [line | {"timestamp": line["timestamp"] / 1000, "chat_id": 7, "turn": 1} for line in lines]
    for name, bodies in (("m.jsonl", lines), ("q.jsonl", chats)):
        text = "\n".join(map(json.dumps, bodies)).encode()
        trace = read_trace(write(tmp_path / name, gzip.compress(text) if packed else text))
        assert trace.name == name[0]
        assert trace.start_ts_ms is None
        assert trace.arrivals.arrival_s.tolist() == [0.0, 3.052, 27.483]
        assert trace.arrivals.prompt_tokens.tolist() == [6955, 6472, 7]
        assert trace.num_without_tokens == 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 86_400_000), st.integers(0, 9_999), st.integers(0, 9_999)), min_size=1, max_size=20
    ),
    st.booleans(),
)
def test_every_request_with_tokens_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int, int]], as_instants: bool
) -> None:
    requests.sort()
    kept = [r for r in requests if r[1] and r[2]]
    head = "TIMESTAMP;ContextTokens;GeneratedTokens" if as_instants else "arrival_s\tprompt_tokens\toutput_tokens"
    mark = ";" if as_instants else "\t"
    rows = [
        (str(1_715_299_200_000 + t) if as_instants else f"{t / 1000:.3f}", str(p), f"{o}.0") for t, p, o in requests
    ]
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(head + "\n" + "".join(mark.join(row) + "\n" for row in rows))
    if not kept:
        with pytest.raises(TraceError, match="no request"):
            read_trace(path)
        return
    trace = read_trace(path)
    start_s = 1_715_299_200 + requests[0][0] // 1000
    origin_ms = requests[0][0] // 1000 * 1000 if as_instants else 0
    assert trace.start_ts_ms == (start_s * 1000 if as_instants else None)
    assert trace.arrivals.arrival_s.tolist() == [(t - origin_ms) / 1000 for t, _, _ in kept]
    assert trace.arrivals.prompt_tokens.tolist() == [p for _, p, _ in kept]
    assert trace.num_without_tokens == len(requests) - len(kept)


@pytest.mark.skipif(shutil.which("awk") is None, reason="awk is not there")
def test_the_recipe_of_the_documentation_keeps_milliseconds_for_weeks(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "replay-your-trace.md"
    found = re.search(r"awk -F, '([^']*)'", page.read_text())
    assert found is not None
    rows = "1795900000.123,100,20\n1797133332.556,100,20\n"
    run = subprocess.run(["awk", "-F,", found[1]], input=rows, capture_output=True, text=True, check=True)
    trace = read_trace(write(tmp_path / "trace.csv", run.stdout))
    assert trace.arrivals.arrival_s.tolist() == [0.0, 1233332.433]
