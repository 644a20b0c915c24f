"""The shape of the tree: no circle of modules, small folders, modules of a readable size, no class name twice."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("streams", "agents", "model", "infra")

MODULES_PER_FOLDER = 15
LINES_PER_MODULE = 800


@cache
def sources() -> Mapping[str, ast.Module]:
    """Each module of the product by its dotted name, parsed."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports_of(tree: ast.Module, modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """Modules of the product that one module imports, also inside functions and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules else node.module


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[-len(component) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = sources()
    graph = {name: set(imports_of(tree, modules)) - {name} for name, tree in modules.items()}
    assert len(graph) > 100
    assert circles(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_are_small(package: str) -> None:
    sizes = Counter(path.parent.relative_to(ROOT) for path in (ROOT / package).rglob("*.py"))
    too_large = {str(folder): count for folder, count in sizes.items() if count > MODULES_PER_FOLDER + 1}
    assert not too_large, "a folder holds at most fifteen modules beside __init__.py"


def test_modules_are_of_a_size_that_one_reads() -> None:
    lines = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert {name: count for name, count in lines.items() if count > LINES_PER_MODULE} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_name_is_taken_twice_in_a_package(package: str) -> None:
    places = defaultdict(list)
    for name, tree in sources().items():
        if name.split(".")[0] == package:
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
