"""Settings from a text, or the sentence that refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.console.errors import HarmonyError
from infra.settings.load import Settings, load_settings


def load(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> Settings:
    path = tmp_path / "harmony.yaml"
    path.write_text(text)
    return load_settings(path, flags, environ or {})


def mistake(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(HarmonyError) as stop:
        load(tmp_path, text, environ, **flags)
    assert stop.value.exit_code == 2
    return stop.value.message.replace(f"{tmp_path}/", "")
