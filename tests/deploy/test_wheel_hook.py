"""What the build hook makes of a source: imports under `harmony`, nothing else changed; and the alias of a checkout."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.deploy.wheel.hook import PACKAGES, BareNameError, module_name, rewritten

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODULES = {module_name(path.relative_to(ROOT).as_posix()) for path in SOURCES}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from streams.meter import Meter", "from harmony.streams.meter import Meter"),
        ("from agents import guards as g, policy", "from harmony.agents import guards as g, policy"),
        (
            "from  model . contract import (\n    A,  # é\n    B,\n)",
            "from  harmony.model . contract import (\n    A,  # é\n    B,\n)",
        ),
        ("from \\\n  infra \\\n  .page import x", "from \\\n  harmony.infra \\\n  .page import x"),
        ("'é'; from infra import x; from os import path", "'é'; from harmony.infra import x; from os import path"),
        ("import infra", "import harmony.infra as infra"),
        ("import model as m", "import harmony.model as m"),
        ("import infra.page.view as v, os", "import harmony.infra.page.view as v, os"),
        ("import os, infra.page", "import os, harmony.infra.page as _infra_page, harmony.infra as infra"),
        (
            "import os, \\\n  streams, \\\n  model",
            "import os, \\\n  harmony.streams as streams, \\\n  harmony.model as model",
        ),
        ("if x:\n\timport agents\r\n", "if x:\n\timport harmony.agents as agents\r\n"),
        (
            "\f\ndef f():\n    '''\x0b'''\n    from agents import x\n",
            "\f\ndef f():\n    '''\x0b'''\n    from harmony.agents import x\n",
        ),
    ],
)
def test_imports_start_with_harmony(before: str, after: str) -> None:
    assert rewritten(before.encode()).decode() == after


@pytest.mark.parametrize(
    "source",
    [
        "import streams_of_data, modelling, os.path",
        "from modelling import model",
        "from . import model",
        "from .agents import x",
        "from harmony.agents import x",
        "# from streams import x\n'''from agents import y'''\nx('import infrared from agents of the model')",
    ],
)
def test_everything_else_stays(source: str) -> None:
    assert rewritten(source.encode()) == source.encode()


@pytest.mark.parametrize(
    "source",
    [
        'import_module("infra.page")',
        'run([sys.executable, "-m", "infra", "worker"])',
        'command = (python, "-m", "model.train")',
        'run([python, "-c", f"import os; from model.x import {y}"])',
        'code = """\nimport infra\n"""',
    ],
)
def test_a_module_named_in_a_string_ends_the_build(source: str) -> None:
    with pytest.raises(BareNameError, match=r"^a\.py:2: a string names the module [\w.]+, which"):
        rewritten(f"\n{source}".encode(), {"infra.page", "model.train"}, "a.py")


def test_a_source_that_is_no_python_ends_the_build() -> None:
    with pytest.raises(SyntaxError):
        rewritten(b"from infra import")


_NAMES = st.sampled_from([*sorted(PACKAGES), "os", "modelling"])
_DOTTED = st.lists(st.sampled_from(["model", "x", "infra"]), max_size=2).flatmap(
    lambda rest: _NAMES.map(lambda top: ".".join([top, *rest]))
)
_AS = st.sampled_from(["", " as x", " as infra"])
_STATEMENTS = st.one_of(
    st.lists(st.tuples(_DOTTED, _AS).map("".join), min_size=1, max_size=3).map(
        lambda names: "import " + ", ".join(names)
    ),
    st.tuples(_DOTTED, st.sampled_from(["y", "(y,\n  z)", "y as infra", "(\n# é\ny)"])).map(
        lambda parts: f"from {parts[0]} import {parts[1]}"
    ),
    st.sampled_from(["x = 'é infra'", "'''\nimport model\n'''", "# from agents import y", "pass"]),
)


@given(st.lists(st.lists(_STATEMENTS, min_size=1, max_size=3).map("; ".join), max_size=5))
def test_any_source_compiles_keeps_its_lines_and_has_no_bare_import(lines: list[str]) -> None:
    source = "".join(f"if True:\n {line}\n" if "\n" not in line and "#" not in line else f"{line}\n" for line in lines)
    try:
        before = ast.parse(source)
    except SyntaxError:  # a comment swallowed the rest of a statement
        return
    after = rewritten(source.encode())
    assert after.count(b"\n") == source.count("\n")
    assert rewritten(after) == after
    assert _bound(ast.parse(after)) >= _bound(before)
    # Apart from imports nothing has changed.
    assert _without_imports(ast.parse(after)) == _without_imports(before)


def _bound(tree: ast.AST) -> set[str]:
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _without_imports(tree: ast.AST) -> list[str]:
    kept = (ast.If, ast.Import, ast.ImportFrom, ast.Module)
    return [ast.dump(node) for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, kept)]


def test_every_source_of_the_project_can_be_rewritten() -> None:
    assert len(SOURCES) > 100
    for path in SOURCES:
        if "deploy/wheel" in path.as_posix():
            continue
        source = path.read_bytes()
        after = rewritten(source, MODULES, str(path.relative_to(ROOT)))
        assert after.count(b"\n") == source.count(b"\n"), path


def test_what_runs_from_an_image_is_called_by_its_installed_name() -> None:
    files = [ROOT / "Dockerfile", ROOT / "docker-compose.yml"]
    files += [path for path in (ROOT / "infra").rglob("*") if path.suffix in {".yaml", ".yml", ".tpl", ".txt", ".json"}]
    bare = re.compile(rf"-m[\s\",]+(?:{'|'.join(sorted(PACKAGES))})\b")
    assert [str(path) for path in files if bare.search(path.read_text(encoding="utf-8"))] == []


def test_in_a_checkout_harmony_is_another_name_of_the_same_modules() -> None:
    for package in sorted(PACKAGES):
        for found in pkgutil.iter_modules([str(ROOT / package)], f"{package}."):
            if found.ispkg and not found.name.endswith("__main__"):
                alias = importlib.import_module(f"harmony.{found.name}")
                assert alias is importlib.import_module(found.name)
                assert alias.__spec__ is not None
                assert alias.__spec__.name == alias.__name__ == found.name
    with pytest.raises(ModuleNotFoundError, match=r"harmony\.agents\.absent"):
        importlib.import_module("harmony.agents.absent")
    with pytest.raises(ModuleNotFoundError, match=r"harmony\.tests"):
        importlib.import_module("harmony.tests")


def test_in_a_checkout_commands_run_under_the_installed_name() -> None:
    code = (
        "import harmony.agents.records as first, agents.records as second, harmony\n"
        "assert first is second and harmony.agents is __import__('agents') and harmony.__version__"
    )
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'infra/deploy/wheel/checkout'}"}
    for arguments in (("-c", code), ("-m", "harmony.infra", "version")):
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, cwd="/"
        )
        assert done.returncode == 0, done.stderr
