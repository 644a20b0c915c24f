"""A real Chromium for the tests in this directory, once per file; where there is none they are skipped and counted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.infra.page.fleet_records import step_records
from tests.infra.page.page_server import PageServer, page_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")  # its driver runs an event loop in this thread for as long as it lives
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("HARMONY_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def fleet() -> Iterator[PageServer]:
    """Six workloads over 60 steps."""
    with page_server() as server:
        for step in range(60):
            server.fold(*step_records(6, step))
        yield server
