"""The embedded broker: real processes, real files, real faults."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from infra.console.errors import HarmonyError
from infra.console.host import FIRST_PORT, LAST_PORT, free_port, is_free
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.jars import jar_cache
from streams.topics import TopicSpec

OWNER = """
import sys, threading
from pathlib import Path
from infra.kafka.embedded import EmbeddedKafka
kafka = EmbeddedKafka(Path(sys.argv[1]), quiet=True)
starter = threading.Thread(target=kafka.start)   # a thread that ends: the broker must outlive it
starter.start(); starter.join()
print(kafka.bootstrap, flush=True)
if sys.argv[2:] == ["fork"]:
    import os
    if os.fork() == 0:
        sys.stdin.read(); os._exit(0)
sys.stdin.read()
"""
_THE_USERS = "import os, infra.kafka.embedded as own; own.java_environment = lambda: dict(os.environ)"


def spec(name: str) -> TopicSpec:
    return TopicSpec(name, 1, {"cleanup.policy": "delete"})


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for value in values:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    consumer.assign([TopicPartition(topic, 0)])
    values = [record.value for record in itertools.islice(consumer, count)]
    consumer.close()
    return values


def jvms_in(data_dir: Path) -> list[int]:
    """Java processes whose working directory is the data directory."""

    def is_broker(process: Path) -> bool:
        try:
            return (
                process.name.isdigit()
                and process.joinpath("cwd").readlink() == data_dir
                and process.joinpath("exe").readlink().name == "java"
            )
        except OSError:
            return False

    return [int(process.name) for process in Path("/proc").iterdir() if is_broker(process)]


def wait_until_gone(data_dir: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while jvms_in(data_dir) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not jvms_in(data_dir)


needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="no /proc on this system")


def test_broker_is_on_loopback_below_the_ephemeral_range(broker: EmbeddedKafka) -> None:
    host, port = broker.bootstrap.split(":")
    assert host == "127.0.0.1"
    assert FIRST_PORT <= int(port) <= LAST_PORT < 32_768
    assert not is_free(int(port))


def test_produced_records_come_back_in_order_and_a_megabyte_passes(broker: EmbeddedKafka, topic_prefix: str) -> None:
    topic = topic_prefix + "echo"
    create_topics(broker.bootstrap, [TopicSpec(topic, 1, {"max.message.bytes": str(2 << 20)})])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", max_request_size=2 << 20)
    values = [b"first", os.urandom(1 << 20), b"last"]
    for value in values:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    assert consume(broker.bootstrap, topic, 3) == values


def test_a_topic_is_never_made_by_accident(broker: EmbeddedKafka, topic_prefix: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, max_block_ms=1000)
    with pytest.raises(Exception, match=r"(?i)metadata|timeout|unknown"):
        producer.send(topic_prefix + "typo", b"x").get(5)
    producer.close()


def test_restart_keeps_records_port_and_cluster(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "data", quiet=True) as kafka:
        first = kafka.bootstrap
        create_topics(first, [spec("kept")])
        produce(first, "kept", b"one", b"two")
        cluster = (tmp_path / "data/logs/meta.properties").read_text()
    assert not kafka.running
    with EmbeddedKafka(tmp_path / "data", quiet=True) as kafka:
        assert kafka.bootstrap == first
        assert consume(first, "kept", 2) == [b"one", b"two"]
        assert (tmp_path / "data/logs/meta.properties").read_text() == cluster
    with pytest.raises(HarmonyError, match="not running"):
        _ = kafka.bootstrap


@needs_proc
@pytest.mark.parametrize("how", ["plain", "fork"])
def test_kill_9_of_the_owner_leaves_no_jvm_and_the_data_directory_is_free_again(tmp_path: Path, how: str) -> None:
    data_dir = tmp_path / "data"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data_dir), *([how] if how == "fork" else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert owner.stdout is not None
    bootstrap = owner.stdout.readline().strip()
    create_topics(bootstrap, [spec("kept")])
    produce(bootstrap, "kept", b"one")
    assert len(jvms_in(data_dir)) == 1
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    # Started at once, while the old broker is still stopping: the new one waits for it.
    with EmbeddedKafka(data_dir, quiet=True) as kafka:
        assert len(jvms_in(data_dir)) == 1
        assert consume(kafka.bootstrap, "kept", 1) == [b"one"]
    assert wait_until_gone(data_dir, 10)
    owner.communicate()


@needs_proc
def test_kill_9_of_the_watchdog_takes_the_jvm_along(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    kafka = EmbeddedKafka(data_dir, quiet=True)
    kafka.start()
    (jvm,) = jvms_in(data_dir)
    parent = int(Path(f"/proc/{jvm}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGKILL)
    assert wait_until_gone(data_dir, 10)
    kafka.stop()
    assert not kafka.running


def test_second_broker_on_the_same_directory_is_refused(broker: EmbeddedKafka) -> None:
    with pytest.raises(HarmonyError, match=rf"in use by process {os.getpid()}.*--data-dir"):
        EmbeddedKafka(broker.data_dir, quiet=True).start()
    assert broker.running


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HarmonyError, match=rf"Port {port} on 127.0.0.1 is in use.*--brokers"):
            EmbeddedKafka(tmp_path / "data", port=port, quiet=True).start()


def test_port_taken_between_check_and_bind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("infra.kafka.embedded.is_free", lambda _: True)
        with pytest.raises(HarmonyError, match=rf"Port {port} on 127.0.0.1 is in use"):
            EmbeddedKafka(tmp_path / "data", port=port, quiet=True).start()


def test_remembered_port_that_is_taken_gives_way_to_another(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with EmbeddedKafka(data_dir, quiet=True) as kafka:
        port = int(kafka.bootstrap.split(":")[1])
    with socket.create_server(("127.0.0.1", port)), EmbeddedKafka(data_dir, quiet=True) as kafka:
        assert int(kafka.bootstrap.split(":")[1]) != port


def test_directory_with_strange_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(HarmonyError, match=r"not Kafka data of HARMONY \(such as thesis.txt\).*--data-dir"):
        EmbeddedKafka(tmp_path, quiet=True).start()
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(HarmonyError, match="Cannot keep Kafka's data in"):
        EmbeddedKafka(tmp_path / "data", quiet=True).start()


def test_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.kafka.embedded.MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(HarmonyError, match="nearly full"):
        EmbeddedKafka(tmp_path / "data", quiet=True).start()


def test_ruined_data_are_reported_with_the_remedy(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with EmbeddedKafka(data_dir, quiet=True):
        pass
    (data_dir / "logs/meta.properties").write_text("version=1\nnode.id=7\ncluster.id=other\n")
    with pytest.raises(HarmonyError, match=r"cannot use the data in .*Move that directory away"):
        EmbeddedKafka(data_dir, quiet=True).start()


def test_interrupted_format_is_done_again(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "lock").touch()
    (data_dir / "logs.unfinished").mkdir()
    (data_dir / "logs.unfinished/meta.properties").write_text("half")
    with EmbeddedKafka(data_dir, quiet=True) as kafka:
        assert kafka.running
    assert not (data_dir / "logs.unfinished").exists()


@pytest.mark.parametrize("ours", [True, False], ids=["as started", "in the locale of the user"])
def test_paths_of_any_letters_in_a_locale_without_them(tmp_path: Path, ours: bool) -> None:
    cache = tmp_path / "größe-平"
    cache.mkdir()
    (cache / "harmony").symlink_to(jar_cache().parent, target_is_directory=True)
    script = OWNER if ours else OWNER.replace("kafka = ", f"{_THE_USERS}\nkafka = ", 1)
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(cache / "data")],
        env=os.environ | {"LC_ALL": "POSIX", "XDG_CACHE_HOME": str(cache)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout is not None
    bootstrap = owner.stdout.readline().strip()
    if ours:
        create_topics(bootstrap, [spec("t")])
        produce(bootstrap, "t", b"v")
        assert consume(bootstrap, "t", 1) == [b"v"]
    _, error = owner.communicate(timeout=60)
    if not ours:
        assert "Set LC_ALL=C.UTF-8, or XDG_CACHE_HOME to a plain path" in error
