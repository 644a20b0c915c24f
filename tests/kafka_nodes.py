"""Kafka nodes with properties of a test's own, from the same jars as the embedded broker: security, several nodes."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

import infra.kafka.watchdog
from infra.console.host import free_port
from infra.kafka.jars import ensure_jars, find_java

# Small machines run these beside workers; otherwise as the embedded broker is.
COMMON = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "logs",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "message.max.bytes": "4194304",
    "replica.fetch.max.bytes": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.index.size.max.bytes": "1048576",
}


def ports(count: int) -> list[int]:
    """Different free ports."""
    found: list[int] = []
    while len(found) < count:
        found.append(free_port(found))
    return found


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")


class KafkaNode:
    """One node: formatted once, then started and stopped at will. It ends with this process."""

    def __init__(self, directory: Path, cluster_id: str, properties: Mapping[str, str], heap_mb: int = 320) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.log = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._java = [
            str(find_java().binary), f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
            "-cp", os.pathsep.join(map(str, ensure_jars(quiet=True))),
        ]  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in {**COMMON, **properties}.items())
        (directory / "server.properties").write_text(text, encoding="utf-8")
        done = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", "server.properties"],
            cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def launch(self) -> None:
        """Begin to start; `wait_started` says when it has."""
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-I", "-S", infra.kafka.watchdog.__file__, "15",
                    *self._java, "kafka.Kafka", "server.properties",
                ],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, cwd=self._directory,
                start_new_session=True,
            )  # fmt: skip

    def wait_started(self, timeout_s: float = 120.0) -> None:
        assert self._process is not None
        deadline = monotonic() + timeout_s
        while b"Kafka Server started" not in self.log.read_bytes():
            assert self._process.poll() is None, self.said()
            assert monotonic() < deadline, f"the node did not start\n{self.said()}"
            sleep(0.05)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def signal_jvm(self, number: int) -> None:
        """Signal the broker itself, the child of its watchdog."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(int(children[0]), number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal_jvm(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(30)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
