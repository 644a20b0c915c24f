"""One real Apache Kafka node (KRaft) on the loopback interface, from its released jars; data survive restarts."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from infra import kafka_failure
from infra.console.errors import HarmonyError
from infra.console.host import state_home
from infra.data_directory import DataDirectory
from infra.java_runtime import JavaRuntime, find_java
from infra.kafka.jars import ensure_jars
from infra.loopback_port import LOOPBACK, free_port, is_free

_STARTED = b"Kafka Server started"
_POLL_S = 0.02
_ATTEMPTS = 3
_WATCHDOG = Path(__file__).with_name("watchdog.py")

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs=logs
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
message.max.bytes=4194304
replica.fetch.max.bytes=4194304
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.dedupe.buffer.size=8388608
log.index.size.max.bytes=1048576
"""


class EmbeddedKafka:
    """Starts and stops one Kafka node.

    The broker listens on 127.0.0.1 only and keeps its port from start to start where it is free. It ends with this
    process in whatever way the process ends. Blocking; from a coroutine call it in a thread.

    Args:
        data_dir: where topics live; default `~/.local/state/harmony/kafka` (XDG).
        port: of the broker; None = the last one, or any free one below 32768.
        offline: never fetch jars.
        quiet: no progress on stderr.
        heap_mb: of the JVM.
        start_timeout_s: until the broker says that it has started.
        stop_grace_s: between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int | None = None,
        offline: bool = False,
        quiet: bool = False,
        heap_mb: int = 512,
        start_timeout_s: float = 90.0,
        stop_grace_s: float = 15.0,
    ) -> None:
        self._directory = DataDirectory((data_dir or state_home() / "kafka").absolute())
        self._wanted_port = port
        self._offline = offline
        self._quiet = quiet
        self._heap_mb = heap_mb
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients.

        Raises:
            HarmonyError: not started.
        """
        if self._process is None or self._port is None:
            raise HarmonyError("The embedded Kafka is not running.")
        return f"{LOOPBACK}:{self._port}"

    @property
    def data_dir(self) -> Path:
        return self._directory.path

    @property
    def log_path(self) -> Path:
        """What the broker has to say since its last start."""
        return self._directory.log

    @property
    def running(self) -> bool:
        """False before start, after stop, and when the broker has died."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Fetch what is missing, format the storage once, start, and return when the broker has started.

        Raises:
            HarmonyError: with the remedy: no Java, no jars, port taken, data directory in use or unusable, disk full.
        """
        if self.running:
            return
        java = find_java()
        jars = ensure_jars(offline=self._offline, quiet=self._quiet)
        self._directory.acquire()
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                port, controller_port = self._choose_ports(attempt)
                if self._launch(java, jars, port, controller_port, last=attempt == _ATTEMPTS):
                    break
        except BaseException:
            self.stop()
            raise
        finally:
            # From here the watchdog's copy of the lock is the one that counts.
            self._directory.release()

    def stop(self) -> None:
        """Stop the broker: SIGTERM, then SIGKILL after the grace. Does nothing when it is not running."""
        process, self._process, self._port = self._process, None, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(self._stop_grace_s + 5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _choose_ports(self, attempt: int) -> tuple[int, int]:
        remembered = self._directory.read_ports() if attempt == 1 else (None, None)
        wanted, controller = self._wanted_port or remembered[0], remembered[1]
        if self._wanted_port is not None and not is_free(self._wanted_port):
            raise HarmonyError(kafka_failure.port_taken(self._wanted_port))
        port = wanted if wanted is not None and is_free(wanted) else free_port()
        if controller is None or controller == port or not is_free(controller):
            controller = free_port({port})
        return port, controller

    def _launch(
        self, java: JavaRuntime, jars: tuple[Path, ...], port: int, controller_port: int, *, last: bool
    ) -> bool:
        """True once started; False when another program took one of the freely chosen ports meanwhile."""
        directory = self._directory
        # `log.dirs` is relative to the working directory: no character of the path needs escaping.
        directory.write_properties(_PROPERTIES.format(host=LOOPBACK, port=port, controller_port=controller_port))
        command = [
            str(java.binary),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            "-cp",
            os.pathsep.join(map(str, jars)),
        ]
        directory.rotate_log()
        if not directory.formatted:
            self._format(command)
        self._process = self._spawn([*command, "kafka.Kafka", directory.properties.name])
        self._port = port
        if self._wait_started():
            directory.write_ports(port, controller_port)
            return True
        self.stop()
        text = directory.log.read_text(errors="replace")
        if kafka_failure.is_port_race(text) and self._wanted_port is None and not last:
            return False
        raise HarmonyError(kafka_failure.explain(text, directory.path, directory.log, port))

    def _format(self, command: list[str]) -> None:
        # Formatted under another name first: a directory named `logs` is always complete.
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        directory = self._directory
        shutil.rmtree(directory.unfinished_logs, ignore_errors=True)
        scratch = directory.properties.with_name("format.properties")
        scratch.write_text(
            directory.properties.read_text().replace("log.dirs=logs", f"log.dirs={directory.unfinished_logs.name}")
        )
        done = subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", scratch.name],
            capture_output=True,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=directory.path,
        )
        if done.returncode != 0:
            with directory.log.open("a") as log:
                log.write(done.stdout + done.stderr)
            raise HarmonyError(kafka_failure.explain(done.stdout + done.stderr, directory.path, directory.log, None))
        directory.unfinished_logs.replace(directory.logs)
        scratch.unlink()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._directory.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WATCHDOG), str(self._stop_grace_s), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory.path,
                # Ctrl-C must reach us first, so that workers stop before the broker does.
                start_new_session=True,
                pass_fds=(self._directory.lock_fd,),
            )

    def _wait_started(self) -> bool:
        deadline = time.monotonic() + self._start_timeout_s
        with self._directory.log.open("rb") as log:
            seen = b""
            while time.monotonic() < deadline:
                seen = seen[-len(_STARTED) :] + log.read()
                if _STARTED in seen:
                    return True
                if not self.running:
                    return _STARTED in seen + log.read()
                time.sleep(_POLL_S)
        raise HarmonyError(
            f"Kafka did not start within {self._start_timeout_s:.0f} s; what it said is in {self._directory.log}."
        )
