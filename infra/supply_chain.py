"""`make sbom` and `make audit`: what HARMONY consists of, and whether something in it is known to be vulnerable.

Both speak of the lock file, hashes included, with all extras and without the tools of development; the bill also of the
embedded broker's pinned jars. Run as a module of the repository: it needs the lock file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from infra.bootstrap import ROOT, fetch_uv, say, system_certificates, usable_uv, uv_candidates
from infra.kafka.jars import PinnedJar, read_pins

BILL = ROOT / "dist" / "harmony.cdx.json"
AUDIT_TOOL = "pip-audit==2.9.0"
_EXPORT = ("export", "--frozen", "--all-extras", "--no-default-groups", "--quiet")


def uv(*arguments: str) -> int:
    """Run uv in the repository; returns its exit code."""
    binary = usable_uv(uv_candidates()) or fetch_uv()
    environment = dict(os.environ)
    if trusted := system_certificates():
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            environment.setdefault(name, trusted)
    return subprocess.run([str(binary), *arguments], cwd=ROOT, env=environment, check=False).returncode


def bill(path: Path) -> int:
    """Write the bill of materials as CycloneDX JSON.

    Returns:
        Exit code.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if code := uv(*_EXPORT, "--format", "cyclonedx1.5", "--output-file", str(path)):
        say("harmony: uv wrote no bill of materials; it takes uv 0.9.11 or newer (its message is above).")
        return code
    content = with_jars(json.loads(path.read_text(encoding="utf-8")), read_pins())
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    say(f"{len(content['components'])} components, of which {len(read_pins())} jars, in {path}")
    return 0


def with_jars(content: dict[str, Any], pins: tuple[PinnedJar, ...]) -> dict[str, Any]:
    """The bill with the embedded broker's jars among its components."""
    jars = []
    for pin in pins:
        group, artifact, version = pin.coordinate
        name = f"pkg:maven/{group}/{artifact}@{version}"
        jars.append(
            {
                "type": "library",
                "bom-ref": name,
                "group": group,
                "name": artifact,
                "version": version,
                "purl": name,
                "hashes": [{"alg": "SHA-256", "content": pin.sha256}],
            }
        )
    return content | {"components": [*content.get("components", ()), *jars]}


def audit() -> int:
    """Ask the advisory database about every locked version; one that it cannot judge counts as a failure.

    Returns:
        Exit code.
    """
    with tempfile.TemporaryDirectory() as home:
        listed = Path(home) / "requirements.txt"
        if code := uv(*_EXPORT, "--no-emit-project", "--format", "requirements.txt", "--output-file", str(listed)):
            return code
        return uv(
            "tool", "run", "--isolated", AUDIT_TOOL, "--requirement", str(listed), "--require-hashes", "--disable-pip",
            "--strict", "--progress-spinner", "off",
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(bill(BILL) if sys.argv[1:] == ["bill"] else audit())
