"""docs/actuators.md: its table, commands, links, PromQL, and the tests and cases that it names."""

from __future__ import annotations

import re
import shlex

import typer
import yaml

from infra.actuate import cli
from infra.actuate.conformance.cases import CASES
from infra.actuate.pull import SERIES
from tests.programs import ROOT

PAGE = ROOT / "docs/actuators.md"
TEXT = PAGE.read_text()
SHOWN = (ROOT / "docs/lab/tests.md").read_text()


def test_the_table_of_series_is_the_code() -> None:
    rows = [
        f"| `{name}` | {kind} | {', '.join(f'`{x}`' for x in labels) or 'none'} | {text} |"
        for name, kind, labels, text in SERIES
    ]
    table = TEXT.split("<!-- table: series -->\n")[1].split("\n<!-- end -->")[0]
    assert table.splitlines()[2:] == rows


def test_every_command_on_the_page_parses() -> None:
    group = typer.main.get_command(cli.app)
    lines = [
        line.split("#")[0] for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()
    ]
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("harmony actuate")]
    assert len(commands) >= 8
    for name, *arguments in commands:
        group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)", TEXT):
        if not link.startswith("https://"):
            assert (PAGE.parent / link).exists(), link


def test_the_tests_and_cases_that_it_names_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`((?:test_|a_)\w{12,})`", SHOWN))
    assert len(named) >= 8
    for name in named:
        assert name in CASES or f"def {name}(" in sources, name
    assert f"{len(CASES)} cases by name" in " ".join(TEXT.split())


def test_the_promql_of_the_page_is_that_of_the_manifest() -> None:
    manifest = yaml.safe_load((ROOT / "infra/deploy/kubernetes/scaledobject-prometheus.yaml").read_text())
    (query,) = (t["metadata"]["query"] for t in manifest["spec"]["triggers"] if t["name"] == "harmony")
    (shown,) = re.findall(r"```\n(max\(.*?)```", TEXT, re.DOTALL)
    assert shown.split() == query.split()
