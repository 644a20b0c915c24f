"""The Kubernetes manifests against the schemas of Kubernetes and KEDA, our own command line, and each other.

`kubernetes-schemas.json` holds field names and types of Kubernetes 1.36.3 and KEDA 2.21.0 (both Apache-2.0), reduced to
the kinds used here, with unknown fields as errors.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from infra.actuate import cli
from infra.actuate.kubernetes_api import KubernetesApi
from infra.actuate.pull import SERIES
from infra.collect import cli as collect_cli
from tests.programs import ROOT, needs

HERE = Path(__file__).parent
FILES = ROOT / "infra/deploy/kubernetes"
SCHEMAS = json.loads((HERE / "kubernetes-schemas.json").read_text())
ALL = [
    (path.name, document)
    for path in sorted(FILES.glob("*.yaml"))
    if path.name != "prometheus-adapter.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
SCALED = [d for _, d in ALL if d["kind"] == "ScaledObject"]
DEPLOYMENTS = [d for _, d in ALL if d["kind"] == "Deployment"]
COLLECTOR = next(d for d in DEPLOYMENTS if d["metadata"]["name"] == "harmony-collector")
PODS = [d for d in DEPLOYMENTS if d is not COLLECTOR]
(HPA,) = (d for _, d in ALL if d["kind"] == "HorizontalPodAutoscaler")
ADAPTER = yaml.safe_load((FILES / "prometheus-adapter.yaml").read_text())


def validate(document: dict[str, Any]) -> None:
    schema = {**SCHEMAS["kinds"][f"{document['apiVersion']} {document['kind']}"], "$defs": SCHEMAS["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize(("name", "document"), ALL, ids=[f"{n}-{d['kind']}-{d['metadata']['name']}" for n, d in ALL])
def test_every_document_is_one_that_the_api_server_knows(name: str, document: dict[str, Any]) -> None:
    validate(document)


def test_the_schemas_would_find_a_slip() -> None:
    for document, where, slip in (
        (HPA, ("spec", "behavior", "scaleUp"), {"tolerence": "0"}),
        (SCALED[0], ("spec",), {"minReplicas": 2}),
        (SCALED[0], ("spec", "fallback"), {"behavior": "keep"}),
        (PODS[0], ("spec", "template", "spec"), {"securitycontext": {}}),
        (HPA, ("spec",), {"maxReplicas": "40"}),
    ):
        broken = json.loads(json.dumps(document))
        at = broken
        for key in where:
            at = at[key]
        at |= slip
        with pytest.raises(jsonschema.ValidationError):
            validate(broken)


def behaviors() -> list[dict[str, Any]]:
    return [HPA["spec"]["behavior"]] + [
        d["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] for d in SCALED
    ]


def hpa_follows(replicas: int, wanted: int, up: float, down: float) -> int:
    """The HPA's arithmetic for an external metric with a target of one per pod (replica_calculator.go)."""
    ratio = wanted * 1000 / (1000 * replicas)
    return replicas if 1.0 - down <= ratio <= 1.0 + up else math.ceil(wanted * 1000 / 1000)


@pytest.mark.parametrize("behavior", behaviors())
def test_tolerance_and_window_let_single_steps_through(behavior: dict[str, Any]) -> None:
    up, down = (float(behavior[way]["tolerance"]) for way in ("scaleUp", "scaleDown"))
    assert all(behavior[way]["stabilizationWindowSeconds"] == 0 for way in ("scaleUp", "scaleDown"))
    for replicas in (1, 2, 19, 20, 400):
        for wanted in (replicas - 1, replicas, replicas + 1):
            if wanted > 0:
                assert hpa_follows(replicas, wanted, up, down) == wanted
    assert hpa_follows(20, 21, 0.1, 0.1) == hpa_follows(20, 19, 0.1, 0.1) == 20, "what the default would do"


@pytest.mark.parametrize("document", SCALED)
def test_no_trigger_and_no_fallback_takes_replicas_away_on_silence(document: dict[str, Any]) -> None:
    spec = document["spec"]
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert 0 < spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    harmony = next(t for t in spec["triggers"] if t["name"] == "harmony")
    assert harmony["metricType"] == "AverageValue"
    for trigger in spec["triggers"]:
        if trigger["type"] == "prometheus":
            assert trigger["metadata"]["ignoreNullValues"] == "false"
        if "authenticationRef" in trigger:
            known = [d["metadata"] for _, d in ALL if d["kind"] == "TriggerAuthentication"]
            assert {"name": trigger["authenticationRef"]["name"], "namespace": "prod"} in known
    one = harmony["metadata"].get("threshold") or harmony["metadata"].get("targetValue")
    assert one in ("1", None), "a target of one hands the count through; the external scaler says so itself"


@pytest.mark.parametrize("document", PODS, ids=[d["metadata"]["name"] for d in PODS])
def test_pods_run_commands_that_exist_and_reach_what_they_name(document: dict[str, Any]) -> None:
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    first, name, *arguments = container["args"]
    command = typer.main.get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    parsed = command.make_context(name, arguments).params
    assert first == "actuate"
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts.keys() == {v["name"] for v in pod["volumes"]}
    for value in parsed.values():
        if isinstance(value, Path):
            assert any(str(value).startswith(path) for path in mounts.values()), value
    claims = {d["metadata"]["name"] for _, d in ALL if d["kind"] == "PersistentVolumeClaim"}
    assert {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v} <= claims
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports["web"] == parsed["web_port"]
    assert ports.get("grpc", 9466) == parsed.get("grpc_port", 9466)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["enableServiceLinks"] is False
    assert document["spec"]["strategy"] == {"type": "Recreate"}, "two would want the same volume"


