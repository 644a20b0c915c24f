"""The bill of materials names everything that is locked, with hashes."""

from __future__ import annotations

import json
import re
import sysconfig
import tomllib
from pathlib import Path

import pytest

from infra.bootstrap import ROOT, usable_uv, uv_candidates
from infra.kafka.jars import read_pins
from infra.supply_chain import bill, with_jars

LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))


def test_every_locked_file_has_a_hash_and_one_index() -> None:
    registries = set()
    for package in LOCK["package"]:
        source = package["source"]
        if "registry" not in source:
            assert package["name"] == "harmony-scaler", f"{package['name']} does not come from the index"
            continue
        registries.add(source["registry"])
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        assert files, package["name"]
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]) for file in files), package["name"]
    assert len(registries) == 1


def test_nothing_unknown_runs_whenever_the_interpreter_starts() -> None:
    """A file `.pth` of any package runs before every program: the way of several stolen releases."""
    known = re.compile(r"distutils-precedence|_virtualenv|.*harmony.scaler.*")
    found = [path.name for path in Path(sysconfig.get_path("purelib")).glob("*.pth")]
    assert not [name for name in found if not known.fullmatch(name.removesuffix(".pth"))]


def test_jars_are_named_with_their_digests() -> None:
    content = with_jars({"components": [{"name": "a"}]}, read_pins())
    assert len(content["components"]) == 1 + len(read_pins())
    (kafka,) = [c for c in content["components"] if c["name"] == "kafka_2.13"]
    assert kafka["purl"].startswith("pkg:maven/org.apache.kafka/kafka_2.13@")
    assert re.fullmatch(r"[0-9a-f]{64}", kafka["hashes"][0]["content"])


def test_the_bill_holds_every_dependency(tmp_path: Path) -> None:
    found = usable_uv(uv_candidates())
    if found is None:
        pytest.skip("there is no uv here")
    path = tmp_path / "bill.json"
    if bill(path) != 0:
        pytest.skip("this uv is too old to write CycloneDX")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["bomFormat"] == "CycloneDX"
    names = {component["name"] for component in content["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    for requirement in wanted:
        name = re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")
        assert name in names, name
    assert not names & {"pytest", "ruff", "mypy", "hypothesis"}
