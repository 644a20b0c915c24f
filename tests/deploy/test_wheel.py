"""The wheel beside `openai-agents`, whose package is called `agents`: both are installed, imported and removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS, THEIRS = "harmony-scaler", "openai-agents"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IMPORT_BOTH = """
import agents, harmony, harmony.agents, sys
from importlib.util import find_spec
assert hasattr(agents, "Runner"), agents
assert harmony.agents is not agents and harmony.__version__ != "unknown"
assert not [name for name in ("streams", "model", "infra") if find_spec(name)]
"""
USE_THE_PYTHON_INTERFACE = """
import sys
import harmony
assert "harmony.infra" not in sys.modules
from harmony import InputError, forecast
assert forecast is harmony.infra.api.forecast and {*harmony.infra.api.__all__} <= {*dir(harmony)}
assert not hasattr(harmony, "no_such_name")
try:
    harmony.subscribe("decision")
except InputError as error:
    assert "none of decisions" in str(error)
"""
IMPORT_EVERY_MODULE = """
import harmony, importlib, pkgutil, sys
from importlib.util import find_spec
assert find_spec("agents") is None
names = [m.name for m in pkgutil.walk_packages(harmony.__path__, "harmony.") if not m.name.endswith(".__main__")]
for name in names:
    importlib.import_module(name)
assert not {"streams", "agents", "model", "infra"} & sys.modules.keys()
print(len(names))
"""


class Environment:
    """A virtual environment that finds what HARMONY needs in the one that runs the tests, but not HARMONY itself."""

    def __init__(self, home: Path, uv: str) -> None:
        self._home, self._uv = home, uv
        self._python = home / "bin/python"
        done = self._run([uv, "venv", "-q", "--python", sys.executable, str(home)])
        assert done.returncode == 0, done.stderr
        (self.packages,) = home.glob("lib/python*/site-packages")
        # A .pth file in a folder that is named by another one is not read: the checkout stays unknown.
        (self.packages / "running.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HARMONY_", "VIRTUAL_ENV"))}
        # Compiled loops would take most of a minute; interpreted ones take seconds here.
        environment = {**kept, "NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            command, cwd=self._home.parent, env=environment, capture_output=True, text=True, check=False
        )

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run([self._uv, "pip", arguments[0], "-q", "--python", str(self._python), *arguments[1:]])

    def python(self, code: str) -> str:
        done = self._run([str(self._python), "-c", code])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def harmony(self, *arguments: str) -> str:
        done = self._run([str(self._home / "bin/harmony"), *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def installed(self) -> set[str]:
        """What lies in its folders of packages and of commands."""
        return {path.name for folder in (self.packages, self._home / "bin") for path in folder.iterdir()}


@pytest.fixture(scope="module")
def uv() -> str:
    known = [shutil.which("uv"), *(str(path) for path in (ROOT / ".uv").glob("*/bin/uv"))]
    found = next((path for path in known if path), None)
    if found is None:
        pytest.skip("uv: not found")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def install(environment: Environment, what: str, wheel: Path) -> None:
    if what == OURS:
        done = environment.pip("install", "--no-deps", str(wheel))
        assert done.returncode == 0, done.stderr
    else:
        done = environment.pip("install", THEIRS)
        if done.returncode:
            pytest.skip(f"{THEIRS} cannot be installed: {done.stderr.strip().splitlines()[-1]}")


def test_it_holds_one_package_with_everything_that_the_repository_has(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"harmony"}
    assert {"harmony/__init__.py", "harmony/py.typed"} <= {*names}
    listed = subprocess.run(
        ["git", "ls-files", "streams", "agents", "model", "infra"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    kept = [name for name in listed.stdout.split() if not name.startswith("infra/deploy/wheel/")]
    expected = [Path("harmony", name) for name in kept if (ROOT / name).is_file()]
    assert {str(path) for path in expected if path.suffix == ".py"} <= {*names}
    # Folders that the chart links to are packed once, by either name.
    assert {path.name for path in expected} <= {Path(name).name for name in names}


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["first", "second"])
def test_it_installs_beside_a_package_called_agents(tmp_path: Path, uv: str, wheel: Path, order: Sequence[str]) -> None:
    environment = Environment(tmp_path / "environment", uv)
    for what in order:
        install(environment, what, wheel)
    if order[0] == OURS:
        environment.python(IMPORT_BOTH)
        assert "Usage: harmony" in environment.harmony("--help")
        lines = [f"{1_700_000_000 + 10 * i},{100 + i % 7}\n" for i in range(200)]
        (tmp_path / "load.csv").write_text("ts,load\n" + "".join(lines))
        forecast = environment.harmony("forecast", "load.csv", "--model", "seasonal_naive", "--prediction-length", "4")
        assert len(forecast.splitlines()) == 5
        environment.python(USE_THE_PYTHON_INTERFACE)

        assert environment.pip("uninstall", OURS).returncode == 0
        assert [name for name in environment.installed() if "harmony" in name] == []
        environment.python("import agents; agents.Runner")
    else:
        environment.python(IMPORT_BOTH)
        assert environment.pip("uninstall", THEIRS).returncode == 0
        assert int(environment.python(IMPORT_EVERY_MODULE)) > 100
