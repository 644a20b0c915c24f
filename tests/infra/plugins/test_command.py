"""`harmony plugins`, and the places that take the name of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.collect.options import Common
from infra.collect.receive import map_topic
from infra.console.errors import HarmonyError
from infra.settings.plugins import find
from tests.infra.plugins.example import ROOT, write_metadata


def harmony(example: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infra.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=example,
        env={**os.environ, "PYTHONPATH": f"{example}{os.pathsep}{ROOT}"},
    )


def test_the_installed_example_is_listed_and_checked_in_a_process_of_its_own(example: Path) -> None:
    listed = json.loads(harmony(example, "plugins", "--json").stdout)["plugins"]
    assert [(p["kind"], p["name"], p["version"]) for p in listed if p["package"] == "harmony-example-plugins"] == [
        ("actuator", "directory", "1.0.0"),
        ("decoder", "semicolons", "1.0.0"),
        ("forecaster", "busiest-hour", "1.0.0"),
        ("policy", "even-numbers", "1.0.0"),
    ]
    done = harmony(example, "plugins", "--check", "policy:even-numbers")
    assert done.returncode == 0, done.stderr
    assert "FAIL" not in done.stdout


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        ("policy", "write KIND:NAME"),
        ("colour:red", "write KIND:NAME; kinds are forecaster, policy, actuator, decoder"),
        ("policy:absent", "No policy 'absent' is installed (there are: even-numbers)"),
        ("policy:../x", "is no name of a plug-in"),
    ],
)
def test_a_wrong_word_gets_a_sentence(example: Path, check: str, sentence: str) -> None:
    done = harmony(example, "plugins", "--check", check)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_two_packages_of_one_name_are_refused(example: Path) -> None:
    write_metadata(example, "other", "1", {"harmony.policies": {"even-numbers": "x:y"}})
    with pytest.raises(HarmonyError, match="Several packages declare a policy 'even-numbers'"):
        find("policy", "even-numbers")


def test_one_that_cannot_be_imported_names_its_package(example: Path) -> None:
    write_metadata(example, "broken", "3", {"harmony.policies": {"broken": "no_such_module:X"}})
    with pytest.raises(HarmonyError, match=r"'broken' of broken 3 cannot be made .*ModuleNotFoundError"):
        find("policy", "broken").make({})
    with pytest.raises(HarmonyError, match="unknown options: x"):
        find("policy", "even-numbers").make({"x": 1})


def test_the_mapper_takes_a_decoder_by_name(example: Path) -> None:
    common = Common(None, "127.0.0.1:1")
    with pytest.raises(HarmonyError, match="No decoder 'absent'"):
        map_topic(common, "plugin:absent", "2s", (), (), None)
    with pytest.raises(HarmonyError, match=r"is none of auto, .*plugin:NAME"):
        map_topic(common, "absent", "2s", (), (), None)
