"""The network between workers and Kafka is slow, forgets connections, cuts them, is away: nothing changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.faults.conftest import row_of
from tests.faults.exactness import check_everything
from tests.faults.hunted import Hunted
from tests.faults.nursery import Nursery
from tests.faults.tally import note
from tests.faults.tcp_proxy import TcpProxy
from tests.kafka_nodes import KafkaNode, new_cluster_id, ports

pytestmark = pytest.mark.faults


class Distant(Hunted):
    """Workers reach the broker through a proxy, the test itself directly."""

    proxy: TcpProxy

    def worker_call(
        self, name: str, role: str, fail_points: str, program: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        command, environment = super().worker_call(name, role, fail_points, program)
        command[command.index(self.bootstrap)] = self.proxy.address
        return command, environment


@pytest.fixture
def distant(tmp_path: Path, nursery: Nursery, seed: int, request: pytest.FixtureRequest) -> Iterator[Distant]:
    near, far, controller, through = ports(4)
    node = KafkaNode(
        tmp_path / "kafka",
        new_cluster_id(),
        {
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"NEAR://127.0.0.1:{near},FAR://127.0.0.1:{far},CONTROLLER://127.0.0.1:{controller}",
            # Whoever comes in by FAR is told the proxy's port for every later connection.
            "advertised.listeners": f"NEAR://127.0.0.1:{near},FAR://127.0.0.1:{through}",
            "listener.security.protocol.map": "NEAR:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "NEAR",
            "offsets.topic.replication.factor": "1",
            "min.insync.replicas": "1",
        },
    )
    proxy, made = TcpProxy(through, far), None
    started = monotonic()
    try:
        node.launch()
        node.wait_started()
        made = Distant(f"127.0.0.1:{near}", "distant.", tmp_path / "distant", seed, nursery)
        made.proxy = proxy
        yield made
    finally:
        if made is not None:
            made.end_all()
            note(request.node, row_of(request.node.name, seed, made, monotonic() - started))
        proxy.close()
        node.stop()


def test_a_network_that_is_slow_forgets_and_cuts_changes_nothing(distant: Distant) -> None:
    distant.restarts_left = 8
    distant.begin()
    distant.wait_for_work()

    distant.proxy.latency_s = 0.5
    distant.publish_slots(3)
    distant.wait_for_work(240)
    distant.proxy.latency_s = 0.0

    assert distant.proxy.silence() > 0
    distant.wait_for_work(240)

    cut = 0
    for pause_s in (0.2, 3.0, 1.0):
        distant.publish_slots(2)
        cut += distant.proxy.reset()
        sleep(pause_s)
    assert cut > 0
    distant.wait_for_work(240)

    distant.proxy.partition(on=True)
    distant.publish_slots(3)
    sleep(12.0)
    distant.proxy.partition(on=False)
    distant.wait_for_work(240)

    distant.finish(distant.full_course)
    distant.proof = check_everything(distant)
