"""Reading exporters: the text format, addresses, and what goes wrong."""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.formats.exposition import UnreadableError, read_exposition
from infra.collect.points import Point
from infra.collect.sources.scrape import Scraper, Target, parse_labels, parse_target, read_targets
from infra.console.errors import HarmonyError
from infra.console.web import FetchError, HttpClient, http_client
from tests.infra.collect.exporter import answering
from tests.infra.collect.samples import TS_MS, VLLM, reader


def everything(_: str) -> bool:
    return True


def test_only_wanted_series_are_read() -> None:
    points = read_exposition(VLLM, {"vllm:num_requests_running"}.__contains__, TS_MS)
    assert points == [Point("vllm:num_requests_running", {"engine": "0", "model_name": "acme/chat-7b"}, TS_MS, 4.0)]


def test_labels_of_the_target_stand_beside_those_of_the_sample() -> None:
    (point,) = read_exposition('a{pod="x",z="1"} 2', everything, TS_MS, {"pod": "dcgm-1", "instance": "h:1"})
    assert point.labels == {"exported_pod": "x", "z": "1", "pod": "dcgm-1", "instance": "h:1"}


def test_times_are_milliseconds_in_text_and_seconds_in_openmetrics() -> None:
    assert read_exposition(f"a 1 {TS_MS}", everything, 0)[0].ts_ms == TS_MS
    assert read_exposition(f"a 1 {TS_MS / 1000}\n# EOF\n", everything, 0)[0].ts_ms == TS_MS


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_only_a_line_feed_ends_a_line(odd: str) -> None:
    text = f'other{{x="p{odd}{{q"}} 1\na{{x="p{odd}{{q"}} 1\r\na 2\n'
    points = read_exposition(text, {"a"}.__contains__, TS_MS)
    assert points == [Point("a", {"x": f"p{odd}{{q"}, TS_MS, 1.0), Point("a", {}, TS_MS, 2.0)]


def test_exemplars_are_passed_over() -> None:
    text = 'a_bucket{le="1"} 3 # {trace_id="abc"} 0.5 1700000000.0\n# EOF\n'
    assert read_exposition(text, everything, TS_MS) == [Point("a_bucket", {"le": "1"}, TS_MS, 3.0)]


def test_counters_keep_the_names_they_are_served_under() -> None:
    assert read_exposition("# TYPE a counter\na 1\n", everything, TS_MS)[0].name == "a"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>sign in</html>", "line 1 is no sample such as name{label=\"text\"} 4.5: '<html>"),
        ('a 1\nb{x="1} 2\n', "line 2, column 3: "),
        ("a one\n", "line 1, column 3: 'one'"),
        ("a{x=1} 2\n", "line 1, column 3: "),
        ("a\n", "line 1 is no sample"),
    ],
)  # fmt: skip
def test_what_is_no_exposition_is_named_by_its_line(text: str, words: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read_exposition(text, everything, TS_MS)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["a 1" + "9" * 400 + "\n", "a 1 1" + "9" * 400 + "\n", "a 1 1e308\n# EOF\n"])
def test_a_number_that_no_float_holds_is_named(text: str) -> None:
    with pytest.raises(UnreadableError, match=r"a: a value or a time|line 1"):
        read_exposition(text, everything, TS_MS)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UnreadableError):
        assert all(point.name for point in read_exposition(text, everything, TS_MS))


@pytest.mark.parametrize(
    ("text", "url", "instance"),
    [
        ("h:8000", "http://h:8000/metrics", "h:8000"),
        ("http://h:8000/", "http://h:8000/metrics", "h:8000"),
        ("https://u:p@h/m", "https://u:p@h/m", "h"),
        ("[::1]:9400", "http://[::1]:9400/metrics", "[::1]:9400"),
    ],
)
def test_addresses(text: str, url: str, instance: str) -> None:
    assert parse_target(text, {"a": "b"}) == Target(url, {"instance": instance, "a": "b"})


