"""The Helm chart: what helm and kubeconform say of it, and that it fits our commands, settings and rights."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from infra.cli import app as cli
from infra.settings.load import Settings, load_settings
from tests.deploy.chart import CHART, EVERYTHING, OTHERS, SCHEMAS, helm, of_kind, rendered, template, write_schemas
from tests.programs import ROOT, found, needs

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
VALUES_SCHEMA = json.loads((CHART / "values.schema.json").read_text())
ROLES = ("ingest", "forecast", "decide")
BOTH = pytest.mark.parametrize("values", [(), ("all",)], ids=["as it comes", "everything on"])


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = copy.deepcopy(base)
    for key, value in over.items():
        both[key] = merged(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def pods(values: tuple[str, ...]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Labels and spec of every pod."""
    kinds = ("StatefulSet", "Deployment", "Job")
    templates = [d["spec"]["template"] for d in of_kind(rendered(*values), *kinds)]
    return [(t["metadata"]["labels"], t["spec"]) for t in templates]


def test_the_values_are_those_that_the_schema_allows() -> None:
    for values in (VALUES, merged(VALUES, yaml.safe_load(EVERYTHING.read_text()))):
        jsonschema.Draft7Validator(VALUES_SCHEMA).validate(values)


@pytest.mark.parametrize(
    "slip",
    [
        {"setings": {}},
        {"image": {"tag": "latest"}},
        {"image": {"digest": "sha256:12"}},
        {"settings": {"brokers": ""}},
        {"settings": {"web_port": 1}},
        {"workers": {"plan": {"replicas": 1}}},
        {"workers": {"decide": {"replicas": -1}}},
        {"actuators": {"kubernetes": {"namespaces": ["Prod"]}}},
        {"serviceMonitor": {"interval": "often"}},
    ],
    ids=str,
)
def test_the_schema_finds_a_slip(slip: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(VALUES_SCHEMA).validate(merged(VALUES, slip))


def test_every_value_is_used_and_version_and_links_are_the_projects() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    unused = [key for key in VALUES if f".Values.{key}" not in text]
    assert unused == []
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert (CHART / "rules").resolve() == ROOT / "infra/deploy/prometheus/rules"
    assert (CHART / "dashboards").resolve() == ROOT / "infra/deploy/grafana/dashboards"


@needs("helm")
def test_helm_finds_nothing_to_complain_of() -> None:
    for flags in ((), ("--values", str(EVERYTHING))):
        done = helm("lint", "--strict", str(CHART), "--kube-version", "1.36.3", *flags)
        assert done.returncode == 0, done.stdout
        assert "0 chart(s) failed" in done.stdout


@needs("helm")
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"workers": {"all": {"replicas": 1}}}, "workers.all stands for all three roles"),
        ({"actuators": {"kubernetes": {"enabled": True, "act": True}}}, "needs actuators.kubernetes.namespaces"),
        ({"image": {"tag": "latest"}}, "image"),
        # By TLS no probe would get an answer.
        ({"settings": {"advanced": {"worker": {"web_certfile": "/etc/harmony-kafka/p.pem"}}}}, "ask by HTTP"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_a_sentence(values: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = template("--values", str(file))
    assert done.returncode != 0
    assert sentence in done.stderr


@needs("helm")
@BOTH
def test_every_object_is_one_that_the_api_server_knows(values: tuple[str, ...]) -> None:
    for document in rendered(*values):
        if document["kind"] not in OTHERS:
            schema = SCHEMAS["kinds"][f"{document['apiVersion']} {document['kind']}"]
            jsonschema.Draft202012Validator({**schema, "$defs": SCHEMAS["$defs"]}).validate(document)


@needs("helm", "kubeconform")
def test_kubeconform_says_the_same_and_would_find_a_slip(tmp_path: Path) -> None:
    location = write_schemas(tmp_path)

    def judged(text: str) -> subprocess.CompletedProcess[str]:
        command = [found("kubeconform") or "", "-strict", "-summary", "-schema-location", location]
        command += ["-skip", ",".join(OTHERS), "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    text = template("--values", str(EVERYTHING)).stdout
    good = judged(text)
    assert good.returncode == 0, good.stdout
    assert "Invalid: 0, Errors: 0" in good.stdout
    slip = judged(text.replace("podManagementPolicy:", "podManagmentPolicy:"))
    assert slip.returncode != 0
    assert "podManagmentPolicy" in slip.stdout


@needs("helm")
@BOTH
def test_no_pod_has_more_rights_than_it_needs(values: tuple[str, ...]) -> None:
    for labels, spec in pods(values):
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not container["image"].endswith(":latest")
        assert "limits" in container["resources"]
        account = spec.get("serviceAccountName")
        assert account == ("blue-harmony-kubernetes" if labels["app.kubernetes.io/component"] == "kubernetes" else None)
        assert account or spec["automountServiceAccountToken"] is False


@needs("helm")
@BOTH
def test_pods_run_commands_that_exist_with_paths_that_are_mounted(values: tuple[str, ...]) -> None:
    root: Any = typer.main.get_command(cli.app)
    for labels, spec in pods(values):
        (container,) = spec["containers"]
        command, arguments = root, list(container["args"])
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        parsed = command.make_context(command.name, arguments, resilient_parsing=False).params
        mounts = {m["mountPath"] for m in container["volumeMounts"]}
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
        for value in (*parsed.values(), *(e["value"] for e in container["env"] if e.get("value", "").startswith("/"))):
            if isinstance(value, Path) or (isinstance(value, str) and value.startswith("/")):
                assert any(Path(value).is_relative_to(mount) for mount in mounts), value
        ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
        if ports:
            assert ports["web"] == parsed["web_port"]
            assert ports.get("grpc") == (parsed["grpc_port"] if parsed.get("grpc") else None)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] == "web"
                    assert container[probe]["httpGet"]["path"] == ("/readyz" if probe[0] == "r" else "/livez")
        if labels["app.kubernetes.io/component"] in ROLES:
            assert parsed["role"] == labels["app.kubernetes.io/component"]
            assert parsed["instance_id"] == "$(POD_NAME)"


@needs("helm")
@BOTH
def test_the_settings_are_ours(values: tuple[str, ...], tmp_path: Path) -> None:
    (settings,) = (
        d for d in of_kind(rendered(*values), "ConfigMap") if d["metadata"]["name"] == "blue-harmony-settings"
    )
    file = tmp_path / "harmony.yaml"
    file.write_text(settings["data"]["harmony.yaml"])
    (worker, *_) = (spec for labels, spec in pods(values) if labels["app.kubernetes.io/component"] == "decide")
    told = {e["name"]: e.get("value", "secret") for e in worker["containers"][0]["env"]}
    own = {name: value for name, value in told.items() if name.startswith("HARMONY_") and name != "HARMONY_CONFIG"}
    loaded = load_settings(file, None, own)
    assert str(loaded.state_dir) == "/var/lib/harmony"
    assert loaded.web_host == "0.0.0.0"
    token = loaded.worker.metrics_token
    assert token is not None
    assert token.get_secret_value() == "secret"


@needs("helm")
@BOTH
def test_selectors_find_the_pods_that_they_mean(values: tuple[str, ...]) -> None:
    objects = rendered(*values)
    labels = [found_labels for found_labels, _ in pods(values)]

    def chosen(selector: dict[str, str]) -> set[str]:
        return {x["app.kubernetes.io/component"] for x in labels if selector.items() <= x.items()}

    services = {d["metadata"]["name"]: chosen(d["spec"]["selector"]) for d in of_kind(objects, "Service")}
    assert services["blue-harmony-workers"] == services["blue-harmony-page"] == set(ROLES)
    for kind in {"kubernetes", "keda"} & {x["app.kubernetes.io/component"] for x in labels}:
        assert services[f"blue-harmony-{kind}"] == {kind}
    for owner in of_kind(objects, "StatefulSet", "Deployment"):
        selector = owner["spec"]["selector"]["matchLabels"]
        assert chosen(selector) == {owner["metadata"]["labels"]["app.kubernetes.io/component"]}
        # Selectors cannot be changed later: nothing in them may follow a version.
        assert set(selector) == {f"app.kubernetes.io/{k}" for k in ("name", "instance", "component")}
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert sorted(map(str, (chosen(d["spec"]["selector"]["matchLabels"]) for d in budgets))) == sorted(
        str({role}) for role in ROLES
    )


@needs("helm")
def test_monitoring_is_the_projects_own() -> None:
    objects = rendered("all")
    (monitor,) = of_kind(objects, "ServiceMonitor")
    selector = monitor["spec"]["selector"]
    scraped = [
        d["metadata"]["name"]
        for d in of_kind(objects, "Service")
        if selector["matchLabels"].items() <= d["metadata"]["labels"].items()
        and all(e["key"] in d["metadata"]["labels"] for e in selector["matchExpressions"])
    ]
    assert sorted(scraped) == ["blue-harmony-keda", "blue-harmony-kubernetes", "blue-harmony-workers"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["relabelings"] == [
        {"targetLabel": "job", "replacement": "harmony"},
        {"targetLabel": "fleet", "replacement": "blue"},
    ]
    assert 'up{job="harmony"}' in (ROOT / "infra/deploy/prometheus/rules/alerts.yml").read_text()
    assert endpoint["authorization"]["credentials"] == {"name": "harmony-token", "key": "token"}
    groups = [d["spec"]["groups"] for d in of_kind(objects, "PrometheusRule")]
    files = sorted((ROOT / "infra/deploy/prometheus/rules").glob("*.yml"))
    assert groups == [yaml.safe_load(file.read_text())["groups"] for file in files]
    shown = {
        name: json.loads(text)
        for d in of_kind(objects, "ConfigMap")
        if d["metadata"]["labels"].get("grafana_dashboard")
        for name, text in d["data"].items()
    }
    boards = sorted((ROOT / "infra/deploy/grafana/dashboards").glob("*.json"))
    assert shown == {file.name: json.loads(file.read_text()) for file in boards}


@needs("helm")
def test_the_actuators_rights_are_those_of_the_manifest() -> None:
    manifest = list(yaml.safe_load_all((ROOT / "infra/deploy/kubernetes/rbac.yaml").read_text()))
    (rules,) = (d["rules"] for d in manifest if d["kind"] == "Role" and d["metadata"]["name"] == "harmony-actuator")
    roles = of_kind(rendered("all"), "Role")
    assert [d["metadata"]["namespace"] for d in roles] == ["prod", "staging"]
    assert all(d["rules"] == rules for d in roles)
    assert of_kind(rendered(), "Role") == []
    for binding in of_kind(rendered("all"), "RoleBinding"):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "blue-harmony-kubernetes", "namespace": "scaling"}
        ]


@needs("helm")
@BOTH
def test_pods_of_the_release_mount_nothing_that_a_hook_has_made(values: tuple[str, ...]) -> None:
    """Helm rolls no hook back, takes none over that is no hook any more, and deletes what has become one."""
    objects = rendered(*values)
    hooks = {d["metadata"]["name"] for d in objects if "helm.sh/hook" in d["metadata"].get("annotations", {})}
    made = {d["metadata"]["name"] for d in of_kind(objects, "ConfigMap", "Secret")}
    for labels, spec in pods(values):
        mounted = {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
        assert mounted <= made
        assert mounted
        if labels["app.kubernetes.io/component"] == "topics":
            assert mounted <= hooks  # it runs before anything of the release is there
        else:
            assert not mounted & hooks


@needs("helm")
def test_a_change_of_settings_restarts_the_workers_and_nothing_else_does() -> None:
    def sums(*flags: str) -> set[str]:
        objects = of_kind(rendered(*flags), "StatefulSet")
        return {d["spec"]["template"]["metadata"]["annotations"]["checksum/settings"] for d in objects}

    assert sums() != sums("--set", "settings.epsilon=0.02")
    assert sums() == sums("--set", "serviceMonitor.enabled=true")
    assert len(sums()) == 1


def test_settings_of_the_chart_are_keys_of_ours() -> None:
    refused = {key for key, schema in VALUES_SCHEMA["properties"]["settings"]["properties"].items() if schema is False}
    assert refused <= set(Settings.model_fields)
    assert re.fullmatch(r"[\w.:-]+", VALUES["settings"]["brokers"])
