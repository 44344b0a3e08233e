"""Chromium of this machine, and a page that must not complain."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deployment import Deployment
from verification.browser.board import Board

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Chromium with a new profile."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: `make test-browser` has it")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium on PATH ({', '.join(NAMES)}): install the system's package")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def board(deployment: Deployment, chromium: Any, tmp_path: Path) -> Iterator[Board]:
    """The dashboard of a deployment, open in the browser; pictures go to TASKBRIDGE_TEST_PICTURES, where it is set."""
    pictures = Path(os.environ.get("TASKBRIDGE_TEST_PICTURES") or tmp_path)
    with Board.opened(deployment, chromium, pictures) as board:
        yield board
