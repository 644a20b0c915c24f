"""Setting up `.venv`: once per lock, with whatever uv there is, and with one sentence where nothing works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra import bootstrap

UV = """#!/bin/sh
if [ "$1" = --version ]; then echo "uv {version} (somewhere)"; exit; fi
echo "$@" >>{log}
mkdir -p {root}/.venv/bin && touch {root}/.venv/bin/python && chmod +x {root}/.venv/bin/python
exit {code}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that `bootstrap` takes for its own, with nothing but the system's basics on PATH."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").write_text("")
    (root / "uv.lock").write_text("1")
    for name, path in {"ROOT": ".", "VENV": ".venv", "STAMP": ".venv/.harmony-ready", "UV_HOME": ".uv"}.items():
        monkeypatch.setattr(bootstrap, name, root / path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return root


def put_uv(path: Path, root: Path, version: str = "0.13.9", code: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(UV.format(version=version, log=root / "calls", root=root, code=code))
    path.chmod(0o755)


def calls(root: Path) -> int:
    return len((root / "calls").read_text().splitlines()) if (root / "calls").exists() else 0


def test_second_start_does_nothing_and_a_new_lock_or_place_does(project: Path, tmp_path: Path) -> None:
    put_uv(tmp_path / "bin/uv", project)
    bootstrap.main()
    assert (project / "calls").read_text() == f"sync --frozen --python {sys.executable}\n"
    bootstrap.main()
    assert calls(project) == 1
    (project / "uv.lock").write_text("2")
    bootstrap.main()
    assert calls(project) == 2
    bootstrap.STAMP.write_text(bootstrap.STAMP.read_text().replace(str(project), "/moved"))
    bootstrap.main()
    assert calls(project) == 3


def test_failed_sync_leaves_no_stamp(project: Path, tmp_path: Path) -> None:
    put_uv(tmp_path / "bin/uv", project, code=2)
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"could not set up .venv.*Run make again"):
            bootstrap.main()
    assert calls(project) == 2


def test_uv_that_is_too_old_or_broken_is_passed_over(project: Path, tmp_path: Path) -> None:
    put_uv(tmp_path / "bin/uv", project, version="0.4.30")
    put_uv(bootstrap.UV_HOME / "venv/bin/uv", project)
    assert bootstrap.usable_uv(bootstrap.uv_candidates()) == bootstrap.UV_HOME / "venv/bin/uv"
    (tmp_path / "bin/uv").write_text("#!/bin/sh\nexit 1\n")
    assert bootstrap.uv_version(tmp_path / "bin/uv") is None
    assert bootstrap.uv_version(tmp_path / "none") is None


@pytest.mark.parametrize(("broken", "place"), [((), "venv"), (("venv",), "target"), (("venv", "pip"), None)])
def test_uv_is_fetched_by_what_python_has(
    project: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...], place: str | None
) -> None:
    def ran(command: list[str]) -> bool:
        module = command[command.index("-m") + 1]
        if module in broken:
            return False
        if module == "pip":
            assert f"uv=={bootstrap.UV_VERSION}" in command
            put_uv(bootstrap.UV_HOME / ("target" if "--target" in command else "venv") / "bin/uv", project)
        return True

    monkeypatch.setattr(bootstrap, "ran", ran)
    if place is None:
        with pytest.raises(SystemExit, match="neither a working `venv` nor `pip`"):
            bootstrap.fetch_uv()
    else:
        assert bootstrap.fetch_uv() == bootstrap.UV_HOME / place / "bin/uv"


def test_make_finds_a_python_and_help_lists_every_target() -> None:
    root = Path(__file__).parents[2]
    text = (root / "Makefile").read_text()
    targets = text.split(".PHONY:")[1].splitlines()[0].split()
    told = subprocess.run(["make", "help"], cwd=root, capture_output=True, text=True, check=True).stdout
    assert [line.split()[1] for line in told.splitlines() if line.startswith("  make ")] == targets
    assert os.access(root / ".ci/run", os.X_OK)


@pytest.mark.parametrize(("own", "told"), [(None, "/system/roots.pem"), ("/mine.pem", "/mine.pem")])
def test_uv_trusts_whom_the_system_trusts_unless_told_otherwise(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, told: str
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$SSL_CERT_FILE" > {tmp_path}/told\n')
    uv.chmod(0o755)
    monkeypatch.setattr(bootstrap, "system_certificates", lambda: "/system/roots.pem")
    if own is None:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    else:
        monkeypatch.setenv("SSL_CERT_FILE", own)
    bootstrap.sync(uv)
    assert (tmp_path / "told").read_text().strip() == told