@pytest.mark.parametrize("text", ["", "ftp://h", "h:99999999", "http://", "a b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(HarmonyError) as caught:
        parse_target(text)
    assert caught.value.exit_code == 2


def test_labels_of_flags() -> None:
    assert parse_labels(("a=b", "c=d=e")) == {"a": "b", "c": "d=e"}
    with pytest.raises(HarmonyError, match="write name=value"):
        parse_labels(("a",))


def test_a_file_of_targets_is_that_of_file_sd(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text('[{"targets": ["a:1", "b:2"], "labels": {"namespace": "prod"}}, {"targets": ["c:3"]}]')
    assert read_targets(path) == [
        Target("http://a:1/metrics", {"instance": "a:1", "namespace": "prod"}),
        Target("http://b:2/metrics", {"instance": "b:2", "namespace": "prod"}),
        Target("http://c:3/metrics", {"instance": "c:3"}),
    ]


@pytest.mark.parametrize(("text", "words"), [("a: 1", "a list of"), ("[1]", "entry 0"), ("[", ":1: not valid YAML")])
def test_mistakes_in_a_file_of_targets(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "targets.yaml"
    path.write_text(text)
    with pytest.raises(HarmonyError) as caught:
        read_targets(path)
    assert str(path) in caught.value.message
    assert words in caught.value.message


def test_one_target_that_fails_does_not_keep_the_others() -> None:
    with answering(metrics=VLLM, broken="<html>") as exporter:
        targets = [
            parse_target(exporter.url),
            parse_target(exporter.url + "/broken"),
            parse_target(exporter.url + "/no"),
        ]
        by = reader("vllm", workload="w")
        looked = Scraper(lambda: targets, by.reads, HttpClient(5.0), lambda: TS_MS)()
    assert looked.num_targets == 3
    assert looked.failures == {
        targets[1].url: "line 1 is no sample such as name{label=\"text\"} 4.5: '<html>'",
        targets[2].url: "HTTP 404 Not Found: no such page",
    }
    (reading,) = by.read(looked.points)
    assert (reading.source, reading.ts_ms) == (exporter.address, TS_MS)


def test_a_target_that_does_not_listen_is_a_failure() -> None:
    with answering() as exporter:
        url = exporter.url
    looked = Scraper(lambda: [parse_target(url)], everything, HttpClient(5.0))()
    assert "refused" in looked.failures[f"{url}/metrics"]


def test_credentials_are_sent_as_headers_and_never_told(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with answering(metrics="a 1\n") as exporter:
        Scraper(lambda: [parse_target(exporter.url)], everything, http_client(5.0, (), token))()
        with_password = parse_target(exporter.url.replace("//", "//me:pass@"))
        Scraper(lambda: [with_password], everything, HttpClient(5.0))()
        exporter.status = 401
        refused = Scraper(lambda: [with_password], everything, HttpClient(5.0))()
    basic = base64.b64encode(b"me:pass").decode()
    assert [asked[3] for asked in exporter.asked[:2]] == ["Bearer s3cret", f"Basic {basic}"]
    assert with_password.labels == {"instance": exporter.address}
    assert "pass" not in "".join(refused.failures.values())


@pytest.mark.parametrize("header", ["no colon", ": x"])
def test_a_header_that_is_none(header: str) -> None:
    with pytest.raises(HarmonyError, match="--header"):
        http_client(5.0, (header,))


def test_a_token_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarmonyError, match=r"Cannot use .*nothing"):
        http_client(5.0, (), tmp_path / "nothing")


def test_a_target_that_cannot_be_read_is_named_without_its_password() -> None:
    looked = Scraper(lambda: [parse_target("http://u:secretpw@127.0.0.1:1")], everything, HttpClient(1.0))()
    assert list(looked.failures) == ["http://127.0.0.1:1/metrics"]
    assert "secretpw" not in repr(looked.failures)


@contextmanager
def saying(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that does so with the first who asks, in the order of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65_536)
                talk(connection)

        other = Thread(target=answer_once)
        other.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        other.join()


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
def test_what_does_not_speak_http_is_a_failure_and_no_end(answer: bytes) -> None:
    with saying(lambda connection: connection.sendall(answer)) as url, pytest.raises(FetchError):
        HttpClient(5.0).get(url, "text/plain")


def test_a_refusal_that_ends_in_the_middle_is_a_failure_and_no_end() -> None:
    def half(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 503 Busy\x1b[2J\r\nContent-Length: 100\r\n\r\nha")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset

    with saying(half) as url, pytest.raises(FetchError, match=r"^HTTP 503 Busy\\x1b\[2J"):
        HttpClient(5.0).get(url, "text/plain")


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 500 No\r\n\r\n"]
)
def test_an_answer_without_end_ends_with_the_time_of_the_request(begin: bytes) -> None:
    gone = Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(begin)
        while not gone.wait(0.02):
            connection.sendall(b"a")

    with saying(drip) as url:
        with pytest.raises(FetchError):
            HttpClient(0.2).get(url, "text/plain")
        gone.set()


def test_a_redirection_is_followed_without_telling_another_the_credentials() -> None:
    with answering(metrics="a 1\n") as mine, answering(metrics="a 2\n") as others:
        for to, url in (("own", mine.url), ("others", others.url)):
            mine.moved[f"/{to}"] = f"{url}/metrics"
        http = http_client(5.0, ("Authorization: Bearer s3cret", "X-Key: s3cret"))
        found = [http.get(f"{mine.url}/{to}", "text/plain") for to in ("own", "others")]
    assert found == ["a 1\n", "a 2\n"]
    assert mine.asked[1][1:] == ("/metrics", "", "Bearer s3cret")
    assert others.asked == [("GET", "/metrics", "", None)]
    assert "X-Key" not in others.headers[0]
