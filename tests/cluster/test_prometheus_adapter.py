"""An HPA follows our gauge through a real Prometheus and a real prometheus-adapter, with our rule and our HPA manifest.

command ─▶ controller ─▶ gauge ─▶ Prometheus ─▶ prometheus-adapter ─▶ external.metrics.k8s.io ─▶ HPA ─▶ /scale
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest
import yaml

from infra.actuate.pull import LeaseGauges
from infra.actuate.runner import wall_ms
from infra.console.host import free_port
from infra.observability.health import Health
from infra.observability.probes import ProbeServer
from tests.cluster.cluster import Cluster, controllers, running, write_kubeconfig
from tests.cluster.external_metrics import ROOT, registered
from tests.cluster.hpa import DEPLOYMENT, MANIFESTS, followed, says, settle_at, start_with_twenty, take_away
from tests.cluster.our_side import NAME, Side
from tests.infra.observability.prometheus_server import Prometheus, prometheus
from tests.programs import needs

pytestmark = [needs("prometheus-adapter", "prometheus")]

METRIC = f"{ROOT}/namespaces/prod/harmony_wanted_replicas"


@pytest.fixture(scope="module")
def side(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """All of the chain is running, in real time, which the leases of a gauge are judged by."""
    made = Side(clock=wall_ms)
    made.order(20, 20)
    gauges = ProbeServer(Health(monotonic()), LeaseGauges(made.controller), port=0)
    made.do(gauges.start())
    scrape = {"job_name": "harmony", "honor_labels": True}
    scrape["static_configs"] = [{"targets": [gauges.url.removeprefix("http://")]}]
    home = tmp_path_factory.mktemp("prometheus")
    with prometheus(home, [], scrape_configs=[scrape]) as server, controllers(cluster), adapter(cluster, server, home):
        start_with_twenty(cluster)
        yield made
        take_away(cluster)
    made.do(gauges.stop())
    made.close()


@contextmanager
def adapter(cluster: Cluster, server: Prometheus, home: Path) -> Iterator[None]:
    """prometheus-adapter with the rule of our manifest, registered at the API server."""
    values = yaml.safe_load((MANIFESTS / "prometheus-adapter.yaml").read_text())
    # As its chart does: what stands under `rules.external` are its `externalRules`.
    (home / "adapter.yaml").write_text(yaml.safe_dump({"rules": [], "externalRules": values["rules"]["external"]}))
    kubeconfig, port = str(write_kubeconfig(cluster)), free_port()
    program = ["prometheus-adapter", "--prometheus-url", server.url, "--config", str(home / "adapter.yaml")]
    program += ["--bind-address", "127.0.0.1", "--secure-port", str(port), "--cert-dir", str(home)]
    program += ["--tls-cert-file", "server.pem", "--tls-private-key-file", "server.key"]
    for who in ("lister", "authentication", "authorization"):
        program += [f"--{who}-kubeconfig", kubeconfig]
    program += ["--metrics-relist-interval", "2s", "--metrics-max-age", "1m"]
    with running(program, cluster.directory), registered(cluster, port):
        cluster.await_that("the adapter has found the series", lambda: values_of(cluster))
        yield


def values_of(cluster: Cluster) -> list[str]:
    """What the adapter answers to the HPA's question."""
    return [item["value"] for item in cluster.call("GET", METRIC, labelSelector=f"name={NAME}")["items"]]


def test_the_rule_answers_with_the_count_in_force_under_the_names_of_the_manifest(cluster: Cluster, side: Side) -> None:
    settle_at(cluster, side, 20)
    assert values_of(cluster) == ["20"]
    item = cluster.call("GET", METRIC, labelSelector=f"name={NAME}")["items"][0]
    assert item["metricName"] == "harmony_wanted_replicas"
    assert cluster.call("GET", METRIC, labelSelector="name=somebody-else")["items"] == []
    elsewhere = METRIC.replace("/prod/", "/elsewhere/")
    assert cluster.call("GET", elsewhere, labelSelector=f"name={NAME}")["items"] == []


@pytest.mark.parametrize("wanted", [21, 19])
def test_20_becomes_21_and_20_becomes_19_through_prometheus(cluster: Cluster, side: Side, wanted: int) -> None:
    settle_at(cluster, side, 20)
    side.order(wanted, 20)
    assert followed(cluster, wanted)


def test_a_lease_that_runs_out_leaves_no_value_and_the_count(cluster: Cluster, side: Side) -> None:
    settle_at(cluster, side, 20)
    side.lease_ms = 5_000
    side.order(21, 20)
    assert followed(cluster, 21)
    cluster.await_that("the adapter has no value", lambda: values_of(cluster) == [])
    cluster.await_that("the HPA has no metric", lambda: says(cluster, "ScalingActive", "FailedGetExternalMetric"))
    assert cluster.call("GET", DEPLOYMENT)["spec"]["replicas"] == 21
    side.lease_ms = 600_000
    side.order(19, 21)
    assert followed(cluster, 19)
