"""One real Apache Kafka node (KRaft) on the loopback interface, from its released jars; data survive restarts."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.console.errors import HarmonyError
from infra.console.host import LOOPBACK, free_port, is_alive, is_free, state_home
from infra.kafka.jars import JavaRuntime, ensure_jars, find_java

# Why the embedded Kafka did not start, read from what it said, in one sentence with the remedy.


_PORT = re.compile(r"Address already in use|Failed to bind|BindException", re.IGNORECASE)
_ERROR_LINE = re.compile(r"(?:ERROR|FATAL|Exception|Error:)")


def java_environment() -> dict[str, str]:
    """This process's environment, in which Java reads paths as this process writes them.

    Under LC_ALL=POSIX Python writes UTF-8 all the same (PEP 540), and Java would read ASCII.
    """
    is_utf8 = sys.getfilesystemencoding().lower() == "utf-8"
    return {**os.environ, "LC_ALL": "C.UTF-8"} if is_utf8 else dict(os.environ)


def port_conflict(port: int) -> str:
    return (
        f"Port {port} on 127.0.0.1 is in use by another program. Choose another port, or use the broker that runs "
        f"there with --brokers 127.0.0.1:{port}."
    )


def is_port_race(text: str) -> bool:
    """True when the broker could not bind a port that was free a moment before."""
    return _PORT.search(text) is not None


def explain(text: str, data_dir: Path, log: Path, port: int | None) -> str:
    """One sentence for the user from the broker's output; the full text stays in `log`."""
    if "No space left on device" in text:
        return f"The disk of {data_dir} is full. Free some space or choose another directory with --data-dir."
    if is_port_race(text) and port is not None:
        return port_conflict(port)
    if "OutOfMemoryError" in text or "Could not reserve enough space" in text or "insufficient memory" in text:
        return f"Java got too little memory for Kafka, which needs about 350 MB. Free some and start again; see {log}."
    if "UnsupportedClassVersionError" in text:
        return "The Java on PATH is too old for Kafka. Put Java 17 or newer on PATH, or take it off PATH."
    if "Permission denied" in text or "AccessDeniedException" in text:
        return f"Kafka may not write to {data_dir}. Give this user the right to, or choose another with --data-dir."
    if "ClassNotFoundException" in text or "Could not find or load main class" in text:
        return (
            "Java does not find Kafka's jars, as where the locale has no UTF-8 and a path has other letters than "
            f"ASCII. Set LC_ALL=C.UTF-8, or XDG_CACHE_HOME to a plain path; see {log}."
        )
    if re.search(r"meta\.properties|InconsistentClusterId|metadata\.version|corrupt", text, re.IGNORECASE):
        return (
            f"Kafka cannot use the data in {data_dir}: {_last_error(text)}. Move that directory away to start afresh, "
            f"or choose another with --data-dir; the full text is in {log}."
        )
    return f"Kafka stopped before it was ready: {_last_error(text)}. The full text is in {log}."


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error_lines = [line for line in lines if _ERROR_LINE.search(line) and not line.startswith("at ")]
    chosen = (error_lines or lines or ["it said nothing"])[-1]
    return chosen.rstrip(".")[:240]


# The embedded broker's data directory: its files, and the lock that lets one broker use it.


MIN_FREE_BYTES = 256 << 20
_ORPHAN_WAIT_S = 20.0
_DATA_DIRECTORY_POLL_S = 0.1


class DataDirectory:
    """`logs/` (Kafka's), `server.properties`, `broker.log`, `ports.json` and `lock` under one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.unfinished_logs = path / "logs.unfinished"
        self.properties = path / "server.properties"
        self.log = path / "broker.log"
        self._ports = path / "ports.json"
        self._lock = path / "lock"
        self._fd: int | None = None

    @property
    def formatted(self) -> bool:
        return (self.logs / "meta.properties").is_file()

    @property
    def lock_fd(self) -> int:
        """Descriptor that holds the lock; hand it to the broker's watchdog."""
        if self._fd is None:
            raise RuntimeError("the data directory is not locked")
        return self._fd

    def acquire(self) -> None:
        """Create the directory and lock it for this process.

        Raises:
            HarmonyError: not a directory of ours, not writable, nearly full, or in use.
        """
        self._prepare()
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _ORPHAN_WAIT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
                # A holder that is gone leaves a broker that is stopping: worth a wait.
                if (holder.isdigit() and is_alive(int(holder))) or time.monotonic() > deadline:
                    os.close(fd)
                    raise HarmonyError(
                        f"The Kafka data directory {self.path} is in use by process {holder or '?'}. Stop it, use "
                        "its broker with --brokers, or choose another directory with --data-dir."
                    ) from None
            time.sleep(_DATA_DIRECTORY_POLL_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give up this process's copy of the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _prepare(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            strangers = [p.name for p in self.path.iterdir()] if not self._lock.exists() else []
            free = shutil.disk_usage(self.path).free
        except OSError as error:
            raise HarmonyError(
                f"Cannot keep Kafka's data in {self.path}: {error.strerror}. Choose another directory with --data-dir."
            ) from error
        if strangers:
            raise HarmonyError(
                f"{self.path} holds files that are not Kafka data of HARMONY (such as {min(strangers)}). "
                "Choose an empty or a new directory with --data-dir."
            )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise HarmonyError(f"Cannot write to {self.path}. Choose another directory with --data-dir.")
        if free < MIN_FREE_BYTES:
            raise HarmonyError(
                f"The disk of {self.path} is nearly full: {free >> 20} MB free, Kafka needs {MIN_FREE_BYTES >> 20} MB "
                "to start. Free some space or choose another directory with --data-dir."
            )

    def read_ports(self) -> tuple[int | None, int | None]:
        """Ports of the last start: broker's and controller's."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            ports = json.loads(self._ports.read_text())
            return int(ports["broker"]), int(ports["controller"])
        return None, None

    def write_ports(self, broker: int, controller: int) -> None:
        self._ports.write_text(json.dumps({"broker": broker, "controller": controller}) + "\n")

    def write_properties(self, text: str) -> None:
        self.properties.write_text(text)

    def rotate_log(self) -> None:
        """Keep the log of one earlier start."""
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        self.log.touch()


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
        self._fixed_port = port
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
        preferred, controller = self._fixed_port or remembered[0], remembered[1]
        if self._fixed_port is not None and not is_free(self._fixed_port):
            raise HarmonyError(port_conflict(self._fixed_port))
        port = preferred if preferred is not None and is_free(preferred) else free_port()
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
        if is_port_race(text) and self._fixed_port is None and not last:
            return False
        raise HarmonyError(explain(text, directory.path, directory.log, port))

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
            env=java_environment(),
        )
        if done.returncode != 0:
            with directory.log.open("a") as log:
                log.write(done.stdout + done.stderr)
            raise HarmonyError(explain(done.stdout + done.stderr, directory.path, directory.log, None))
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
                env=java_environment(),
                # Ctrl-C must reach us first, so that workers stop before the broker does.
                start_new_session=True,
                pass_fds=(self._directory.lock_fd,),
            )

    def _wait_started(self) -> bool:
        deadline = time.monotonic() + self._start_timeout_s
        with self._directory.log.open("rb") as log:
            log_tail = b""
            while time.monotonic() < deadline:
                log_tail = log_tail[-len(_STARTED) :] + log.read()
                if _STARTED in log_tail:
                    return True
                if not self.running:
                    return _STARTED in log_tail + log.read()
                time.sleep(_POLL_S)
        raise HarmonyError(
            f"Kafka did not start within {self._start_timeout_s:.0f} s; what it said is in {self._directory.log}."
        )
