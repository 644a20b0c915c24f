"""What no file of ours may do: unpickle, evaluate text, or talk TLS without looking at the certificate."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("streams", "model", "agents", "infra")
FILES = sorted(path for package in (*PACKAGES, "tests") for path in (ROOT / package).rglob("*.py"))

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
CALLS = {
    *("torch.load", "torch.jit.load", "torch.hub.load", "pandas.read_pickle", "pd.read_pickle"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "ssl._create_unverified_context"),
}
# Tests may run what they read in the documentation.
EVALUATING = {"eval", "exec", "compile", "__import__"}


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(tree: ast.AST, evaluating: set[str] = EVALUATING) -> list[str]:
    """`line: what` of everything forbidden."""
    found = []
    for node in ast.walk(tree):
        said = ""
        if isinstance(node, ast.Import):
            said = ", ".join(a.name for a in node.names if a.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            said = node.module if node.module and node.module.split(".")[0] in MODULES else ""
        elif isinstance(node, ast.Call):
            called = name_of(node.func)
            said = called if called in CALLS or called in evaluating else ""
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if (keyword.arg, value) in (
                    ("allow_pickle", True),
                    ("verify", False),
                    ("shell", True),
                    ("weights_only", False),
                    ("value_serializer", "pickle"),
                    ("key_serializer", "pickle"),
                ):
                    said = f"{keyword.arg}={value}"
        elif isinstance(node, ast.Assign):
            target = name_of(node.targets[0])
            if target.endswith(".check_hostname") and getattr(node.value, "value", None) is False:
                said = "check_hostname = False"
            if target.endswith(".verify_mode") and name_of(node.value).endswith("CERT_NONE"):
                said = "verify_mode = CERT_NONE"
        if said:
            found.append(f"{getattr(node, 'lineno', '?')}: {said}")
    return found


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_no_file_does_what_is_unsafe(package: str) -> None:
    evaluating = set() if package == "tests" else EVALUATING
    own = [path for path in FILES if path.relative_to(ROOT).parts[0] == package]
    said = {path.name: faults(ast.parse(path.read_text(encoding="utf-8")), evaluating) for path in own}
    assert own
    assert not {name: found for name, found in said.items() if found}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from joblib import load", "torch.load('x')", "np.load('x', allow_pickle=True)", "eval('1')",
        "yaml.load(x)", "app.topic('t', value_serializer='pickle')", "run('ls', shell=True)", "get(u, verify=False)",
        "context.check_hostname = False", "context.verify_mode = ssl.CERT_NONE", "torch.load('x', weights_only=False)",
    ],
)  # fmt: skip
def test_the_search_finds(line: str) -> None:
    assert faults(ast.parse(line))


def test_what_is_safe_is_let_through() -> None:
    fine = "import json\nyaml.safe_load(x)\nmodel.eval()\nnp.load('x', allow_pickle=False)\nre.compile('x')"
    assert not faults(ast.parse(fine))