def test_the_collector_runs_a_command_that_exists_and_reads_the_settings_of_the_chart() -> None:
    pod = COLLECTOR["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    first, name, *arguments = container["args"]
    assert first == "collect"
    parsed = typer.main.get_command(collect_cli.app).commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]
    assert str(parsed["config"]).startswith(container["volumeMounts"][0]["mountPath"])
    assert pod["volumes"][0]["configMap"]["name"] == "harmony-settings"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsNonRoot"]


def test_services_and_roles_name_what_is_there() -> None:
    (service,) = (d for _, d in ALL if d["kind"] == "Service")
    labels = [d["spec"]["template"]["metadata"]["labels"] for d in PODS]
    assert sum(service["spec"]["selector"].items() <= x.items() for x in labels) == 1
    addresses = json.dumps(SCALED)
    for port in service["spec"]["ports"]:
        assert f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}" in addresses
    roles = {d["metadata"]["name"] for _, d in ALL if d["kind"] == "Role"}
    for _, d in ALL:
        if d["kind"] == "RoleBinding":
            assert d["roleRef"]["name"] in roles
            assert d["subjects"] == [{"kind": "ServiceAccount", "name": "harmony-actuator", "namespace": "harmony"}]


async def test_the_role_allows_exactly_the_calls_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from agents.records import Target
    from infra.actuate.kubernetes_api import Access

    calls: set[tuple[str, str, str]] = set()

    async def record(_self: object, method: str, path: str, body: object = None) -> dict[str, Any]:
        if path == "/apis/resource.k8s.io":  # every account may ask which versions there are
            return {"preferredVersion": {"groupVersion": "resource.k8s.io/v1"}}
        at = re.fullmatch(r"/api(?:s/([^/]+))?/v[12]/namespaces/prod/([a-z]+)(/[^/?]+)?(/scale)?(\?.*)?", path)
        assert at is not None, path
        verb = "patch" if method == "PATCH" else "get" if at[3] else "list"
        calls.add((at[1] or "", at[2] + (at[4] or ""), verb))
        if "resourceclaimtemplates" in path:
            return {"spec": {"spec": {"devices": {"requests": []}}}}
        template = {"spec": {"containers": [], "resourceClaims": [{"resourceClaimTemplateName": "gpus"}]}}
        return {"spec": {"replicas": 1, "template": template}, "metadata": {"resourceVersion": "1"}, "items": []}

    monkeypatch.setattr(KubernetesApi, "_call", record)
    api = KubernetesApi(Access("http://127.0.0.1"))
    for version, kind in (
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ):
        target = Target(version, kind, "prod", "x")
        await api.scale(target)
        await api.set_scale(target, 2, "1")
        await api.status(target)
        await api.gpus(target)
    await api.scalers("prod")
    await api.pods("prod", "a=b")
    await api.annotate_pod("prod", "p", {})
    allowed = {
        (group, resource, verb)
        for _, d in ALL
        if d["kind"] == "Role"
        for rule in d["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert calls == allowed


def queries() -> dict[str, str]:
    trigger = next(
        t["metadata"]["query"]
        for d in SCALED
        for t in d["spec"]["triggers"]
        if t["type"] == "prometheus" and t["name"] == "harmony"
    )
    (rule,) = ADAPTER["rules"]["external"]
    adapter = (
        rule["metricsQuery"]
        .replace("<<.Series>>", rule["seriesQuery"])
        .replace("<<.LabelMatchers>>", 'namespace="prod",name="chat-70b"')
        # Of an external metric prometheus-adapter groups by nothing.
        .replace("<<.GroupBy>>", "")
    )
    return {"keda": trigger, "adapter": adapter}


def test_recipes_name_series_that_exist() -> None:
    known = {name for name, *_ in SERIES}
    for query in queries().values():
        assert set(re.findall(r"harmony_\w+", query)) <= known


@needs("promtool")
@pytest.mark.parametrize("name", ["keda", "adapter"])
def test_the_promql_recipes_give_the_count_of_a_lease_in_force_and_nothing_else(name: str, tmp_path: Path) -> None:
    """Minute 0 to 2: two actuators, one behind; minute 3: leases of both have run out, though samples go on."""
    labels = 'workload="prod/llm/chat-70b",namespace="prod",kind="Deployment",name="chat-70b"'
    lease = 'workload="prod/llm/chat-70b"'
    rules = {"groups": [{"name": "g", "rules": [{"record": "got", "expr": queries()[name]}]}]}
    series = [
        {"series": f'harmony_wanted_replicas{{{labels},instance="a"}}', "values": "5 6 7 7 _"},
        {"series": f'harmony_wanted_replicas{{{labels},instance="b"}}', "values": "5 5 5 5 _"},
        {"series": f'harmony_lease_valid_until_seconds{{{lease},instance="a"}}', "values": "75 135 170 170 _"},
        {"series": f'harmony_lease_valid_until_seconds{{{lease},instance="b"}}', "values": "75 +Inf 170 170 _"},
        {"series": 'harmony_wanted_replicas{workload="else",namespace="prod",name="x",instance="a"}', "values": "99x4"},
    ]
    expected = [(0, 5.0), (1, 6.0), (2, 7.0), (3, None), (4, None)]
    tests = [
        {
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": "got",
                    "eval_time": f"{minute}m",
                    "exp_samples": [] if value is None else [{"labels": "got", "value": value}],
                }
                for minute, value in expected
            ],
        }
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    spec = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(spec))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
