"""The walk of docs/quick-start.md, command by command: from nothing to the page in observe, then KEDA's questions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from infra.console.host import free_port
from tests.programs import ROOT, needs

pytestmark = [needs("prometheus"), pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1500)]

PAGE = (ROOT / "docs/quick-start.md").read_text()
PORTS = ("8000", "9090", "9464", "9465", "9466")
WAIT_S = 600  # on a machine that does much else
# Of the eleven minutes that the page speaks of, twenty seconds.
SHORTER = {"HARMONY_ADVANCED__STREAM__CONTEXT_STEPS": "16", "HARMONY_ADVANCED__GUARDS__WARM_UP_STEPS": "4"}


def commands() -> str:
    """All of the walk's shell blocks, as they stand on the page."""
    walk = PAGE[PAGE.index("<!-- walk -->") : PAGE.index("<!-- end -->")]
    return "\n".join(re.findall(r"```sh\n(.*?)```", walk, re.DOTALL))


@pytest.fixture
def ports() -> dict[str, str]:
    """Free ones in the place of those on the page."""
    chosen: list[int] = []
    for _ in PORTS:
        chosen.append(free_port(chosen))
    return {told: str(port) for told, port in zip(PORTS, chosen, strict=True)}


def test_the_walk_ends_with_what_keda_would_be_told(tmp_path: Path, ports: dict[str, str]) -> None:
    if shutil.which("bash") is None or shutil.which("curl") is None:
        pytest.skip("bash and curl: not found")

    def here(text: str) -> str:
        return re.sub("|".join(PORTS), lambda found: ports[found.group()], text)

    config = tmp_path / "docs/snippets/walk_prometheus.yml"
    config.parent.mkdir(parents=True)
    rules = str(ROOT / "infra/deploy/prometheus/rules")
    config.write_text(
        here((ROOT / "docs/snippets/walk_prometheus.yml").read_text()).replace(
            "../../infra/deploy/prometheus/rules", rules
        )
    )
    lines = commands().splitlines()
    asked = [line for line in lines if line.startswith("curl ")]
    assert len(asked) == 2, "KEDA's questions are asked again and again below"
    script = here("\n".join(line for line in lines if line not in asked and not line.startswith("source ")))
    # Ports that are these programs' defaults.
    script = script.replace("infra.demo.exporters", f"infra.demo.exporters --port {ports['8000']}")
    script = script.replace("actuate keda", f"actuate keda --web-port {ports['9465']} --grpc-port {ports['9466']}")

    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARMONY_")} | SHORTER
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"HARMONY_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    log = tmp_path / "walk.log"
    with log.open("wb") as out:
        walk = subprocess.Popen(
            ["bash", "-ec", script], cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        assert walk.wait(WAIT_S) == 0, log.read_text()
        page = json.load(urlopen(f"http://127.0.0.1:{ports['9464']}/api/fleet", timeout=30))
        assert {row["id"] for row in page["rows"]} == {"demo/chat-70b", "demo/code-13b", "demo/summaries-30b"}
        told = [json.loads(until_answered(here(question), tmp_path, environment, log)) for question in asked]
        assert told[0]["workload"] == "demo/chat-70b"
        (sample,) = told[1]["data"]["result"]
        assert 1 <= told[0]["replicas"] <= 40
        assert 1 <= float(sample["value"][1]) <= 40
        query = quote("sum(harmony_replicas_ready)")
        answer = json.load(urlopen(f"http://127.0.0.1:{ports['9090']}/api/v1/query?query={query}", timeout=30))
        assert answer["data"]["result"], "the dashboards' series are there"
    finally:
        if group_lives(walk.pid):
            os.killpg(walk.pid, signal.SIGTERM)
        ended_by_s = monotonic() + 60
        while monotonic() < ended_by_s and group_lives(walk.pid):
            sleep(0.2)
        if group_lives(walk.pid):
            os.killpg(walk.pid, signal.SIGKILL)


def until_answered(question: str, directory: Path, environment: dict[str, str], log: Path) -> str:
    """What a question of KEDA's is told as soon as there is a count."""
    deadline_s = monotonic() + WAIT_S
    while True:
        done = subprocess.run(
            ["bash", "-c", question], cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and '"result":[]' not in done.stdout:
            return done.stdout
        assert monotonic() < deadline_s, (question, done.stdout, log.read_text()[-3000:])
        sleep(1)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
