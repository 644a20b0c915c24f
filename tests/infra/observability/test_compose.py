"""docker-compose.yml, Dockerfile and what they mount, as far as they can be checked without a container engine.

`compose-spec.json` is the schema of compose-go 2.4.7 (Apache-2.0, https://github.com/compose-spec/compose-go).
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from infra.demo.standalone import demo_settings
from infra.demo.workloads import DEMO_STREAM, demo_fleet, demo_policy
from infra.settings.load import load_settings
from tests.infra.observability.places import DASHBOARD_FILES, DEPLOY
from tests.programs import ROOT, needs

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
ENV_EXAMPLE = dict(
    line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if "=" in line and line[0] != "#"
)
WORKERS = ("ingest", "forecast", "decide")


def test_it_follows_the_compose_specification() -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)
    broken = {**COMPOSE, "services": {**SERVICES, "kafka": {**SERVICES["kafka"], "port": []}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_watched_and_not_open_to_the_network(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "a tag that does not move"
    health = service["healthcheck"]
    one_shot = name in ("topics", "fleet")
    assert health == {"disable": True} if one_shot else {"test", "interval", "timeout", "retries"} <= health.keys()
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "internal" in service["networks"]


def test_whoever_is_waited_for_can_become_what_is_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            watched = "test" in SERVICES[other]["healthcheck"]
            wanted = "service_healthy" if watched else "service_completed_successfully"
            assert how["condition"] == wanted, (name, other)
            # A service without the profile of the one it waits for would not start.
            assert set(SERVICES[other].get("profiles", [])) <= set(service.get("profiles", [])), (name, other)


def test_the_profile_gpu_adds_a_forecast_worker_with_a_device_and_prometheus_finds_it() -> None:
    plain, gpu = SERVICES["forecast"], SERVICES["forecast-gpu"]
    assert gpu["command"] == plain["command"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert {k: v for k, v in gpu.items() if k not in ("profiles", "deploy")} == plain
    (scrape, *_) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    # A name that is not there has no address, and is no target that is down.
    (found,) = scrape["dns_sd_configs"]
    assert "forecast-gpu" in found["names"]


def test_machine_code_has_a_place_that_a_read_only_container_can_write_to() -> None:
    """Else what the image brings along is not read, and each start compiles for longer than health checks wait."""
    final = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    place = dict(pair.split("=", 1) for line in re.findall(r"^ENV (.+)$", final, re.MULTILINE) for pair in line.split())
    for name in (*WORKERS, "forecast-gpu", "fleet"):
        service = SERVICES[name]
        assert service["read_only"]
        kept = service["environment"].get("NUMBA_CACHE_DIR", place.get("NUMBA_CACHE_DIR", "nowhere"))
        written = [mount.split(":")[0] for mount in service["tmpfs"]]
        assert any(Path(kept).is_relative_to(mount) for mount in written), name
    assert "NUMBA_CACHE_DIR" not in DOCKERFILE.rsplit("\nFROM ", 1)[0]  # there it is kept beside the sources


def test_variables_are_explained_in_the_example() -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text())) | {"COMPOSE_PROFILES"}
    used |= {secret["environment"] for secret in COMPOSE["secrets"].values()}
    assert used == ENV_EXAMPLE.keys()
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    assert profiles == {"demo", "observability", "gpu"}
    assert set(ENV_EXAMPLE["COMPOSE_PROFILES"].split(",")) == profiles - {"gpu"}


def test_what_is_mounted_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", volume).split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).exists(), source


def test_workers_cover_all_roles_with_commands_that_the_command_line_knows() -> None:
    from typer.main import get_command

    from infra.cli.app import app

    worker = get_command(app).commands["worker"]  # type: ignore[attr-defined]
    known = {name for parameter in worker.params for name in (*parameter.opts, *parameter.secondary_opts)}
    roles = []
    for name in WORKERS:
        command = shlex.split(re.sub(r"\$\{(\w+)-\}", lambda m: ENV_EXAMPLE[m[1]], SERVICES[name]["command"]))
        assert command[0] == "worker"
        assert {word for word in command if word.startswith("--")} <= known
        roles.append(command[command.index("--role") + 1])
    assert roles == ["ingest", "forecast", "decide"]


def test_the_demo_settings_are_those_of_the_fleet() -> None:
    text = (ROOT / "config/demo.yaml").read_text()
    assert yaml.safe_load(text) == json.loads(json.dumps(demo_settings())), "write config/demo.yaml anew"
    environment = {k: str(v) for k, v in SERVICES["decide"]["environment"].items() if k != "HARMONY_CONFIG"}
    environment["HARMONY_ADVANCED__WORKER__METRICS_TOKEN"] = "secret"
    settings = load_settings(ROOT / "config/demo.yaml", environ=environment)
    assert settings.policy == demo_policy(demo_fleet())
    assert settings.stream == DEMO_STREAM
    assert (settings.brokers, settings.web_host, settings.web_port) == ("kafka:19092", "0.0.0.0", 9464)
    token = settings.worker.metrics_token
    assert token is not None
    assert token.get_secret_value() == "secret"


def test_the_image_runs_compiled_code_as_nobody_in_particular() -> None:
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2
    assert re.search(r"^ARG PYTHON_IMAGE=python:\d+\.\d+\.\d+-\w", DOCKERFILE, re.MULTILINE)
    last = DOCKERFILE.split("FROM ")[-1]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last, re.MULTILINE)
    assert "UV_COMPILE_BYTECODE=1" in DOCKERFILE
    assert "uv sync --frozen" in DOCKERFILE
    shipped = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [c for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE) for c in line.split()[:-1]]
    assert set(copied) == shipped
    assert all((ROOT / path).exists() for path in copied)


@needs("promtool")
def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus/prometheus.yml").read_text()
    (tmp_path / "token").write_text("secret")
    text = text.replace("/run/secrets/metrics_token", str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(text.replace("rules/", f"{DEPLOY / 'prometheus/rules'}/"))
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_worker_of_a_role_that_may_have_several_is_a_target_of_its_own() -> None:
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    (static,), (found,) = scrape["static_configs"], scrape["dns_sd_configs"]
    # One that publishes a port cannot be scaled.
    single = {name for name in WORKERS if "ports" in SERVICES[name]}
    assert static["targets"] == [f"{name}:9464" for name in sorted(single)]
    assert {*found["names"]} == {*WORKERS, "forecast-gpu"} - single
    assert (found["type"], found["port"]) == ("A", 9464)


def test_grafana_finds_the_dashboards_and_their_data() -> None:
    provider = yaml.safe_load((DEPLOY / "grafana/providers/harmony.yml").read_text())["providers"][0]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounts["./infra/deploy/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./infra/deploy/grafana/providers"] == "/etc/grafana/provisioning/dashboards"
    assert mounts["./infra/deploy/grafana/datasources"] == "/etc/grafana/provisioning/datasources"
    source = yaml.safe_load((DEPLOY / "grafana/datasources/prometheus.yml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DASHBOARD_FILES / Path(home).name).exists()
