"""What a real API server says of every manifest and of the rendered chart, with KEDA's own resource definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster, Refused
from tests.deploy.chart import NAMESPACE, OTHERS, rendered
from tests.programs import PLACES, ROOT, needs

MANIFESTS = ROOT / "infra/deploy/kubernetes"
DOCUMENTS = [
    (path.name, document)
    for path in sorted(MANIFESTS.glob("*.yaml"))
    # The one is a chart's values; the other's objects are there already, made by the fixture `cluster`.
    if path.name not in ("prometheus-adapter.yaml", "rbac.yaml")
    for document in yaml.safe_load_all(path.read_text())
]
SCALED = [d for _, d in DOCUMENTS if d["kind"] == "ScaledObject"]


def crds() -> list[Path]:
    """KEDA's, as its module has them."""
    return sorted(file for place in PLACES for file in (place.parents[1] / "keda-crds").glob("keda.sh_*.yaml"))


@pytest.fixture(scope="module")
def keda(cluster: Cluster) -> Cluster:
    """The cluster with KEDA's kinds."""
    if not crds():
        pytest.skip("KEDA's CRDs: not found (sh tests/build_go_tools.sh cluster ~/.cache/harmony/tools)")
    for file in crds():
        document = yaml.safe_load(file.read_text())
        # The file was made with fields that the server fills in.
        document.pop("status", None)
        document["metadata"].pop("creationTimestamp", None)
        cluster.create(document)
    # Discovery knows a kind a moment before it is served.
    for plural in ("scaledobjects", "triggerauthentications"):
        cluster.await_that(f"{plural} are served", lambda p=plural: cluster.call("GET", f"/apis/keda.sh/v1alpha1/{p}"))
    return cluster


@pytest.mark.parametrize(("name", "document"), DOCUMENTS, ids=[f"{n}-{d['kind']}" for n, d in DOCUMENTS])
def test_the_server_takes_every_manifest(keda: Cluster, name: str, document: dict[str, Any]) -> None:
    made = keda.create(document, dryRun="All")
    assert made["metadata"]["name"] == document["metadata"]["name"]


@pytest.mark.parametrize(
    ("where", "slip", "complaint"),
    [
        (("spec",), {"minReplicas": 2}, 'unknown field "spec.minReplicas"'),
        (("spec", "fallback"), {"behavior": "keep"}, "behavior"),
        (("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp"), {"tolerence": "0"}, "tolerence"),
        (("spec",), {"scaleTargetRef": None}, "scaleTargetRef"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_server_would_find_a_slip_in_a_scaled_object(
    keda: Cluster, where: tuple[str, ...], slip: dict[str, Any], complaint: str
) -> None:
    document = json.loads(json.dumps(SCALED[0]))
    at = document
    for key in where:
        at = at[key]
    at |= slip
    with pytest.raises(Refused) as refusal:
        keda.create(document, dryRun="All")
    assert refusal.value.code in (400, 422)
    assert complaint in refusal.value.message


@needs("helm")
@pytest.mark.parametrize("values", [(), ("all",)], ids=["as it comes", "everything on"])
def test_the_server_takes_the_chart(cluster: Cluster, values: tuple[str, ...]) -> None:
    for namespace in (NAMESPACE, "staging"):
        cluster.namespace(namespace)
    kinds = set()
    for document in rendered(*values):
        if document["kind"] not in OTHERS:
            kinds.add(document["kind"])
            cluster.create(document, NAMESPACE, dryRun="All")
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "ConfigMap"} <= kinds
