"""Tutorials for a cluster: manifests, chart values and files that they show are valid, and their mapping joins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from infra.cli.app import app
from infra.settings.load import Settings
from tests.deploy.chart import CHART, template
from tests.docs.prose import DOCS, ROOT
from tests.infra.actuate.test_manifests import validate
from tests.infra.collect.samples import DCGM, DYNAMO, KUBE
from tests.programs import needs

PAGES = sorted((DOCS / "tutorials").glob("*.md"))
_YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [
    (page.stem, block) for page in PAGES for text in _YAML.findall(page.read_text()) for block in yaml.safe_load_all(text)
]
MANIFESTS = [(page, block) for page, block in BLOCKS if "apiVersion" in block]
VALUES = [(page, block) for page, block in BLOCKS if {"settings", "actuators"} & set(block)]
(MAPPING,) = (block for page, block in BLOCKS if page == "dynamo-llm-d")


def test_there_are_blocks_of_each_kind() -> None:
    assert len(MANIFESTS) >= 1
    assert len(VALUES) >= 2


@pytest.mark.parametrize(("page", "block"), MANIFESTS)
def test_the_api_server_knows_the_manifest(page: str, block: dict[str, Any]) -> None:
    validate(block)


@pytest.mark.parametrize(("page", "block"), VALUES)
def test_the_chart_takes_the_values(page: str, block: dict[str, Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    usual = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(usual | block, schema)
    Settings(**block.get("settings", {"brokers": ""}))


@needs("helm")
@pytest.mark.parametrize(("page", "block"), VALUES)
def test_the_chart_renders_with_the_values(page: str, block: dict[str, Any], tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(block))
    done = template("--values", str(values))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_commands_name_exist(page: Path) -> None:
    for name in re.findall(r"infra/deploy/[\w./-]+", page.read_text()):
        assert (ROOT / name).exists(), name


def test_frontend_devices_and_replica_counts_become_one_workload(tmp_path: Path) -> None:
    mapping = tmp_path / "frontend.yaml"
    mapping.write_text(yaml.safe_dump(MAPPING).replace("llama-70b", "llama"))
    dump = tmp_path / "dump.prom"
    kube = re.sub(r"chat-7b(?:-predictor-00001-deployment)?", "llama", KUBE)
    devices = re.sub(r'pod="[^"]*"', 'pod="llama-7d9f-abcde"', DCGM)
    dump.write_text(DYNAMO + devices + kube)
    profiles = [f"--profile={name}" for name in ("dynamo", "dcgm", "kube")]
    result = CliRunner().invoke(
        app, ["collect", "file", str(dump), "--dry-run", "--mapping", str(mapping), *profiles, "--label", "namespace=prod"]
    )
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert {record["key"] for record in records} == {"prod/llama"}
    assert {record["topic"].rpartition(".")[2] for record in records} == {"requests", "gpu"}
