"""A control plane for the tests of this directory; all of them are skipped where its programs have not been built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster, control_plane
from tests.cluster.targets import serve_leader_worker_sets
from tests.programs import ROOT, found

HERE = Path(__file__).parent
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = [program for program in PROGRAMS if found(program) is None]
    why = f"{', '.join(absent)}: not found (sh tests/build_go_tools.sh cluster ~/.cache/harmony/tools)"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))
            if absent:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the namespaces `harmony` and `prod`, and the actuator's account and rights as the manifest gives them."""
    with control_plane(tmp_path_factory.mktemp("cluster")) as made:
        for namespace in ("harmony", "prod"):
            made.namespace(namespace)
        for document in yaml.safe_load_all((ROOT / "infra/deploy/kubernetes/rbac.yaml").read_text()):
            made.create(document)
        yield made


@pytest.fixture(scope="session")
def leader_worker_sets(cluster: Cluster) -> None:
    """The kind is served."""
    serve_leader_worker_sets(cluster)
