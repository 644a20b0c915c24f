"""Set up `.venv` on a machine that has only Python: find or fetch uv, install what `uv.lock` pins, leave a stamp.

Run by `make` with any Python >= 3.11 and nothing installed, hence standard library only. Does nothing, at once, when
the stamp says that `.venv` already holds what the lock names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / ".harmony-ready"
UV_HOME = ROOT / ".uv"
UV_VERSION = "0.13.9"
# Older ones do not read this lock file's revision.
OLDEST_UV = (0, 8)
OLDEST_PYTHON = (3, 11)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fingerprint() -> str:
    """Of everything that decides what `.venv` holds."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "uv.lock"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_ready(digest: str) -> bool:
    """True when `.venv` was completed for this lock and its interpreter still runs from this path."""
    try:
        return STAMP.read_text() == f"{digest} {VENV}\n" and os.access(VENV / "bin" / "python", os.X_OK)
    except OSError:
        return False


def uv_version(binary: Path) -> tuple[int, ...] | None:
    """Version of a uv binary; None when it does not run."""
    try:
        done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"uv (\d+(?:\.\d+)*)", done.stdout)
    return tuple(map(int, match.group(1).split("."))) if match else None


def usable_uv(candidates: Iterator[Path]) -> Path | None:
    """The first candidate that runs and is new enough."""
    for candidate in candidates:
        version = uv_version(candidate)
        if version is not None and version >= OLDEST_UV:
            return candidate
    return None


def uv_candidates() -> Iterator[Path]:
    """Where a uv may be: on PATH, then what an earlier start fetched."""
    on_path = shutil.which("uv")
    if on_path:
        yield Path(on_path)
    yield UV_HOME / "venv" / "bin" / "uv"
    yield UV_HOME / "target" / "bin" / "uv"


def fetch_uv() -> Path:
    """Install the pinned uv under `.uv/`, by a virtual environment or, without one, by `pip install --target`.

    Raises:
        SystemExit: neither works.
    """
    say(f"Fetching uv {UV_VERSION}, which installs the rest (once) ...")
    requirement = f"uv=={UV_VERSION}"
    venv = UV_HOME / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    if ran([sys.executable, "-m", "venv", str(venv)]) and ran([str(venv / "bin" / "python"), *pip]):
        return venv / "bin" / "uv"
    shutil.rmtree(venv, ignore_errors=True)
    target = UV_HOME / "target"
    shutil.rmtree(target, ignore_errors=True)
    if ran([sys.executable, *pip, "--target", str(target)]):
        return target / "bin" / "uv"
    raise SystemExit(
        f"harmony: cannot install uv: {sys.executable} has neither a working `venv` nor `pip`, or there is no network. "
        "Install uv, or your system's python3-venv package, and run make again."
    )


def ran(command: list[str]) -> bool:
    """Run quietly; on failure the last line of what it said is shown."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        say(f"  {' '.join(command[1:4])} failed: {lines[-1].strip() if lines else done.returncode}")
    return done.returncode == 0


def interpreter() -> str:
    """Python for `.venv`: the one it has, so that it is kept, else the one that runs this."""
    own = VENV / "bin" / "python"
    check = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    try:
        subprocess.run([str(own), "-c", check], check=True)
    except (OSError, subprocess.SubprocessError):
        return sys.executable
    return str(own)


def system_certificates() -> str | None:
    """File of the certificate authorities that this system trusts, if it has one."""
    return ssl.get_default_verify_paths().cafile


def sync(uv: Path) -> None:
    """Install what the lock names.

    Raises:
        SystemExit: uv failed; it has said why.
    """
    if not VENV.exists():
        say("Setting up .venv (once; the model's packages are large, so this takes some minutes) ...")
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_PROJECT_ENVIRONMENT": str(VENV)}
    if trusted := system_certificates():
        # uv brings roots of its own; behind a proxy that inspects TLS only the system's store knows the right one.
        environment.setdefault("SSL_CERT_FILE", trusted)
    # Python compiles what it imports, a fraction of these packages, and keeps it. Where the environment forbids it to
    # keep that, half of each start would go into compiling.
    if sys.dont_write_bytecode:
        environment.setdefault("UV_COMPILE_BYTECODE", "1")
    # An active environment of something else must not become ours.
    environment.pop("VIRTUAL_ENV", None)
    command = [str(uv), "sync", "--frozen", "--python", interpreter()]
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0:
        raise SystemExit(
            "harmony: uv could not set up .venv; its message above says why (network, disk space?). "
            "Run make again to go on: what is fetched already is kept."
        )


def main() -> None:
    """Make `.venv` ready."""
    if sys.version_info < OLDEST_PYTHON:
        raise SystemExit(f"harmony: Python 3.11 or newer is needed; {sys.executable} is older.")
    digest = fingerprint()
    if is_ready(digest):
        return
    UV_HOME.mkdir(exist_ok=True)
    with (UV_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready(digest):
            return
        uv = usable_uv(uv_candidates()) or fetch_uv()
        sync(uv)
        STAMP.write_text(f"{digest} {VENV}\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("harmony: interrupted; run make again to go on.") from None
    except OSError as error:
        raise SystemExit(f"harmony: cannot set up .venv: {error}.") from None
