"""What is compiled before a worker joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.worker import warm_up
from model import compiled
from model.network import spec as packaged


def test_damaged_weights_of_the_package_keep_no_worker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "SHIPPED", tmp_path / "nothing")
    warm_up.warm_up_forecasters()


def test_who_finds_it_compiled_asks_for_no_second_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path)
    started: list[str] = []
    monkeypatch.setattr(warm_up, "_compile_all", lambda: started.append("again"))
    warm_up.warm_up()
    warm_up.warm_up()
    assert started == ["again"]
    assert compiled.is_complete()
