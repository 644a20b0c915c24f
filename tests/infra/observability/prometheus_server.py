"""A real Prometheus with the project's rules, scraping chosen addresses, asked through its HTTP API."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml

from infra.console.host import free_port
from tests.infra.observability.places import RULES


class Prometheus:
    """The API of a running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as r:  # noqa: S310
            answer = json.loads(r.read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The instant vector of an expression."""
        result: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return result

    def until(self, what: str, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = monotonic() + timeout_s
        while not condition():
            if monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s} s: {what}; targets: {self.get('targets')}")
            sleep(0.3)


@contextmanager
def prometheus(home: Path, targets: Sequence[str], flags: Sequence[str] = (), **more: object) -> Iterator[Prometheus]:
    """Scrape these addresses every second and evaluate the rules as often; `more` goes into its configuration."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(_eager(path, home)) for path in sorted(RULES.glob("*.yml"))],
        "scrape_configs": [{"job_name": "harmony", "static_configs": [{"targets": list(targets)}]}],
        **more,
    }
    home.mkdir(parents=True, exist_ok=True)
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (home / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'tsdb'}",
             f"--web.listen-address={address}", *flags],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        server = Prometheus(f"http://{address}")
        deadline = monotonic() + 60
        while True:
            assert process.poll() is None, (home / "prometheus.log").read_text()
            try:
                urllib.request.urlopen(f"{server.url}/-/ready", timeout=2)  # noqa: S310
                break
            except OSError:
                assert monotonic() < deadline, (home / "prometheus.log").read_text()
                sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait(20)


def _eager(path: Path, home: Path) -> Path:
    """The same rules without a group interval of their own, so that a test need not wait for it."""
    home.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load(path.read_text())
    for group in content["groups"]:
        group.pop("interval", None)
    copy = home / path.name
    copy.write_text(yaml.safe_dump(content))
    return copy
