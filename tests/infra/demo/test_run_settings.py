"""`harmony run` obeys its settings: what of flag, environment and file reaches the workers that it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from rich.console import Console

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.demo import session as run_session
from infra.demo.options import RunOptions
from infra.demo.session import accelerated_session, live_session
from infra.demo.workloads import DEMO_STREAM
from infra.kafka.discovery import read_run_state
from infra.settings.load import load_settings

OWN_KAFKA = "127.0.0.1:29092"


class Started:
    """What a run started, in place of processes."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.environment: Mapping[str, str] | None = None
        self.security: dict[str, Any] = {}
        self.embedded = 0

    def option(self, name: str, worker: int = 0) -> str:
        command = self.commands[worker]
        return command[command.index(name) + 1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    seen = Started()

    class Kafka:
        bootstrap = OWN_KAFKA

        def __init__(self, *_: object, **__: object) -> None: ...

        def start(self) -> None:
            seen.embedded += 1

        def stop(self) -> None: ...

    class Admin:
        def __init__(self, _brokers: str, security: dict[str, Any]) -> None:
            seen.security = security

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def create_missing(self, _specs: object) -> None: ...

    class Workers:
        def __init__(self, commands: Mapping[str, Sequence[str]], *_: object, **how: Any) -> None:
            seen.commands, seen.environment = [list(c) for c in commands.values()], how["environment"]

        def start(self) -> None: ...

        def stop(self) -> None: ...

    for name, double in (("EmbeddedKafka", Kafka), ("TopicAdmin", Admin), ("Supervisor", Workers)):
        monkeypatch.setattr(run_session, name, double)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HARMONY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HARMONY_STATE_DIR", str(tmp_path / "state"))
    return seen


def run(*, live: bool, brokers: str | None = None, web_port: int | None = None, workers: int = 1) -> tuple[str, ...]:
    """Start and end a run; returns the addresses of the workers' pages."""
    settings = load_settings(None, {"brokers": brokers, "web_port": web_port})
    options = RunOptions(settings=settings, brokers=brokers, workers=workers, fleet=not live)
    console = Console(quiet=True)
    session = live_session(options, console) if live else accelerated_session(options, Policy(), DEMO_STREAM, console)
    with session as running:
        state = read_run_state(settings.state_dir)
        assert state is not None
        assert state.web == running.urls[0]
        assert Path(state.config).is_absolute()
        return running.urls


def by_file(text: str) -> Callable[[pytest.MonkeyPatch], None]:
    def say(_: pytest.MonkeyPatch) -> None:
        Path("harmony.yaml").write_text(text)

    return say


def by_variable(name: str, value: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setenv(name, value)


@pytest.mark.parametrize("live", [True, False], ids=["telemetry of one's own", "a simulated fleet"])
@pytest.mark.parametrize(
    "say", [by_file("web_port: 12345\n"), by_variable("HARMONY_WEB_PORT", "12345")], ids=["file", "environment"]
)
def test_the_first_page_is_where_file_or_environment_say(
    started: Started, monkeypatch: pytest.MonkeyPatch, say: Callable[[pytest.MonkeyPatch], None], live: bool
) -> None:
    say(monkeypatch)
    assert run(live=live, workers=3)[0] == "http://127.0.0.1:12345"
    ports = [started.option("--web-port", n) for n in range(3)]
    assert ports[0] == "12345"
    assert len(set(ports)) == 3
    assert run(live=live, web_port=12_346) == ("http://127.0.0.1:12346",), "a flag comes first"


@pytest.mark.parametrize("live", [True, False])
def test_without_a_port_or_with_0_it_is_any_free_one(started: Started, live: bool) -> None:
    for web_port in (None, 0):
        (url,) = run(live=live, web_port=web_port)
        port = int(started.option("--web-port"))
        assert url == f"http://127.0.0.1:{port}"
        assert port not in (0, 9464)


def test_workers_for_own_telemetry_read_the_users_own_file(started: Started, tmp_path: Path) -> None:
    text = "web_host: 0.0.0.0\nadvanced: {worker: {metrics_token: secret, web_certfile: page.pem}}\n"
    Path("harmony.yaml").write_text(text)
    (url,) = run(live=True)
    assert started.option("--config") == str(tmp_path / "harmony.yaml")
    assert started.environment is None, "and the environment as it is"
    assert url == f"https://127.0.0.1:{started.option('--web-port')}"


def test_own_telemetry_goes_through_the_kafka_of_the_settings(started: Started, tmp_path: Path) -> None:
    Path("harmony.yaml").write_text("brokers: k:9\nadvanced: {kafka: {security_protocol: SSL}}\n")
    run(live=True)
    assert (started.option("--brokers"), started.embedded) == ("k:9", 0)
    assert started.security["security_protocol"] == "SSL"
    run(live=True, brokers="other:1")
    assert started.option("--brokers") == "other:1"


def test_a_simulated_fleet_has_a_kafka_of_its_own_unless_a_flag_names_one(started: Started) -> None:
    Path("harmony.yaml").write_text("brokers: k:9\nadvanced: {kafka: {security_protocol: SSL}}\n")
    run(live=False)
    assert (started.option("--brokers"), started.embedded, started.security) == (OWN_KAFKA, 1, {})
    assert load_settings(Path(started.option("--config"))).advanced.kafka.security_protocol == "PLAINTEXT"
    run(live=False, brokers="k:9")
    assert (started.option("--brokers"), started.embedded) == ("k:9", 1)
    assert load_settings(Path(started.option("--config"))).advanced.kafka.security_protocol == "SSL"


def test_a_login_without_brokers_is_one_sentence(started: Started) -> None:
    Path("harmony.yaml").write_text("advanced: {kafka: {security_protocol: SSL}}\n")
    with pytest.raises(HarmonyError, match=r"advanced\.kafka says SSL, but no brokers are named") as told:
        run(live=True)
    assert told.value.exit_code == 2


def test_a_simulated_fleet_keeps_its_own_steps_and_takes_the_process_as_set(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("harmony.yaml").write_text(
        "step_s: 15\nweb_host: 0.0.0.0\n"
        "advanced: {worker: {metrics_token: secret, device: cpu}, model: {weights: shipped}}\n"
    )
    monkeypatch.setenv("HARMONY_STEP_S", "30")
    monkeypatch.setenv("HARMONY_ADVANCED__WORKER__LOG_LEVEL", "debug")
    monkeypatch.setenv("HARMONY_ADVANCED__PLUGINS__OPTIONS", '{"policy": {"a": [1]}}')
    run(live=False)
    config = Path(started.option("--config"))
    assert started.environment is not None
    workers = load_settings(config, environ=started.environment)
    assert workers.stream == DEMO_STREAM
    assert (workers.model_fields_set & {"web_host"}, workers.worker.metrics_token) == (set(), None)
    assert (workers.worker.device, workers.worker.log_level) == ("cpu", "debug")
    assert (workers.advanced.model.weights, workers.advanced.plugins.options) == ("shipped", {"policy": {"a": [1]}})
    assert str(workers.state_dir) == os.environ["HARMONY_STATE_DIR"]
    assert "PATH" in started.environment


def test_the_file_for_the_workers_is_for_this_user_only(started: Started) -> None:
    Path("harmony.yaml").write_text(
        "advanced: {kafka: {security_protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_username: u, sasl_password: p}}\n"
    )
    run(live=False, brokers="k:9")
    config = Path(started.option("--config"))
    assert config.stat().st_mode & 0o077 == 0
    assert yaml.safe_load(config.read_text())["advanced"]["kafka"]["sasl_password"] == "p"
