"""Page and metrics of a real worker: closed to the network unless somebody can be told from somebody else."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml

from infra.kafka.embedded import EmbeddedKafka
from tests.infra.actuate import certificates
from tests.integration.pipeline import Pipeline, stop

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

READABLE = ("/metrics", "/", "/api/fleet", "/api/events", "/static/page.js")


class OpenPipeline(Pipeline):
    """A worker on every address, with settings of `advanced.worker`."""

    def configure(self, **worker: object) -> None:
        content = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        content["advanced"]["worker"] |= worker
        self.config.write_text(yaml.safe_dump(content | {"web_host": "0.0.0.0"}), encoding="utf-8")


@pytest.fixture
def pipeline(broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Iterator[OpenPipeline]:
    made = OpenPipeline(broker.bootstrap, topic_prefix, tmp_path, ["w"])
    made.configure()
    yield made
    made.producer.close(1)


def test_a_worker_that_would_be_open_to_everybody_does_not_start(pipeline: OpenPipeline) -> None:
    worker = pipeline.start_worker()
    try:
        assert worker.wait(120) == 2
    finally:
        stop(worker)
    said = pipeline.log_of()
    assert "Traceback" not in said
    assert "would be open to the network on 0.0.0.0" in said.strip().splitlines()[-1]


def test_a_missing_certificate_is_named(pipeline: OpenPipeline) -> None:
    pipeline.configure(web_certfile="/nowhere/page.pem")
    worker = pipeline.start_worker()
    try:
        assert worker.wait(120) == 2
    finally:
        stop(worker)
    assert "Cannot use /nowhere/page.pem of advanced.worker: No such file" in pipeline.log_of()
    assert "Traceback" not in pipeline.log_of()


def test_a_client_certificate_opens_page_and_metrics_and_nothing_else_does(
    pipeline: OpenPipeline, tmp_path: Path
) -> None:
    home, strangers = tmp_path / "pki", tmp_path / "strangers"
    home.mkdir()
    strangers.mkdir()
    files, others = certificates.make(home), certificates.make(strangers)
    pipeline.configure(
        web_certfile=str(files["server.pem"]),
        web_keyfile=str(files["server.key"]),
        web_client_cafile=str(files["ca.pem"]),
    )
    worker = pipeline.start_worker()
    address = worker.metrics_url.replace("http:", "https:")  # type: ignore[attr-defined]
    nobody = ssl.create_default_context(cafile=str(files["ca.pem"]))
    known, stranger = (ssl.create_default_context(cafile=str(files["ca.pem"])) for _ in range(2))
    known.load_cert_chain(files["client.pem"], files["client.key"])
    stranger.load_cert_chain(others["client.pem"], others["client.key"])
    try:
        deadline = monotonic() + 120
        while status(address + "/livez", nobody)[0] != 200:
            assert monotonic() < deadline and worker.poll() is None, pipeline.log_of()[-3000:]  # noqa: PT018
            sleep(0.3)
        for path in READABLE:
            assert status(address + path, nobody)[0] == 401, path
            assert status(address + path, stranger)[0] in (None, 401), path
        for path in READABLE[:-2]:
            assert status(address + path, known)[0] == 200, path
        for context, told in ((nobody, False), (known, True)):
            body = status(address + "/readyz", context)[1]
            assert ("checks" in json.loads(body)) is told
        # Plain HTTP is no way around it.
        assert status(address.replace("https:", "http:") + "/metrics", None)[0] is None
    finally:
        assert stop(worker) == 0


def status(url: str, context: ssl.SSLContext | None) -> tuple[int | None, Any]:
    """Status and body; None where no answer came."""
    try:
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:  # noqa: S310 - our own address
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, ValueError):
        return None, b""
