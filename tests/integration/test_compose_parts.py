"""The commands of docker-compose.yml, run as processes: topics, a worker per role, the demo's fleet, health checks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml
from kafka import KafkaConsumer, TopicPartition

from infra.console.host import free_port
from infra.kafka.embedded import EmbeddedKafka
from tests.infra.observability.test_compose import COMPOSE, ENV_EXAMPLE, SERVICES
from tests.integration.pipeline import stop
from tests.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TOKEN = "a-token"


class Parts:
    """Compose's services as processes of this machine: other addresses, the same settings, commands and checks."""

    def __init__(self, bootstrap: str, prefix: str, home: Path) -> None:
        self.bootstrap, self.home = bootstrap, home
        self.ports = {name: free_port() for name in ("ingest", "forecast", "decide")}
        settings = yaml.safe_load((ROOT / "config/demo.yaml").read_text())
        settings["topic_prefix"] = self.prefix = prefix
        self.config = home / "harmony.yaml"
        self.config.write_text(yaml.safe_dump(settings))

    def environment(self, name: str) -> dict[str, str]:
        theirs = {key: str(value) for key, value in SERVICES[name]["environment"].items()}
        theirs |= {"HARMONY_BROKERS": self.bootstrap, "HARMONY_CONFIG": str(self.config)}
        theirs |= {"HARMONY_WEB_PORT": str(self.ports.get(name, 0)), "HARMONY_WEB_HOST": "127.0.0.1"}
        theirs["HARMONY_ADVANCED__WORKER__METRICS_TOKEN"] = TOKEN
        ours = {key: value for key, value in os.environ.items() if not key.startswith("HARMONY_")}
        return {**ours, **theirs, "HARMONY_STATE_DIR": str(self.home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def command(self, name: str) -> list[str]:
        service = SERVICES[name]
        if "entrypoint" in service:
            return [sys.executable, *service["entrypoint"][1:]]
        words = service["command"]
        if isinstance(words, str):
            words = shlex.split(re.sub(r"\$\{(\w+)-\}", lambda m: ENV_EXAMPLE[m[1]], words))
        return [sys.executable, "-m", "infra", *words]

    @contextmanager
    def service(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(self.command(name), stdout=log, stderr=log, env=self.environment(name))
        try:
            yield process
        finally:
            stop(process)

    def healthy(self, name: str) -> bool:
        """What compose's own health check says."""
        test: list[str] = SERVICES[name]["healthcheck"]["test"]
        words = [word.replace("9464", str(self.ports[name])) for word in test[1:]]
        done = subprocess.run(
            [sys.executable, *words[1:]], capture_output=True, check=False, env=self.environment(name)
        )
        return done.returncode == 0

    def count(self, topic: str) -> int:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None)
        try:
            parts = [TopicPartition(self.prefix + topic, p) for p in consumer.partitions_for_topic(self.prefix + topic)]
            return sum(consumer.end_offsets(parts).values())
        finally:
            consumer.close()

    def until(self, what: str, condition: Any, timeout_s: float = 300.0) -> None:
        deadline = monotonic() + timeout_s
        while not condition():
            if monotonic() > deadline:
                logs = "\n".join(f"{p.name}: {p.read_text()[-1500:]}" for p in sorted(self.home.glob("*.log")))
                raise AssertionError(f"not within {timeout_s} s: {what}\n{logs}")
            sleep(0.5)


def test_the_services_come_up_in_order_and_the_loop_closes(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    parts = Parts(broker.bootstrap, topic_prefix, tmp_path)
    with ExitStack() as stack:
        assert not parts.healthy("decide")
        assert stack.enter_context(parts.service("topics")).wait(200) == 0
        for name in ("ingest", "forecast", "decide"):
            stack.enter_context(parts.service(name))
        for name in parts.ports:
            parts.until(f"{name} is healthy", lambda name=name: parts.healthy(name))
        with parts.service("fleet") as fleet:
            parts.until("decisions for the demo's workloads", lambda: parts.count("decisions") >= 3 * 10)
            assert fleet.poll() is None
        for name, series in (("ingest", "samples_total"), ("forecast", "slots_total"), ("decide", "decisions_total")):
            ask = urllib.request.Request(
                f"http://127.0.0.1:{parts.ports[name]}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
            )
            text = urllib.request.urlopen(ask, timeout=10).read().decode()  # noqa: S310
            assert sum(float(v) for v in re.findall(rf"^harmony_{series}(?:{{.*}})? (\S+)$", text, re.MULTILINE)) > 0, (
                name
            )
        # The fleet's time cannot begin again on these topics.
        with parts.service("fleet") as again:
            assert again.wait(200) == 1
        assert "docker compose down --volumes" in (tmp_path / "fleet.log").read_text()
    assert COMPOSE["services"]["fleet"]["restart"] == "no"
