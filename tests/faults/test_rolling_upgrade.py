"""Workers of an earlier release and of this one side by side on the same topics, then this one alone."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.planning.codec import CONTROLS_PARTITION, plan_key
from infra.kafka.embedded import EmbeddedKafka
from tests.faults.exactness import IDENTITIES, Proof, check_pages, entries_of, undisturbed, unique
from tests.faults.hunted import SESSION_S, WAIT_S, Hunted
from tests.faults.logs import Progress
from tests.faults.nursery import Nursery
from tests.integration.pipeline import PARTITIONS, Pipeline, stop

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
# The newest release tag, or, before there is one, a state of this repository whose topics this one must read.
EARLIER = "2276bb44"
SLOTS = 40
SETTINGS = """
import sys
from pathlib import Path
from infra.demo.workloads import write_settings
from streams.topics import Topics
from tests.integration.pipeline import PARTITIONS, STREAM, policy_for
write_settings(Path(sys.argv[1]), policy_for(sys.argv[3:]), STREAM, Topics(sys.argv[2], PARTITIONS, 16 << 20))
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the earlier release."""

    def git(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)

    tags = git("tag", "--list", "v*", "--merged", "HEAD~1", "--sort=-v:refname").stdout.decode().split()
    release = tags[0] if tags else EARLIER
    archive = git("archive", release)
    if archive.returncode != 0:
        pytest.skip(f"the git history does not reach back to {release}")
    home = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(home, filter="data")
    print(f"the earlier release is {release}")
    return home


class Upgraded(Hunted):
    """Some of its workers run the earlier release, in processes of their own.

    Attributes:
        earlier: its source.
        not_yet: names of the workers that still run it.
    """

    forges_controls = False  # the earlier release obeys control records in telemetry

    earlier: Path
    not_yet: set[str]

    def write_earlier_settings(self) -> None:
        """The file as the earlier release writes it, which this one must read too."""
        words = (str(self.config), self.topics.prefix, *self.declared)
        subprocess.run([sys.executable, "-c", SETTINGS, *words], cwd=self.earlier, check=True)
        self.set_keys({"worker": {"session_timeout_s": SESSION_S}})

    def begin(
        self, name: str = "w0", role: str = "all", fail_points: str = "", program: Sequence[str] = ("infra",)
    ) -> None:
        if name in self.not_yet:
            self.running[name] = start_earlier(self, self.earlier, name, role)  # type: ignore[assignment]
        else:
            super().begin(name, role, fail_points, program)

    def begin_and_wait(self, name: str) -> None:
        """Until the worker has partitions, and there are decisions with it."""
        self.begin(name)
        # The earlier release lies in a directory of its own, so what it compiles is compiled anew.
        self.wait_until_ready(name, 600)
        self.wait_for_work(240)


def start_earlier(pipeline: Pipeline, earlier: Path, name: str, role: str) -> subprocess.Popen[bytes]:
    command, environment = pipeline.worker_call(name, role, "", ("infra",))
    with (pipeline.home / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=earlier)


@pytest.fixture
def upgraded(
    own_broker: EmbeddedKafka, nursery: Nursery, tmp_path: Path, seed: int, earlier: Path
) -> Iterator[Upgraded]:
    made = Upgraded(own_broker.bootstrap, "upgraded.", tmp_path / "upgraded", seed, nursery)
    made.earlier, made.not_yet = earlier, {"w0", "w1"}
    made.write_earlier_settings()
    yield made
    made.end_all()


def test_an_earlier_release_and_this_one_side_by_side(upgraded: Upgraded) -> None:
    # The earlier release has faults of its own, from which its supervisor starts it again.
    upgraded.restarts_left = 6
    for name in ("w0", "w1"):
        upgraded.begin_and_wait(name)
    for name in ("w1", "w0"):
        upgraded.publish_slots(4)
        upgraded.end(name)
        upgraded.not_yet.remove(name)
        upgraded.begin_and_wait(name)
        upgraded.publish_slots(4)
        upgraded.wait_for_work(240)
    upgraded.finish(SLOTS)

    proof = Proof()
    check_pages(upgraded, proof)
    entries = [e for e in entries_of(upgraded, upgraded.topics.plans) if e.key != plan_key(CONTROLS_PARTITION)]
    plans = unique(entries, lambda e: IDENTITIES["plans"](e.value or b""), "plans", proof)
    for partition in range(PARTITIONS):
        slots = sorted(slot for p, slot in plans if p == partition)
        assert slots == list(range(slots[0], upgraded.last_slot + 1))
    for name in ("decisions", "commands"):
        entries = entries_of(upgraded, getattr(upgraded.topics, name))
        unique(entries, lambda e, name=name: IDENTITIES[name](e.value or b""), name, proof)
    check_decisions(upgraded)
    print(proof)


def check_decisions(upgraded: Upgraded) -> None:
    """One decision per workload and origin, and it is what an undisturbed worker of one of the releases decides."""
    calm = {release: undisturbed(upgraded, "decide", name=release) for release in ("today", "earlier")}
    workers = [
        calm["today"].start_worker("calm", "decide"),
        start_earlier(calm["earlier"], upgraded.earlier, "calm", "decide"),
    ]
    try:
        for release, pipeline in calm.items():
            progress = Progress(pipeline.bootstrap, pipeline.topics)
            done = progress.wait_for_slot(upgraded.last_slot, ("decide",), WAIT_S)
            progress.close()
            assert done, f"{release}: {pipeline.log_of('calm')[-3000:]}"
    finally:
        for worker in workers:
            stop(worker)
        for pipeline in calm.values():
            pipeline.producer.close(1)
    today, earlier = (contents(pipeline) for pipeline in calm.values())
    found = contents(upgraded)
    assert found.keys() == today.keys()
    wrong = [at for at, content in found.items() if content not in (today[at], earlier[at])]
    assert not wrong, f"{len(wrong)} of {len(found)} differ, first {wrong[0]}: {found[wrong[0]]}, not {today[wrong[0]]}"


def contents(pipeline: Pipeline) -> dict[tuple[str, int], dict[str, Any]]:
    """What was decided, without what names the release that did."""
    ids: dict[tuple[str, int], str] = {}
    decided: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in entries_of(pipeline, pipeline.topics.decisions):
        body = json.loads(entry.value or b"")
        at = body["workload"], body["origin_ts_ms"]
        assert ids.setdefault(at, body["decision_id"]) == body["decision_id"], f"two decisions at {at}"
        decided[at] = {name: body[name] for name in ("mode", "action", "reason", "replicas", "guards", "command_id")}
    return decided
