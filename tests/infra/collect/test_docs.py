"""docs/collectors.md: its commands, profiles and YAML are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from typer.main import get_command

from infra.cli.app import app
from infra.collect.mapping.schema import MappingFile
from infra.settings.workload import WorkloadSection

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/collectors.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^ *```(\w*)\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = [(language, dedent(text)) for language, text in FENCED]
YAML = [text for language, text in BLOCKS if language == "yaml"]
SHELL = [
    line.partition(" #")[0].strip()
    for language, text in BLOCKS
    if not language
    for line in text.replace("\\\n", " ").splitlines()
    if "harmony" in line and "▶" not in line
]


def test_the_mapping_file_is_one() -> None:
    (text,) = [text for text in YAML if "profiles:" in text]
    (profile,) = MappingFile(**yaml.safe_load(text)).profiles
    assert set(profile.histograms) == {"ttft_s"}
    assert len(profile.fields["num_requests_running"]) == 2


def test_the_workload_is_one() -> None:
    (text,) = [text for text in YAML if text.startswith("workloads:")]
    (workload,) = yaml.safe_load(text)["workloads"]
    assert WorkloadSection(**workload).match == {"namespace": "prod", "pod": "chat-70b-*"}


@pytest.mark.parametrize("line", SHELL)
def test_every_command_and_option_exists(line: str) -> None:
    command = get_command(app)
    words = shlex.split(line.rpartition("|")[2].replace("…", ""))
    assert words[0] == "harmony", line
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options, line


def test_every_table_of_keys_names_keys_of_the_schema() -> None:
    from infra.collect.mapping.schema import FieldChoice as Choice

    table = PAGE[PAGE.index("| key of a field") : PAGE.index("`harmony collect profiles --mapping")]
    assert set(Choice.model_fields) <= set(re.findall(r"`(\w+)`", table))


def test_every_test_that_the_page_names_exists() -> None:
    file = ""
    page = (ROOT / "docs/lab/tests.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+\.py)?(?:::(\w+))?`", page)
    assert len(named) > 10
    for path, test in named:
        file = path or file
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (file, test)
