"""Three brokers, three copies, two in sync at least: leaders die, replicas fall behind, a majority is away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from tests.faults.conftest import row_of
from tests.faults.exactness import check_everything
from tests.faults.hunted import Hunted
from tests.faults.nursery import Nursery
from tests.faults.tally import note
from tests.kafka_nodes import KafkaNode, new_cluster_id, ports

pytestmark = pytest.mark.faults


class ThreeBrokers:
    """Nodes 1 to 3 of one cluster."""

    def __init__(self, home: Path) -> None:
        taken = ports(6)
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(taken[3:], 1))
        identity = new_cluster_id()
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in taken[:3])
        self.nodes = {
            n: KafkaNode(
                home / f"node-{n}",
                identity,
                {
                    "node.id": str(n),
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://127.0.0.1:{taken[n - 1]},CONTROLLER://127.0.0.1:{taken[n + 2]}",
                    "advertised.listeners": f"PLAINTEXT://127.0.0.1:{taken[n - 1]}",
                    "default.replication.factor": "3",
                    "offsets.topic.replication.factor": "3",
                    "min.insync.replicas": "2",
                    "replica.lag.time.max.ms": "4000",
                    "broker.session.timeout.ms": "4000",
                },
                heap_mb=256,
            )
            for n in (1, 2, 3)
        }

    def start(self) -> None:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_started()

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()

    def state_of(self, topic: str) -> dict[int, tuple[int, frozenset[int]]]:
        """Leader and replicas in sync of each partition."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            (described,) = admin.describe_topics([topic])
            return {p["partition_index"]: (p["leader_id"], frozenset(p["isr_nodes"])) for p in described["partitions"]}
        finally:
            admin.close()

    def wait_for(self, topic: str, in_sync: int, timeout_s: float = 120.0) -> None:
        """Until every partition of the topic has exactly so many replicas in sync."""
        deadline = monotonic() + timeout_s
        while True:
            try:
                state = self.state_of(topic)
            except KafkaError:
                state = {}
            if state and all(len(isr) == in_sync for _, isr in state.values()):
                return
            assert monotonic() < deadline, f"not {in_sync} in sync: {state}"
            sleep(0.5)

    def revive(self, number: int) -> None:
        self.nodes[number].launch()
        self.nodes[number].wait_started()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeBrokers]:
    made = ThreeBrokers(tmp_path / "cluster")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def hunted(
    cluster: ThreeBrokers, nursery: Nursery, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> Iterator[Hunted]:
    made, started = Hunted(cluster.bootstrap, "three.", tmp_path / "hunted", seed, nursery), monotonic()
    yield made
    made.end_all()
    note(request.node, row_of(request.node.name, seed, made, monotonic() - started))


def test_leaders_die_and_replicas_fall_behind_and_nothing_changes(cluster: ThreeBrokers, hunted: Hunted) -> None:
    pages = hunted.topics.pages
    hunted.restarts_left = 12
    hunted.begin()
    hunted.wait_for_work()
    cluster.wait_for(pages, 3)

    leader, _ = cluster.state_of(pages)[0]
    cluster.nodes[leader].kill()
    cluster.wait_for(pages, 2)
    assert cluster.state_of(pages)[0][0] not in (leader, -1)
    hunted.wait_for_work(240)
    cluster.revive(leader)
    cluster.wait_for(pages, 3)

    # A replica that stands still leaves the set in sync, and what is acknowledged then is on two others.
    follower = next(n for n in (1, 2, 3) if n != cluster.state_of(pages)[0][0])
    cluster.nodes[follower].signal_jvm(signal.SIGSTOP)
    cluster.wait_for(pages, 2)
    hunted.wait_for_work(240)
    cluster.nodes[follower].signal_jvm(signal.SIGCONT)
    cluster.wait_for(pages, 3)

    # Two of three are away: nothing can be acknowledged, so nothing is decided, and nothing is lost.
    away = [n for n in (1, 2, 3) if n != leader]
    for number in away:
        cluster.nodes[number].kill()
    sleep(6.0)
    for number in away:
        cluster.nodes[number].launch()
    for number in away:
        cluster.nodes[number].wait_started()
    cluster.wait_for(pages, 3)
    hunted.wait_for_work(300)

    hunted.finish(hunted.full_course)
    hunted.proof = check_everything(hunted)
