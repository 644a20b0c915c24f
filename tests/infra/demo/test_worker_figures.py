"""The run reads its workers' figures from their own pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from infra.console.host import free_port
from infra.demo.supervisor import LagWatch, metric
from infra.observability.metrics import PrometheusMeter


@contextmanager
def page_of(meter: PrometheusMeter) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(meter.exposition()[0])

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_lag_is_the_sum_over_stages_and_workers_that_answer() -> None:
    first, second = PrometheusMeter(strict=True), PrometheusMeter(strict=True)
    with page_of(first) as one, page_of(second) as two:
        watch = LagWatch([one, two, f"http://127.0.0.1:{free_port()}"])
        watch.look()
        assert watch.lag_records is None  # nobody has said yet
        first.gauge("lag_records", 5, stage="ingest")
        first.gauge("lag_records", 2, stage="decide")
        second.gauge("lag_records", 30, stage="forecast")
        watch.look()
        assert watch.lag_records == 37


def test_a_counter_is_read_by_its_label() -> None:
    meter = PrometheusMeter(strict=True)
    meter.count("samples_total", 4, outcome="late")
    with page_of(meter) as url:
        assert metric(url, "samples_total", "late") == 4
        assert metric(url, "samples_total", "accepted") == 0
    assert metric(url, "samples_total", "late") == 0  # the worker has gone


def test_the_watch_looks_again_and_ends() -> None:
    meter = PrometheusMeter(strict=True)
    meter.gauge("lag_records", 3, stage="ingest")
    seen = threading.Event()
    with page_of(meter) as url:
        watch = LagWatch([url], period_s=0.01)
        look = watch.look
        watch.look = lambda: (look(), seen.set())  # type: ignore[method-assign, assignment, func-returns-value]
        with watch:
            assert seen.wait(30)
        assert watch.lag_records == 3
        assert not watch._thread.is_alive()
