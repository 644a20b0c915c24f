"""A certificate authority of a test, and what it signs, by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make(directory: Path) -> dict[str, Path]:
    """ca.pem, server.pem, server.key, client.pem, client.key; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (directory / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", "2", "-extfile", "san",
        )  # fmt: skip
    return {path.name: path for path in directory.iterdir()}
