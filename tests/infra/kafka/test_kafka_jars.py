"""The jar cache: only checked bytes get in, and every fault says what to do."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path, PurePosixPath

import pytest

from infra.console.errors import HarmonyError
from infra.kafka import jars as kafka_jars
from infra.kafka.jars import COORDINATES, PINS_FILE, PinnedJar, ensure_jars, read_pins

BODIES = {f"org/example/part-{n}/1.0/part-{n}-1.0.jar": b"jar %d" % n for n in range(5)}
PINS = tuple(PinnedJar(PurePosixPath(path), hashlib.sha256(body).hexdigest()) for path, body in BODIES.items())


class Repository:
    """Stands in for the network: serves the bodies, counts, and can spoil or refuse the first answers."""

    def __init__(self, *first: bytes | Exception) -> None:
        self.first = list(first)
        self.served: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, pin: PinnedJar, staging: Path) -> None:
        with self._lock:
            self.served.append(pin.path.as_posix())
            answer = self.first.pop(0) if self.first else BODIES[pin.path.as_posix()]
        if isinstance(answer, Exception):
            raise answer
        (staging / pin.path).write_bytes(answer)


@pytest.fixture(autouse=True)
def five_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_jars, "read_pins", lambda: PINS)


def test_committed_pins_are_complete_sorted_and_name_no_host() -> None:
    text = PINS_FILE.read_text(encoding="ascii")
    lines = text.splitlines()
    assert text.endswith("\n")
    assert lines == sorted(lines, key=lambda line: line.split("  ")[1])
    for line in lines:
        assert re.fullmatch(r"[0-9a-f]{64}  [A-Za-z0-9._/-]+\.jar", line), line
    pins = read_pins(text)
    assert len({pin.path for pin in pins}) == len(lines) == 46
    for pin in pins:
        _, artifact, version = pin.coordinate
        assert pin.path.name == f"{artifact}-{version}.jar"
    pinned = {":".join(pin.coordinate) for pin in pins}
    assert set(COORDINATES) <= pinned


def test_first_call_fetches_all_and_the_second_nothing(tmp_path: Path) -> None:
    repository = Repository()
    paths = ensure_jars(cache=tmp_path / "kafka", quiet=True, fetch=repository)
    assert [path.read_bytes() for path in paths] == list(BODIES.values())
    assert sorted(repository.served) == sorted(BODIES)
    assert ensure_jars(cache=tmp_path / "kafka", quiet=True, fetch=repository) == paths
    assert ensure_jars(cache=tmp_path / "kafka", quiet=True, offline=True) == paths
    assert len(repository.served) == len(BODIES)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"jar")])
def test_only_the_damaged_jar_is_fetched_again(
    tmp_path: Path, damage: object, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "kafka"
    victim = ensure_jars(cache=cache, quiet=True, fetch=Repository())[2]
    damage(victim)  # type: ignore[operator]
    with pytest.raises(
        HarmonyError, match=rf"1 of Kafka's 5 jars .* \(first: {victim.name}\).*without --offline"
    ) as stop:
        ensure_jars(cache=cache, offline=True)
    assert stop.value.exit_code == 1
    repository = Repository()
    ensure_jars(cache=cache, fetch=repository)
    assert repository.served == [victim.relative_to(cache).as_posix()]
    assert victim.read_bytes() == BODIES[repository.served[0]]
    assert "Fetching Apache Kafka" in capsys.readouterr().err


def test_wrong_bytes_are_asked_for_again_and_never_reach_the_cache(tmp_path: Path) -> None:
    repository = Repository(b"<html>login</html>", RuntimeError("not found"))
    ensure_jars(cache=tmp_path / "kafka", quiet=True, fetch=repository)
    assert len(repository.served) == len(BODIES) + 2
    stubborn = Repository(*[b"evil"] * 100)
    with pytest.raises(HarmonyError, match=r"Could not fetch org\.example:part-\d:1\.0 .*do not match.*--brokers"):
        ensure_jars(cache=tmp_path / "other", quiet=True, fetch=stubborn)
    assert not list((tmp_path / "other").rglob("*.jar"))


def test_no_network_is_one_sentence_and_what_came_is_kept(tmp_path: Path) -> None:
    class Falling(Repository):
        def __call__(self, pin: PinnedJar, staging: Path) -> None:
            if pin != PINS[0]:
                raise ConnectionError("HTTPSConnectionPool: Max retries exceeded: Name or service not known")
            super().__call__(pin, staging)

    with pytest.raises(HarmonyError, match=r"Name or service not known. Check the network") as stop:
        ensure_jars(cache=tmp_path / "kafka", quiet=True, fetch=Falling())
    assert "\n" not in stop.value.message
    repository = Repository()
    ensure_jars(cache=tmp_path / "kafka", quiet=True, fetch=repository)
    assert sorted(repository.served) == sorted(pin.path.as_posix() for pin in PINS[1:])


def test_two_starters_fetch_each_jar_once(tmp_path: Path) -> None:
    repository, failures = Repository(), []

    def start() -> None:
        try:
            ensure_jars(cache=tmp_path / "kafka", quiet=True, fetch=repository)
        except HarmonyError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(repository.served) == sorted(BODIES)


def test_unwritable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HarmonyError, match=r"Cannot keep Kafka's jars in .*file/kafka.*XDG_CACHE_HOME"):
        ensure_jars(cache=tmp_path / "file" / "kafka", quiet=True, fetch=Repository())
