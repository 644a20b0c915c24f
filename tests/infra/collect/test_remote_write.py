"""Remote write: the message, its limits, and the receiver. A real Prometheus writes in tests/integration."""

from __future__ import annotations

import asyncio
import math
import struct
import urllib.error
import urllib.request
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.formats.exposition import UnreadableError, read_exposition
from infra.collect.formats.values import with_aliases
from infra.collect.mapping.readings import Assembler
from infra.collect.points import Point
from infra.collect.publisher import DryRun
from infra.collect.receive import receive
from infra.collect.sources.remote_write import MOST_BYTES, PATH, RemoteWriteServer, read_remote_write
from infra.console.errors import HarmonyError
from tests.infra.collect.samples import TOPICS, TS_MS, VLLM, reader

pytest.importorskip("google.protobuf", reason="protobuf (extra collect) is not installed")


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def message(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def written(points: Iterable[Point]) -> bytes:
    """A request as Prometheus writes it, by an encoder of our own after the published field numbers."""
    request = b""
    for p in points:
        labels = {"__name__": p.name, **p.labels}.items()
        pairs = b"".join(message(1, message(1, k.encode()) + message(2, v.encode())) for k, v in labels)
        sample = b"\x09" + struct.pack("<d", p.value) + b"\x10" + varint(p.ts_ms & (1 << 64) - 1)
        request += message(1, pairs + message(2, sample))
    return bytes(cramjam.snappy.compress_raw(request))


TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
POINTS = st.lists(
    st.builds(
        Point,
        TEXT,
        st.dictionaries(TEXT.filter(lambda name: name != "__name__"), TEXT, max_size=3),
        st.integers(0, 2**53 - 1),
        st.floats(allow_nan=False),
    ),
    max_size=20,
)


@given(POINTS)
def test_every_sample_comes_out_as_it_went_in(points: list[Point]) -> None:
    assert read_remote_write(written(points)) == [p._replace(labels=with_aliases(dict(p.labels))) for p in points]


@pytest.mark.parametrize("ts_ms", [-1, -(2**62), 2**53, 2**62])
def test_a_time_that_no_record_may_hold_is_refused(ts_ms: int) -> None:
    with pytest.raises(UnreadableError, match=f"a: {ts_ms} is no time"):
        read_remote_write(written([Point("a", {}, ts_ms, 1.0)]))


@pytest.mark.parametrize("bits", [0x7FF0000000000002, 0x7FF8000000000001, 0xFFF8000000000000])
def test_the_mark_of_an_ended_series_is_no_measurement(bits: int) -> None:
    stale = struct.unpack("<d", struct.pack("<Q", bits))[0]
    name = "vllm:num_requests_running"
    points = read_remote_write(written([Point(name, {"instance": "h"}, TS_MS, stale)]))
    assert [(p.name, math.isnan(p.value)) for p in points] == [(name, True)]
    assert reader("vllm", workload="w").read(points) == []


def test_fields_that_are_not_read_are_passed_over() -> None:
    exemplar, metadata = message(3, b"\x0a\x00"), message(3, b"\x08\x01")
    series = message(1, message(1, b"__name__") + message(2, b"a")) + message(2, b"\x10\x05") + exemplar
    body = bytes(cramjam.snappy.compress_raw(message(1, series) + metadata))
    assert read_remote_write(body) == [Point("a", {}, 5, 0.0)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not compressed with snappy"),
        (b"{}", "not compressed with snappy"),
        (b"\xff" * 20, "not compressed with snappy"),
        (bytes(cramjam.snappy.compress_raw(b"\x0a\xff")), "not a remote-write request"),
        (bytes(cramjam.snappy.compress_raw(message(1, message(2, b"\x10\x05")))), "a series has no __name__"),
        (varint(MOST_BYTES + 1) + b"\x00" * 30, "uncompressed, the limit is"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        read_remote_write(body)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for tried in (body, bytes(cramjam.snappy.compress_raw(body))):
        try:
            read_remote_write(tried)
        except UnreadableError:
            continue


def post(url: str, body: bytes, **headers: str) -> int:
    named = {"Content-Type": "application/x-protobuf"} | {n.replace("_", "-"): v for n, v in headers.items()}
    request = urllib.request.Request(url, data=body, headers=named, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)


@pytest.mark.parametrize(("content", "words"), [(b"\xdf\xff", "can't decode"), (b" \n", "is empty"), (None, "No such")])
def test_a_token_that_cannot_be_one_is_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(HarmonyError, match=words) as refusal:
        receive(None, "127.0.0.1:0", "1s", (), (), None, token)  # type: ignore[arg-type]
    assert refusal.value.exit_code == 2


# A body whose pieces do not say how long they are.
CHUNKED = (
    b"POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-protobuf\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
)


async def test_a_scrape_in_two_requests_is_one_reading() -> None:
    by, out = reader("vllm", workload="w"), StringIO()
    address: asyncio.Queue[str] = asyncio.Queue()
    points = read_exposition(VLLM, by.reads, TS_MS, {"instance": "h:1"})
    server = RemoteWriteServer(Assembler(by, 0.5), TOPICS, DryRun(out), "127.0.0.1", 0, address.put_nowait, "s3cret")
    stop = asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    url = (await asyncio.wait_for(address.get(), 20)).removeprefix("remote_write: url: ")
    assert url.endswith(PATH)
    bearer = "Bearer s3cret"
    asked = [
        (written(points[::2]), {"Authorization": bearer}),
        (written(points[1::2]), {"Authorization": bearer}),
        (b"garbage", {"Authorization": bearer}),
        (written(points), {}),
        (b"", {"Authorization": bearer, "Content_Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}),
    ]
    statuses = [await asyncio.to_thread(lambda b=body, h=headers: post(url, b, **h)) for body, headers in asked]
    stop.set()
    await running
    assert statuses == [204, 204, 400, 401, 415]
    assert len(out.getvalue().splitlines()) == server.records == 1
    assert by.tally.readings == {"vllm": 1}
    assert '"requests_started_total": [103.0]' in out.getvalue()
    assert '"ttft_s"' in out.getvalue()


async def test_malformed_requests_are_one_sentence_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    address: asyncio.Queue[str] = asyncio.Queue()

    def say(text: str) -> None:
        said.append(text)
        address.put_nowait(text)

    server = RemoteWriteServer(Assembler(reader("vllm"), 0.5), TOPICS, DryRun(StringIO()), "127.0.0.1", 0, say)
    stop = asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    port = int((await asyncio.wait_for(address.get(), 20)).rpartition(":")[2].partition("/")[0])
    for body in (b"POST / HTTP/x.y\r\n\r\n", CHUNKED) * 20:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(body)
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
    await asyncio.sleep(0.4)
    stop.set()
    await running
    assert len(said) == 2
    assert said[1].endswith("requests were no HTTP and were refused: something else writes to this port.")
    assert not [record for record in caplog.records if record.exc_info and record.levelname == "ERROR"]
